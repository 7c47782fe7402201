"""The second pass over the map on a GPU: from q, k and the lse, every statistic in one go.

A program owns a block of columns and walks over the rows that see it, tile by tile. What each key received is added
up in place, element by element, and summed over rows once at the end. For pictures the rows of a tile are picked so
that element by element addition serves them too: a tile takes two rows of each of several pixels, the next tile the
next two rows of the same pixels, and only when all rows of these pixels are through (a chunk) are they summed.
Row statistics are summed per tile along the direction that lies within four threads of a warp, which is cheap, and
go to memory by atomic additions of whole numbers (fixed point) and atomic minima: the same bits in any order.

Rows and columns are counted in slots. Where all pixels have the same handy number of cells, slot and cell are the
same. Else every pixel gets the same number of slots, the last of which stay empty, so that pixels are whole blocks.

Limits: softmax; float32, float16, bfloat16; a head of up to 256; a mask that leaves each row one stretch of keys,
and beside it one table of booleans. Tested on an H200 with Triton 3.6, and in Triton's interpreter with 3.9.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.layout import AxisSlots, Tiling, chunks, default_tiling, descriptor, tiles_seen

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
# Stands for -inf in sums of weight * log(weight), where 0 * -inf would be NaN.
HIDDEN = tl.constexpr(-1.0e30)
# The largest negated log2 of a weight that a row has seen, before it has seen any: a pattern no float reaches.
NOTHING = 0x7FFFFFFF


@triton.jit
def _cells(slot, edges, start, slots, pixel, EDGES: tl.constexpr):
    """The cell of each slot, and whether there is one."""
    if EDGES:
        inside = slot < slots
        first = tl.load(edges + slot // pixel, mask=inside, other=0)
        last = tl.load(edges + slot // pixel + 1, mask=inside, other=0)
        cell = first + slot % pixel
        return cell, inside & (cell < last)
    else:
        return start + slot, slot < slots


@triton.jit
def _look(
    Q, K, Q_TMA, L, FIRST, STOP, SEEN, SLOPES, TABLE_PTR, BIAS_PTR, WEIGHTS,
    ENTROPY, LARGEST, DISTANCE, TOTAL, RECEIVED, SUMS, MAXIMA, ROW_EDGES, COLUMN_EDGES,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim,
    interval_batch, seen_batch, table_batch, table_head, table_row, table_column,
    bias_batch, bias_head, bias_row, bias_column,
    heads, groups, queries, keys, scale2, cap2, fixed, fixed_entropy, fixed_distance,
    row_start, row_length, row_pixel, row_bins, tiles_per_chunk,
    column_start, column_slots, column_pixel, column_bins,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA: tl.constexpr,
    ROW_E: tl.constexpr, COLUMN_E: tl.constexpr, GC: tl.constexpr,
    INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr,
    WANT_ENTROPY: tl.constexpr, WANT_LARGEST: tl.constexpr, WANT_DISTANCE: tl.constexpr, WANT_TOTAL: tl.constexpr,
    WANT_RECEIVED: tl.constexpr, WEIGHTED: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_MAXIMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2
    block = tl.program_id(0)
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    column, column_ok = _cells(
        block * BN + tl.arange(0, BN), COLUMN_EDGES, column_start, column_slots, column_pixel, COLUMN_E
    )
    dims = tl.arange(0, DIM)
    k = tl.load(
        K + b * k_batch + (h // groups) * k_head + column.to(tl.int64)[:, None] * k_row + dims[None, :] * k_dim,
        mask=column_ok[:, None] & (dims[None, :] < D), other=0.0,
    )  # fmt: skip
    # Tiles of rows that see this block at all, and among them those that see all of it.
    seen = SEEN + b * seen_batch + block * 4
    begin, full_begin, full_end, end = tl.load(seen), tl.load(seen + 1), tl.load(seen + 2), tl.load(seen + 3)
    slopes_h = 0.0
    if ALIBI:
        slopes_h = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    bias = BIAS_PTR + b * bias_batch + h * bias_head
    # A table, or pixels with empty slots, must be looked at in every tile.
    plain: tl.constexpr = not (TABLE or COLUMN_E or ROW_E)
    pictured: tl.constexpr = WANT_SUMS or WANT_MAXIMA
    column_f = column.to(tl.float32)
    received = tl.zeros([BN], tl.float32)
    for phase in tl.static_range(2):
        # First the rows that see a part of the block, before and after those that see all of it, then these.
        before = full_begin - begin
        steps = before + (end - full_end) if phase == 0 else full_end - full_begin
        rounds, turns = 1, steps
        if pictured:
            rounds, turns = steps // tiles_per_chunk, tiles_per_chunk
        for round in tl.range(0, rounds):
            # The two halves of 16 rows lie in the same thread: adding them first halves what has to be kept.
            sums = tl.zeros([HALF, BN], tl.float32)
            peaks = tl.zeros([HALF, BN], tl.float32)
            for turn in tl.range(0, turns):
                step = round * turns + turn
                tile = full_begin + step
                if phase == 0:
                    tile = tl.where(step < before, begin + step, full_end + (step - before))
                r = tl.arange(0, BM)
                if pictured:
                    pixel_row = (tile // tiles_per_chunk) * HALF + r // 16 * 8 + r % 8
                    inner = pixel_row * row_pixel + turn * 2 + r // 8 % 2
                else:
                    inner = tile * BM + r
                if ROW_E:
                    inside = pixel_row < row_bins
                    cell = tl.load(ROW_EDGES + pixel_row, mask=inside, other=0) + turn * 2 + r // 8 % 2
                    row_ok = inside & (cell < tl.load(ROW_EDGES + pixel_row + 1, mask=inside, other=0))
                else:
                    cell = row_start + inner
                    row_ok = inner < row_length
                at_row = map_id * queries + cell
                if TMA:
                    if pictured:
                        q = Q_TMA.load([map_id.to(tl.int32), tile // tiles_per_chunk * (BM // 16), turn * 2, 0, 0])
                    else:
                        q = Q_TMA.load([map_id.to(tl.int32), 0, tile * BM, 0, 0])
                    q = q.reshape(BM, DIM)
                else:
                    q_ok = dims[None, :] < D
                    if phase == 0 or not plain:
                        q_ok = q_ok & row_ok[:, None]
                    q = tl.load(
                        Q + b * q_batch + h * q_head + cell.to(tl.int64)[:, None] * q_row + dims[None, :] * q_dim,
                        mask=q_ok, other=0.0,
                    )  # fmt: skip
                if phase == 0 or not plain:
                    # A slot without a row weighs nothing, whatever its score.
                    lse2 = tl.load(L + at_row, mask=row_ok, other=-HIDDEN)
                else:
                    lse2 = tl.load(L + at_row)
                place = cell + (keys - queries)
                s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                if SOFTCAP:
                    x = s * (scale2 / cap2)
                    t = cap2 * (1 - 2 / (1 + tl.exp2(x * 2.8853900817779268))) - lse2[:, None]
                else:
                    t = s * scale2 - lse2[:, None]
                if ALIBI:
                    t -= slopes_h * tl.abs(place.to(tl.float32)[:, None] - column_f[None, :])
                if BIAS:
                    at = cell.to(tl.int64)[:, None] * bias_row + column.to(tl.int64)[None, :] * bias_column
                    added = tl.load(bias + at, mask=row_ok[:, None] & column_ok[None, :], other=0.0)
                    t = tl.maximum(t + added.to(tl.float32) * 1.4426950408889634, HIDDEN)
                if phase == 0 or not plain:
                    ok = row_ok[:, None] & column_ok[None, :]
                    if INTERVALS:
                        first = tl.load(FIRST + b * interval_batch + cell, mask=row_ok, other=keys)
                        stop = tl.load(STOP + b * interval_batch + cell, mask=row_ok, other=0)
                        ok = ok & (column[None, :] >= first[:, None]) & (column[None, :] < stop[:, None])
                    if TABLE:
                        at = cell.to(tl.int64)[:, None] * table_row + column.to(tl.int64)[None, :] * table_column
                        ok = ok & (tl.load(table + at, mask=ok, other=0) != 0)
                    t = tl.where(ok, t, HIDDEN)
                p = tl.exp2(t)
                if WANT_ENTROPY and WANT_DISTANCE:
                    # Two sums in one go: getting a row's sum to the thread that adds it costs more than the sum.
                    away = tl.sum(p * tl.abs(place.to(tl.float32)[:, None] - column_f[None, :]), 1)
                    both = tl.join(tl.sum(p * t, 1) * fixed_entropy, away * fixed_distance).to(tl.int64)
                    pair = ENTROPY + at_row[:, None] * 2 + tl.arange(0, 2)[None, :]
                    tl.atomic_add(pair, both, mask=row_ok[:, None], sem="relaxed")
                elif WANT_ENTROPY:
                    spread = (tl.sum(p * t, 1) * fixed_entropy).to(tl.int64)
                    tl.atomic_add(ENTROPY + at_row, spread, mask=row_ok, sem="relaxed")
                elif WANT_DISTANCE:
                    away = tl.sum(p * tl.abs(place.to(tl.float32)[:, None] - column_f[None, :]), 1)
                    tl.atomic_add(DISTANCE + at_row, (away * fixed_distance).to(tl.int64), mask=row_ok, sem="relaxed")
                if WANT_LARGEST:
                    # log2 of a weight is at most 0; negated, a float orders like its bits.
                    nearest = tl.maximum(-tl.max(t, 1), 0.0)
                    bits = nearest.to(tl.int32, bitcast=True)
                    tl.atomic_min(LARGEST + at_row, bits, mask=row_ok & (nearest < 1.0e29), sem="relaxed")
                if WANT_TOTAL:
                    tl.atomic_add(TOTAL + at_row, (tl.sum(p, 1) * fixed).to(tl.int64), mask=row_ok, sem="relaxed")
                if WANT_MAXIMA:
                    peaks = tl.maximum(peaks, tl.max(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(HALF, BN))
                if WANT_RECEIVED or WANT_SUMS:
                    if WEIGHTED:
                        p = p * tl.load(WEIGHTS + at_row, mask=row_ok, other=0.0)[:, None]
                    sums += tl.sum(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(HALF, BN)
            if WANT_RECEIVED:
                received += tl.sum(sums, 0)
            if pictured:
                first_tile = round * turns
                tile = full_begin + first_tile
                if phase == 0:
                    tile = tl.where(first_tile < before, begin + first_tile, full_end + (first_tile - before))
                rows_of = tile // tiles_per_chunk * HALF + tl.arange(0, HALF)
                columns_of = (block * BN + tl.arange(0, BN // GC) * GC) // column_pixel
                at = (map_id * row_bins + rows_of)[:, None] * column_bins + columns_of[None, :]
                real = (rows_of < row_bins)[:, None] & (columns_of < column_bins)[None, :]
                if WANT_SUMS:
                    # Pixels wider than this block are finished by its neighbours.
                    pooled = tl.sum(tl.reshape(sums, [HALF, BN // GC, GC]), 2)
                    tl.atomic_add(SUMS + at, (pooled * fixed).to(tl.int64), mask=real & (pooled > 0), sem="relaxed")
                if WANT_MAXIMA:
                    top = tl.max(tl.reshape(peaks, [HALF, BN // GC, GC]), 2)
                    tl.atomic_max(MAXIMA + at, top.to(tl.int32, bitcast=True), mask=real & (top > 0), sem="relaxed")
    if WANT_RECEIVED:
        tl.store(RECEIVED + map_id * keys + column, received, mask=column_ok)


def look(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    *,
    scale: float,
    rows: AxisSlots,
    columns: AxisSlots,
    want: frozenset[str],
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    weights: Tensor | None = None,
    tiling: Tiling | None = None,
    seen: Tensor | None = None,
) -> dict[str, Tensor]:
    """One pass over a rectangle of the maps of q `[batch, heads, queries, dim]` and k `[batch, kv_heads, keys, dim]`.

    `lse` is `[batch, heads, queries]`, natural logarithm. `intervals` are the first visible key of each row and the
    end, `[batch or 1, queries]` int32, both never falling from row to row. `table` (booleans) and `bias` have four
    axes, expanded with stride 0 where they repeat. `seen` is what `tiles_seen` gives for these arguments, if known.

    `want` names out of entropy, max_score, distance, total, received, sums, maxima; entropy and distance are sums of
    w log w (negated) and w |i - j|, not yet divided by the total.
    """
    batch, heads, queries, dim = q.shape
    keys, device = k.shape[2], q.device
    tiling = tiling or default_tiling(dim, q.dtype, want)
    shape = (batch, heads, queries)
    found: dict[str, Tensor] = {}
    for name in want & {"entropy", "distance", "total"}:
        found[name] = torch.zeros(shape, dtype=torch.int64, device=device)
    if {"entropy", "distance"} <= want:
        pair = torch.zeros(*shape, 2, dtype=torch.int64, device=device)
        found["entropy"], found["distance"] = pair.unbind(-1)
    if "max_score" in want:
        found["max_score"] = torch.full(shape, NOTHING, dtype=torch.int32, device=device)
    if "received" in want:
        found["received"] = torch.zeros(batch, heads, keys, dtype=torch.float32, device=device)
    for name in want & {"sums", "maxima"}:
        dtype = torch.int64 if name == "sums" else torch.int32
        found[name] = torch.zeros(batch, heads, rows.bins, columns.bins, dtype=dtype, device=device)
    # As many bits behind the point as 62 leave for the largest sum there can be.
    fixed = 2.0 ** (61 - max(queries, 2).bit_length())
    fixed_entropy, fixed_distance = 2.0**52, 2.0 ** (61 - max(keys, queries, 2).bit_length())
    lse2 = (lse.float() * LOG2E).nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0).contiguous()
    first, stop = intervals if intervals is not None else (lse2, lse2)
    pictured = bool(want & {"sums", "maxima"})
    chunk, per_chunk = chunks(rows, tiling, pictured)
    if seen is None:
        seen = tiles_seen(intervals, rows, columns, tiling, chunk, per_chunk, device)
    fetch = descriptor(q, rows, tiling.rows, pictured)
    weights = None if weights is None else weights.float().contiguous()

    def given(x: Tensor | None) -> Tensor:
        return lse2 if x is None else x

    def strides(x: Tensor | None) -> tuple[int, ...]:
        return (0, 0, 0, 0) if x is None else x.stride()

    grid = (triton.cdiv(columns.slots, tiling.columns), batch * heads)
    _look[grid](
        q, k, given(None) if fetch is None else fetch, lse2, first, stop, seen, given(slopes), given(table),
        given(bias), given(weights),
        *(given(found.get(name)) for name in ("entropy", "max_score", "distance", "total")),
        *(given(found.get(name)) for name in ("received", "sums", "maxima")), given(rows.edges), given(columns.edges),
        *q.stride(), *k.stride(), 0 if first.shape[0] == 1 or intervals is None else first.stride(0),
        0 if seen.shape[0] == 1 else seen.stride(0), *strides(table), *strides(bias),
        heads, heads // k.shape[1], queries, keys,
        scale * LOG2E, 0.0 if softcap is None else softcap * LOG2E, fixed, fixed_entropy, fixed_distance,
        rows.start, rows.length, rows.pixel, rows.bins, per_chunk,
        columns.start, columns.slots, columns.pixel, columns.bins,
        D=dim, DIM=max(16, triton.next_power_of_2(dim)), BM=tiling.rows, BN=tiling.columns, TMA=fetch is not None,
        ROW_E=rows.edges is not None, COLUMN_E=columns.edges is not None, GC=min(columns.group, tiling.columns),
        INTERVALS=intervals is not None, TABLE=table is not None, BIAS=bias is not None, ALIBI=slopes is not None,
        SOFTCAP=softcap is not None,
        WANT_ENTROPY="entropy" in want, WANT_LARGEST="max_score" in want, WANT_DISTANCE="distance" in want,
        WANT_TOTAL="total" in want, WANT_RECEIVED="received" in want, WEIGHTED=weights is not None,
        WANT_SUMS="sums" in want, WANT_MAXIMA="maxima" in want,
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
        num_warps=tiling.warps, num_stages=tiling.stages, maxnreg=tiling.registers,
    )  # fmt: skip
    for name, unit in (
        ("entropy", -LN2 / fixed_entropy),
        ("distance", 1 / fixed_distance),
        ("total", 1 / fixed),
        ("sums", 1 / fixed),
    ):
        if name in found:
            found[name] = found[name].float().mul_(unit)
    if "max_score" in found:
        bits = found["max_score"]
        score = (lse2 - bits.view(torch.float32)) * LN2
        found["max_score"] = torch.where(bits == NOTHING, -torch.inf, score)
    if "maxima" in found:
        found["maxima"] = found["maxima"].view(torch.float32)
    return found
