"""The second pass over the map on a GPU: from q, k and the lse, every statistic in one go.

A program owns two blocks of columns, left and right, and walks over the rows that see them, tile by tile; each tile of
q is fetched once for both. What each key received is added up element by element, and summed over rows once at the
end. Pixels are summed along rows inside a thread, and then element by element too: a tile takes a few rows of each of
several pixels, the next tile the next rows of the same pixels, and only when all rows of these pixels are through (a
chunk) do they go to memory. The sums of a row lie within four threads of a warp. All that leaves a tile goes to memory
by atomic additions of whole numbers (fixed point), atomic minima and maxima: the same bits in any order.

Rows and columns are counted in slots. Where all pixels have the same handy number of cells, slot and cell are the
same. Else every pixel gets the same number of slots, the last of which stay empty, so that pixels are whole groups.

Limits: softmax; float32, float16, bfloat16; a head of up to 256; a mask that leaves each row one stretch of keys,
and beside it one table of booleans. Tested on an H200 with Triton 3.6, and in Triton's interpreter with 3.9.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import launch
from sightline.kernels.layout import Slots, Tiling, chunks, cut, default_tiling, descriptor, tiles_seen
from sightline.kernels.rows import NOTHING, finish, prepare
from sightline.kernels.tile import (
    HIDDEN,
    away,
    by_thread,
    cells,
    fold,
    fold_parts,
    fold_peaks,
    in_order,
    in_order_2,
    keys_of_block,
    logs,
    spread,
    tile_at,
)

LOG2E = 1.4426950408889634


@triton.jit
def _look(
    Q, K, Q_TMA, L, FIRST, STOP, SEEN, SLOPES, TABLE_PTR, BIAS_PTR, WEIGHTS,
    ROW_SUMS, LARGEST, RECEIVED, SUMS, MAXIMA, ROW_EDGES, COLUMN_EDGES,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim,
    interval_batch, seen_batch, table_batch, table_head, table_row, table_column,
    bias_batch, bias_head, bias_row, bias_column,
    heads, groups, queries, keys, scale2, cap2, fixed, fixed_entropy, fixed_distance, pixel_unit, bin_parts,
    row_start, row_length, row_pixel, row_bins, tiles_per_chunk, column_start, column_slots, column_pixel, column_bins,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA: tl.constexpr,
    ROW_E: tl.constexpr, COLUMN_E: tl.constexpr, GC: tl.constexpr, APART: tl.constexpr,
    STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WANT_ENTROPY: tl.constexpr, WANT_LARGEST: tl.constexpr, WANT_DISTANCE: tl.constexpr, WANT_TOTAL: tl.constexpr,
    WANT_RECEIVED: tl.constexpr, WEIGHTED: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_MAXIMA: tl.constexpr,
    BINS: tl.constexpr, ONE_BIN: tl.constexpr, TWO_SUMS: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr,
    PER_ROW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2
    G: tl.constexpr = BN // GC
    TAKEN: tl.constexpr = BM // APART  # rows of each pixel in a tile
    # All maps' first columns come first: under a causal mask they are the longest work.
    map_id = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b, h = map_id // heads, map_id % heads
    slot_0, slot_1 = block * 2 * BN, (block * 2 + 1) * BN
    column_0, column_0_ok = cells(
        slot_0 + tl.arange(0, BN), COLUMN_EDGES, column_start, column_slots, column_pixel, COLUMN_E
    )
    column_1, column_1_ok = cells(
        slot_1 + tl.arange(0, BN), COLUMN_EDGES, column_start, column_slots, column_pixel, COLUMN_E
    )
    keys_of = K + b * k_batch + (h // groups) * k_head
    k_0 = keys_of_block(keys_of, column_0, column_0_ok, k_row, k_dim, D, DIM)
    k_1 = keys_of_block(keys_of, column_1, column_1_ok, k_row, k_dim, D, DIM)
    # Tiles of rows that see a part of these columns, and between them those that see all of them from one side.
    seen = SEEN + b * seen_batch + block * 6
    begin, full_begin, across_begin = tl.load(seen), tl.load(seen + 1), tl.load(seen + 2)
    across_end, full_end, end = tl.load(seen + 3), tl.load(seen + 4), tl.load(seen + 5)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    bias = BIAS_PTR + b * bias_batch + h * bias_head
    sums_of = SUMS + map_id * row_bins * column_bins
    maxima_of = MAXIMA + map_id * row_bins * column_bins
    # A table, or pixels with empty slots, must be looked at in every tile.
    plain: tl.constexpr = not (TABLE or COLUMN_E or ROW_E)
    pictured: tl.constexpr = WANT_SUMS or WANT_MAXIMA
    mixed: tl.constexpr = pictured and APART > 1
    summed: tl.constexpr = WANT_SUMS or WANT_DISTANCE or WANT_TOTAL
    dims = tl.arange(0, DIM)
    sums_at = map_id * queries * PER_ROW
    # The sums of a row stand next to each other, those that are wanted.
    entropy_of = ROW_SUMS + sums_at
    distance_of = entropy_of + (1 if WANT_ENTROPY else 0)
    total_of = distance_of + (1 if WANT_DISTANCE else 0)
    largest_of = LARGEST + map_id * BINS * queries
    received_0 = tl.zeros([HALF, BN], tl.float32)
    received_1 = tl.zeros([HALF, BN], tl.float32)
    for phase in tl.static_range(2):
        # First the rows that see a part, or stand across, then all others.
        careful = (phase == 0 and not EVEN) or not plain
        above = full_begin - begin if phase == 0 else across_begin - full_begin
        across = across_end - across_begin if phase == 0 else 0
        steps = above + across + (end - full_end) if phase == 0 else above + (full_end - across_end)
        rounds, turns = 1, steps
        if pictured:
            rounds, turns = steps // tiles_per_chunk, tiles_per_chunk
        at_first = begin if phase == 0 else full_begin
        at_second = across_begin if phase == 0 else across_end
        for round in tl.range(0, rounds):
            sums_0 = tl.zeros([HALF, G, 4], tl.float32)
            sums_1 = tl.zeros([HALF, G, 4], tl.float32)
            peaks_0 = tl.zeros([HALF, G, 4], tl.float32)
            peaks_1 = tl.zeros([HALF, G, 4], tl.float32)
            first_step = spread(round, rounds, block) * turns
            chunk = tile_at(first_step, above, across, at_first, at_second, full_end, phase == 0) // tiles_per_chunk
            for turn in tl.range(0, turns):
                r = tl.arange(0, BM)
                if pictured:
                    # Rows r and r + 8 of 16 are of the same pixel, and 8 rows after one another of 8 pixels.
                    pixel_row = chunk * APART + (r // (8 * TAKEN) * 8 + r % 8 if APART > 1 else r // BM)
                    inner = turn * TAKEN + (r // 8 % TAKEN if APART > 1 else r)
                    slot = pixel_row * row_pixel + inner
                else:
                    step = spread(turn, turns, block)
                    tile = tile_at(step, above, across, at_first, at_second, full_end, phase == 0)
                    slot = tile * BM + r
                if ROW_E:
                    inside = pixel_row < row_bins
                    row = tl.load(ROW_EDGES + pixel_row, mask=inside, other=0) + inner
                    row_ok = inside & (row < tl.load(ROW_EDGES + pixel_row + 1, mask=inside, other=0))
                else:
                    row = row_start + slot
                    row_ok = slot < row_length
                at_row = map_id * queries + row
                if TMA:
                    if not pictured:
                        q = Q_TMA.load([map_id.to(tl.int32), 0, tile * BM, 0, 0])
                    elif APART > 1:
                        q = Q_TMA.load([map_id.to(tl.int32), chunk * (APART // 8), turn * TAKEN, 0, 0])
                    else:
                        q = Q_TMA.load([map_id.to(tl.int32), 0, chunk * row_pixel + turn * BM, 0, 0])
                    q = q.reshape(BM, DIM)
                else:
                    q_ok = dims[None, :] < D
                    if phase == 0 or not plain:
                        q_ok = q_ok & row_ok[:, None]
                    q = tl.load(
                        Q + b * q_batch + h * q_head + row.to(tl.int64)[:, None] * q_row + dims[None, :] * q_dim,
                        mask=q_ok, other=0.0,
                    )  # fmt: skip
                first, stop = row, row
                if phase == 0 or not plain:
                    # A slot without a row weighs nothing, whatever its score.
                    lse2 = tl.load(L + at_row, mask=row_ok, other=-HIDDEN)
                    if INTERVALS:
                        stop = tl.load(STOP + b * interval_batch + row, mask=row_ok, other=0)
                    if STARTS:
                        first = tl.load(FIRST + b * interval_batch + row, mask=row_ok, other=keys)
                else:
                    lse2 = tl.load(L + at_row)
                # Sums of rows go to memory in the order of the rows.
                to_row, to_ok = in_order(row, mixed, BM, TAKEN), in_order(row_ok, mixed, BM, TAKEN)
                place = row + (keys - queries)
                w = lse2
                if WEIGHTED:
                    w = tl.load(WEIGHTS + at_row, mask=row_ok, other=0.0)

                t = logs(q, k_0, lse2, row, row_ok, place, column_0, column_0_ok, first, stop, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, INTERVALS, TABLE, BIAS, ALIBI, SOFTCAP,
                          PRECISION)  # fmt: skip
                p = tl.exp2(t)
                if WANT_LARGEST:
                    nearest = tl.max(tl.max(by_thread(t, BM, BN, GC), 3), 1)
                if WANT_ENTROPY:
                    chaos = tl.sum(tl.sum(by_thread(p * t, BM, BN, GC), 3), 1)
                if summed:
                    parts_0 = tl.sum(by_thread(p, BM, BN, GC), 3)
                if WANT_DISTANCE:
                    far = away(p, parts_0, place, column_0, column_start + slot_0, phase == 1 and plain, BM, BN, GC)
                if WANT_SUMS:
                    sums_0 += fold_parts(parts_0, BM, G)
                if WANT_MAXIMA:
                    peaks_0 = tl.maximum(peaks_0, fold_peaks(tl.max(by_thread(p, BM, BN, GC), 3), BM, G))
                if WANT_RECEIVED:
                    if WEIGHTED:
                        p = p * w[:, None]
                    received_0 += fold(p, BM, BN)

                t = logs(q, k_1, lse2, row, row_ok, place, column_1, column_1_ok, first, stop, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, INTERVALS, TABLE, BIAS, ALIBI, SOFTCAP,
                          PRECISION)  # fmt: skip
                p = tl.exp2(t)
                if WANT_LARGEST:
                    near = tl.max(tl.max(by_thread(t, BM, BN, GC), 3), 1)
                    # log2 of a weight is at most 0; negated, a float orders like its bits.
                    if BINS == 1:
                        least = tl.maximum(-tl.max(tl.maximum(nearest, near), 1), 0.0)
                        least = in_order(least, mixed, BM, TAKEN)
                        least_ok = to_ok & (least < 1.0e29)
                        bits = least.to(tl.int32, bitcast=True)
                        tl.atomic_min(largest_of + to_row, bits, mask=least_ok, sem="relaxed")
                    else:
                        least = tl.maximum(-tl.join(tl.max(nearest, 1), tl.max(near, 1)), 0.0)
                        least = in_order_2(least, mixed, BM, TAKEN)
                        least_ok = to_ok[:, None] & (least < 1.0e29)
                        bin = (block * 2 + tl.arange(0, 2)) // bin_parts
                        to = largest_of + (bin.to(tl.int64) * queries)[None, :] + to_row[:, None]
                        bits = least.to(tl.int32, bitcast=True)
                        if ONE_BIN:
                            tl.store(to, tl.where(least_ok, bits, 0x7FFFFFFF), mask=to_ok[:, None])
                        else:
                            tl.atomic_min(to, bits, mask=least_ok, sem="relaxed")
                if WANT_ENTROPY:
                    chaos = tl.sum(chaos + tl.sum(tl.sum(by_thread(p * t, BM, BN, GC), 3), 1), 1)
                if summed:
                    parts_1 = tl.sum(by_thread(p, BM, BN, GC), 3)
                if WANT_DISTANCE:
                    far += away(p, parts_1, place, column_1, column_start + slot_1, phase == 1 and plain, BM, BN, GC)
                    far = tl.abs(tl.sum(far, 1))
                if WANT_ENTROPY and WANT_DISTANCE:
                    # Two sums in one go: getting a row's sum to the thread that adds it costs more than the sum.
                    both = tl.join(chaos * fixed_entropy, far * fixed_distance).to(tl.int64)
                    both = in_order_2(both, mixed, BM, TAKEN)
                    to = entropy_of + to_row[:, None] * PER_ROW + tl.arange(0, 2)[None, :]
                    tl.atomic_add(to, both, mask=to_ok[:, None], sem="relaxed")
                elif WANT_ENTROPY:
                    found = in_order((chaos * fixed_entropy).to(tl.int64), mixed, BM, TAKEN)
                    tl.atomic_add(entropy_of + to_row * PER_ROW, found, mask=to_ok, sem="relaxed")
                elif WANT_DISTANCE:
                    found = in_order((far * fixed_distance).to(tl.int64), mixed, BM, TAKEN)
                    tl.atomic_add(distance_of + to_row * PER_ROW, found, mask=to_ok, sem="relaxed")
                if WANT_TOTAL:
                    total = tl.sum(tl.sum(parts_0 + parts_1, 1), 1) * fixed
                    total = in_order(total.to(tl.int64), mixed, BM, TAKEN)
                    tl.atomic_add(total_of + to_row * PER_ROW, total, mask=to_ok, sem="relaxed")
                if WANT_SUMS:
                    sums_1 += fold_parts(parts_1, BM, G)
                if WANT_MAXIMA:
                    peaks_1 = tl.maximum(peaks_1, fold_peaks(tl.max(by_thread(p, BM, BN, GC), 3), BM, G))
                if WANT_RECEIVED:
                    if WEIGHTED:
                        p = p * w[:, None]
                    received_1 += fold(p, BM, BN)
            if pictured:
                f = tl.arange(0, HALF)
                pixel_row = chunk * APART + (f // (4 * TAKEN) * 8 + f % 8 if APART > 1 else f * 0)
                pixel_column = slot_0 + tl.arange(0, G)[:, None] * GC + tl.arange(0, 2)[None, :] * BN
                pixel_column = (pixel_column // column_pixel)[None, :, :]
                inside = (pixel_row < row_bins)[:, None, None] & (pixel_column < column_bins)
                at = pixel_row.to(tl.int64)[:, None, None] * column_bins + pixel_column
                if WANT_SUMS:
                    found = tl.join(tl.sum(sums_0, 2), tl.sum(sums_1, 2))
                    if not TWO_SUMS:
                        found = (found * fixed).to(tl.int64)
                        tl.atomic_add(sums_of + at, found, mask=inside & (found > 0), sem="relaxed")
                    # Of two numbers the sum is the same in any order: they need no fixed point.
                    elif BLOCKS == 0:
                        tl.atomic_add(sums_of + at, found * pixel_unit, mask=inside & (found > 0), sem="relaxed")
                    else:
                        found = tl.sum(found, 1)  # of each block
                        pixel_column = (slot_0 + tl.arange(0, 2) * BN) // column_pixel
                        if BLOCKS == 2:
                            found = tl.join(tl.sum(found, 1), tl.zeros([HALF], tl.float32))
                        ok = (pixel_row < row_bins)[:, None] & (pixel_column < column_bins)[None, :] & (found > 0)
                        to = sums_of + pixel_row.to(tl.int64)[:, None] * column_bins + pixel_column[None, :]
                        tl.atomic_add(to, found * pixel_unit, mask=ok, sem="relaxed")
                if WANT_MAXIMA:
                    top = tl.join(tl.max(peaks_0, 2), tl.max(peaks_1, 2)).to(tl.int32, bitcast=True)
                    tl.atomic_max(maxima_of + at, top, mask=inside & (top > 0), sem="relaxed")
    if WANT_RECEIVED:
        tl.store(RECEIVED + map_id * keys + column_0, tl.sum(received_0, 0), mask=column_0_ok)
        tl.store(RECEIVED + map_id * keys + column_1, tl.sum(received_1, 0), mask=column_1_ok)


def look(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    *,
    scale: float,
    rows: Slots,
    columns: Slots,
    want: frozenset[str],
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    weights: Tensor | None = None,
    tiling: Tiling | None = None,
    seen: Tensor | None = None,
    starts: bool = True,
    bins: int = 1,
    pixel_unit: float = 1.0,
) -> dict[str, Tensor]:
    """One pass over a rectangle of the maps of q `[batch, heads, queries, dim]` and k `[batch, kv_heads, keys, dim]`.

    `lse` is `[batch, heads, queries]`, natural logarithm. `intervals` are the first visible key of each row and the
    end, `[batch or 1, queries]` int32, both never falling from row to row. `table` (booleans) and `bias` have four
    axes, expanded with stride 0 where they repeat. `starts` says whether any row's first key is not key 0. `seen` is
    what `tiles_seen` gives for these arguments, if known.

    `want` names out of entropy, max_score, distance, total, received, sums, maxima. If rows need not sum to 1, as with
    sinks, total must be wanted too: entropy and distance are of the weights divided by it. Sums of pixels are
    multiplied by `pixel_unit`.

    With more than one of `bins`, max_score gives `largest` `[batch, heads, bins, queries]` instead: the largest log2 of
    a weight, negated, in each of so many stretches of columns; and `bin_edges` `[bins + 1]`, where these begin and end.
    Of stretches that a row does not see it may hold anything.
    """
    batch, heads, queries, dim = q.shape
    keys, device = k.shape[2], q.device
    tiling = tiling or default_tiling(dim, q.dtype, want)
    grid = (batch * heads, triton.cdiv(columns.slots, 2 * tiling.columns))
    bin_parts = -(-2 * grid[1] // bins)
    one_bin = bins > 1 and bin_parts == 1
    group = min(columns.group, tiling.columns)
    # A pixel as wide as what a thread sums at once, or as a block or both, belongs to one program, and there to the
    # threads that have its rows.
    blocks = {group: 0, tiling.columns: 1, 2 * tiling.columns: 2}.get(columns.pixel)
    two_sums = blocks is not None and rows.apart > 1 and tiling.rows // rows.apart <= 4

    def new(*size: int, dtype: torch.dtype = torch.float32, fill: int | None = None) -> Tensor:
        if fill == 0:
            return torch.zeros(size, dtype=dtype, device=device)
        empty = torch.empty(size, dtype=dtype, device=device)
        return empty if fill is None else empty.fill_(fill)

    largest = None
    if "max_score" in want:
        fill = NOTHING if bins > 1 and not one_bin else None
        largest = new(batch, heads, bins, queries, dtype=torch.int32, fill=fill)
    of_rows = None if bins > 1 else largest
    added: list[str] = [name for name in ("entropy", "distance", "total") if name in want]
    lse = lse.contiguous()
    lse2, sums_of_rows = prepare(lse, len(added), of_rows)
    found: dict[str, Tensor] = {}
    if "received" in want:
        found["received"] = new(batch, heads, keys)
    for name in want & {"sums", "maxima"}:
        dtype = torch.int32 if name == "maxima" else torch.float32 if two_sums else torch.int64
        found[name] = new(batch, heads, rows.bins, columns.bins, dtype=dtype, fill=0)
    # As many bits behind the point as 62 leave for the largest sum there can be.
    fixed = 2.0 ** (61 - max(queries, 2).bit_length())
    fixed_entropy, fixed_distance = 2.0**52, 2.0 ** (61 - max(keys, queries, 2).bit_length())
    first, stop = intervals if intervals is not None else (lse2, lse2)
    pictured = bool(want & {"sums", "maxima"})
    chunk, per_chunk = chunks(rows, tiling, pictured)
    if seen is None:
        sides = "distance" in want
        seen = tiles_seen(intervals, rows, columns, tiling, chunk, per_chunk, keys - queries, sides, device)
    fetch = descriptor(q, rows, tiling.rows, pictured)
    weights = None if weights is None else weights.float().contiguous()

    def given(x: Tensor | None) -> Tensor:
        return lse2 if x is None else x

    def strides(x: Tensor | None) -> tuple[int, ...]:
        return (0, 0, 0, 0) if x is None else x.stride()

    # Without a mask, and with whole tiles, every cell is there.
    even = intervals is None and table is None and rows.edges is None and columns.edges is None
    even = even and rows.length % chunk == 0 and columns.slots % (2 * tiling.columns) == 0
    tensors = (
        q, k, given(None) if fetch is None else fetch, lse2, first, stop, seen, given(slopes), given(table),
        given(bias), given(weights),
        sums_of_rows if added else lse2, given(largest),
        *(given(found.get(name)) for name in ("received", "sums", "maxima")), given(rows.edges), given(columns.edges),
    )  # fmt: skip
    numbers = (
        *q.stride(), *k.stride(), 0 if first.shape[0] == 1 or intervals is None else first.stride(0),
        0 if seen.shape[0] == 1 else seen.stride(0), *strides(table), *strides(bias),
        heads, heads // k.shape[1], queries, keys,
        scale * LOG2E, 0.0 if softcap is None else softcap * LOG2E, fixed, fixed_entropy, fixed_distance,
        pixel_unit, bin_parts,
        rows.start, rows.length, rows.pixel, rows.bins, per_chunk,
        columns.start, columns.slots, columns.pixel, columns.bins,
    )  # fmt: skip
    settings = (
        dim, max(16, triton.next_power_of_2(dim)), tiling.rows, tiling.columns, fetch is not None,
        rows.edges is not None, columns.edges is not None, group, rows.apart,
        starts and intervals is not None, intervals is not None, table is not None, bias is not None,
        slopes is not None, softcap is not None,
        "entropy" in want, "max_score" in want, "distance" in want, "total" in want,
        "received" in want, weights is not None, "sums" in want, "maxima" in want,
        bins, one_bin, two_sums, blocks or 0, even, len(added), "tf32x3" if q.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    options = (("num_warps", tiling.warps), ("num_stages", tiling.stages), ("maxnreg", tiling.registers))
    launch(_look, (*grid, 1), tensors, numbers, settings, options)
    units = {"entropy": 1 / fixed_entropy, "distance": 1 / fixed_distance, "total": 1 / fixed}
    found |= finish(lse, lse2, sums_of_rows, added, units, of_rows)
    del tensors, sums_of_rows  # before more is made
    if "sums" in found and not two_sums:
        found["sums"] = found["sums"] * (pixel_unit / fixed)  # a float32, in one go
    if "maxima" in found:
        found["maxima"] = found["maxima"].view(torch.float32)
    if bins > 1 and largest is not None:
        found["largest"] = largest
        found["bin_edges"] = cut(columns, bin_parts * tiling.columns, bins, device).to(torch.int32)
    return found
