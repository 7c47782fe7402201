"""What one program of the pass over readings does on a GPU: the kernel of `reading_columns`.

A program owns a block of columns, whose keys and values it holds, and walks over the rows that see them as
`map_program` does: rows on the left, columns added up element by element, pixels at the end of a chunk, masks only
where a tile is not seen whole. A tile has two products, q.k and g.v; what is left for each cell is an exponential and a
few additions and multiplications. Where the strongest cells of rows are asked for, the largest of each row in this
block goes to memory: `reading_edges` then looks at few stretches again, and not at the whole map.

What is pooled into pixels is half as high as a tile, so that its product goes by the older matrix instruction: the new
one takes its matrices by addresses, and ptxas lost one of those among so many (`lens/gpu/readings.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from sightline.kernels.launch import kernel
from sightline.kernels.map_tile import (
    FOLDED,
    HIDDEN,
    add_up,
    as_bfloat16,
    by_thread,
    fold,
    fold_peaks,
    keys_of_block,
    rounded,
    upper,
    within,
)
from sightline.kernels.reading_tile import cells, values_of_block


@kernel(unaligned=("REST", "ALONG", "SIZES", "FACTORS", "SLOPES", "TABLE_PTR", "BIAS_PTR"))
def program(
    Q, K, G, V, Q_TMA, G_TMA, L, REST, ALONG, SIZES, FACTORS, FIRST, STOP, SEEN, SLOPES, TABLE_PTR, BIAS_PTR,
    SUMS, MAGNITUDES, ABOVE, BELOW, STRONGEST, PIXELS, PIXELS_BELOW, ORDER, COLUMN_PIXELS,
    q_map: tl.int64, q_row: tl.int64, g_map: tl.int64, g_row: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    interval_batch: tl.int64, seen_batch: tl.int64,
    table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64, table_column: tl.int64,
    bias_batch: tl.int64, bias_head: tl.int64, bias_row: tl.int64, bias_column: tl.int64,
    first_map: tl.int32, heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32,
    scale2: tl.float32, cap2: tl.float32, fixed: tl.float32, bins: tl.int32, bin_parts: tl.int32,
    slots: tl.int32, first_slot: tl.int64, all_slots: tl.int64, row_start: tl.int32, row_length: tl.int32,
    row_bins: tl.int32,
    tiles_per_chunk: tl.int32, column_start: tl.int32, column_length: tl.int32, column_bins: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, VDIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    TAKEN: tl.constexpr, TMA: tl.constexpr, OF: tl.constexpr, FACTORED: tl.constexpr, RESTED: tl.constexpr,
    STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, V_PRECISION: tl.constexpr,
    WANT_SUMS: tl.constexpr, WANT_MAGNITUDES: tl.constexpr, WANT_LARGEST: tl.constexpr, WANT_BINS: tl.constexpr,
    PIXEL_SUMS: tl.constexpr, PIXEL_LARGEST: tl.constexpr, SIGNED: tl.constexpr, AS_FLOATS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2  # with two rows of a pixel in a tile also the pixels that it has rows of
    AT_ONCE: tl.constexpr = 16  # pixels across that are made at once
    pictured: tl.constexpr = PIXEL_SUMS or PIXEL_LARGEST
    summed: tl.constexpr = WANT_SUMS or PIXEL_SUMS
    largest: tl.constexpr = WANT_LARGEST or PIXEL_LARGEST
    plain: tl.constexpr = not TABLE  # a table must be looked at in every tile
    # All maps' first columns come first: under a causal mask they are the longest work.
    own = tl.program_id(0)
    map_id = (first_map + own).to(tl.int64)
    block = tl.program_id(1)
    b, h = map_id // heads, map_id % heads
    inner = block * BN + tl.arange(0, BN)
    begin = column_start + block * BN
    column, column_ok = column_start + inner, inner < column_length
    last_column = column_start + column_length
    k = keys_of_block(K + b * (k_batch * 8) + (h // groups) * (k_head * 8), column, column_ok, k_row, D, DIM)
    values = V + b * (v_batch * 8) + (h // groups) * (v_head * 8)
    v, size = values_of_block(values, SIZES, map_id, column, column_ok, v_row, keys, DV, VDIM, OF)
    # Tiles of rows that see a part of these columns, and between them those that see all of them.
    seen = SEEN + b * seen_batch + block * 6
    first_tile, tiles = (first_slot // BM).to(tl.int32), slots // BM
    first_chunk = first_tile // tiles_per_chunk
    tiles_begin, full_begin = within(seen, first_tile, tiles), within(seen + 1, first_tile, tiles)
    full_end, tiles_end = within(seen + 4, first_tile, tiles), within(seen + 5, first_tile, tiles)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    bias = BIAS_PTR + b * bias_batch + h * bias_head
    first_pixel, last_pixel, pixel = 0, 0, inner
    if pictured:
        pixel = tl.load(COLUMN_PIXELS + inner, mask=column_ok, other=-1)
        first_pixel = tl.load(COLUMN_PIXELS + block * BN)
        last_pixel = tl.load(COLUMN_PIXELS + tl.minimum((block + 1) * BN, column_length) - 1) + 1
    pixels_of = map_id * row_bins * column_bins
    dims, wide = tl.arange(0, DIM), tl.arange(0, VDIM)
    last_slot = slots if pictured else row_length
    of_map = map_id * keys
    lse_of = L + own.to(tl.int64) * slots
    strongest_of = STRONGEST + (own.to(tl.int64) * bins + block // bin_parts) * all_slots + first_slot
    sums, magnitudes = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
    above, below = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
    for phase in tl.static_range(2):
        # First the rows that see a part, then all others.
        careful = phase == 0 or not plain
        part = full_begin - tiles_begin
        steps = part + (tiles_end - full_end) if phase == 0 else full_end - full_begin
        rounds, turns = 1, steps
        if pictured:
            rounds, turns = steps // tiles_per_chunk, tiles_per_chunk
        for round in tl.range(0, rounds):
            r = tl.arange(0, BM)
            chunk, tile, row_0 = 0, 0, r
            if pictured:
                sums, magnitudes = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
                above, below = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
                step = round * turns
                tile = full_begin + step
                if phase == 0:
                    tile = tl.where(step < part, tiles_begin + step, full_end + (step - part))
                chunk = tile // tiles_per_chunk
                tile = chunk * tiles_per_chunk
                row_0 = tl.load(ORDER + tile * BM + r)
            begins = tile
            for turn in tl.range(0, turns):
                tile = begins + turn
                if not pictured:
                    tile = full_begin + turn
                    if phase == 0:
                        tile = tl.where(turn < part, tiles_begin + turn, full_end + (turn - part))
                slot = tile * BM + r
                # Of a place without a row the lse is such that it weighs nothing; it may have any row.
                row = tl.minimum(row_0 + turn * TAKEN if pictured else row_start + slot, queries - 1)
                row = tl.maximum(row, 0) if pictured else row
                at_row = map_id * queries + row
                if TMA:
                    if pictured:
                        q = Q_TMA.load([(own * slots + tile * BM) // FOLDED, 0, 0])
                    else:
                        q = Q_TMA.load([own, tile * BM, 0])
                    q = q.reshape(BM, DIM)
                else:
                    at = Q + own * (q_map * 8) + slot.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :]
                    q = tl.load(at, mask=(slot < last_slot)[:, None] & (dims[None, :] < D), other=0.0)
                g = q
                if OF >= 2:
                    if TMA:
                        if pictured:
                            g = G_TMA.load([(own * slots + tile * BM) // FOLDED, 0, 0])
                        else:
                            g = G_TMA.load([own, tile * BM, 0])
                        g = g.reshape(BM, VDIM)
                    else:
                        at = G + own * (g_map * 8) + slot.to(tl.int64)[:, None] * (g_row * 8) + wide[None, :]
                        g = tl.load(at, mask=(slot < last_slot)[:, None] & (wide[None, :] < DV), other=0.0)
                lse2 = tl.load(lse_of + slot)
                rest, along, factor = lse2, lse2, lse2
                if RESTED:
                    rest = tl.load(REST + at_row)
                if OF == 3:
                    along = tl.load(ALONG + at_row)
                if FACTORED:
                    factor = tl.load(FACTORS + at_row)
                first, limit = row, row * 0 + last_column
                if careful:
                    if INTERVALS:
                        limit = tl.minimum(tl.load(STOP + b * interval_batch + row), last_column)
                    if STARTS:
                        first = tl.load(FIRST + b * interval_batch + row)
                    # The row of a place without one is another's: it may see what is not finite.
                    limit = tl.where(lse2 > -HIDDEN / 2, 0, limit)
                x, _ = cells(q, k, g, v, lse2, rest, along, factor, size, row, row + (keys - queries), begin, column,
                             column_ok, first, limit, slope, table, bias, scale2, cap2,
                             table_row, table_column, bias_row, bias_column, careful, OF, FACTORED, RESTED, STARTS,
                             TABLE, BIAS, ALIBI, SOFTCAP, PRECISION, V_PRECISION)  # fmt: skip
                if WANT_BINS:
                    most = tl.max(tl.max(by_thread(tl.abs(x), BM, BN), 2), 1)
                    # Sizes order like their bits.
                    bits = most.to(tl.int32, bitcast=True)
                    if bin_parts == 1:
                        tl.store(strongest_of + slot, bits)
                    else:
                        tl.atomic_max(strongest_of + slot, bits, sem="relaxed")
                if summed:
                    sums += fold(x, BM, BN)
                if WANT_MAGNITUDES:
                    magnitudes += fold(tl.abs(x), BM, BN)
                if largest:
                    above = tl.maximum(above, fold_peaks(x, BM, BN))
                    if SIGNED:
                        below = tl.maximum(below, fold_peaks(-x, BM, BN))
            if pictured:
                # To memory, without waiting: kept in registers, they would push others out of the loop over tiles.
                # The program is alone with its columns, so the order is always the same.
                if WANT_SUMS:
                    tl.atomic_add(SUMS + of_map + column, tl.sum(sums, 0), mask=column_ok, sem="relaxed")
                if WANT_MAGNITUDES:
                    tl.atomic_add(MAGNITUDES + of_map + column, tl.sum(magnitudes, 0), mask=column_ok, sem="relaxed")
                if WANT_LARGEST:
                    _raise(ABOVE + of_map + column, tl.max(above, 0), column_ok)
                    if SIGNED:
                        _raise(BELOW + of_map + column, tl.max(below, 0), column_ok)
                to_pixel = (first_chunk + chunk) * HALF + tl.arange(0, HALF)
                line = pixels_of + to_pixel.to(tl.int64) * column_bins
                if PIXEL_SUMS:
                    for across in tl.range(first_pixel, last_pixel, AT_ONCE):
                        beside = across + tl.arange(0, AT_ONCE)
                        found = _pooled(sums, pixel, beside, PARTS)
                        ok = (to_pixel < row_bins)[:, None] & (beside < last_pixel)[None, :]
                        add_up(PIXELS + line[:, None] + beside[None, :], found, AS_FLOATS, 1.0, fixed, ok)
                if PIXEL_LARGEST:
                    for across in tl.range(first_pixel, last_pixel):
                        here = (pixel == across)[None, :]
                        there = to_pixel < row_bins
                        _raise(PIXELS + line + across, tl.max(tl.where(here, above, 0.0), 1), there)
                        if SIGNED:
                            _raise(PIXELS_BELOW + line + across, tl.max(tl.where(here, below, 0.0), 1), there)
    if not pictured:
        if WANT_SUMS:
            tl.store(SUMS + of_map + column, tl.sum(sums, 0), mask=column_ok)
        if WANT_MAGNITUDES:
            tl.store(MAGNITUDES + of_map + column, tl.sum(magnitudes, 0), mask=column_ok)
        if WANT_LARGEST:
            _raise(ABOVE + of_map + column, tl.max(above, 0), column_ok)
            if SIGNED:
                _raise(BELOW + of_map + column, tl.max(below, 0), column_ok)


@triton.jit
def _pooled(x, pixel, beside, PARTS: tl.constexpr):
    """Sums over the columns of some pixels: a product with ones where a column is of a pixel; see `map_tile.pooled`."""
    ones = pixel[:, None] == beside[None, :]
    if PARTS == 0:
        return tl.dot(x, ones.to(tl.float32), input_precision="ieee")
    else:
        ones = ones.to(tl.bfloat16)
        high = upper(x)
        found = tl.dot(as_bfloat16(high), ones)
        rest = x - high
        if PARTS == 3:
            high = upper(rest)
            found = tl.dot(as_bfloat16(high), ones, acc=found)
            rest = rest - high
        return tl.dot(as_bfloat16(rounded(rest)), ones, acc=found)


@triton.jit
def _raise(to, x, ok):
    """Raise what is in memory to numbers that are at least 0: these order like their bits."""
    bits = x.to(tl.int32, bitcast=True)
    tl.atomic_max(to, bits, mask=ok & (bits > 0), sem="relaxed")
