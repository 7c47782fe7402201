"""What one program of the pass over the map does on a GPU: the kernel of `look`.

A program owns two blocks of columns, left and right, and walks over the rows that see them, tile by tile; each tile of
q is fetched once for both. What each key received is added up element by element, and summed over rows once at the
end. Pixels are summed along rows inside a thread, and then element by element too: a tile takes a few rows of each of
several pixels, the next tile the next rows of the same pixels, and only when all rows of these pixels are through (a
chunk) do they go to memory. The sums of a row lie within four threads of a warp. All that leaves a tile goes to memory
by atomic additions of whole numbers (fixed point), atomic minima and maxima: the same bits in any order.

Rows and columns are counted in slots. Where all pixels have the same handy number of cells, slot and cell are the
same. Else every pixel gets the same number of slots, the last of which stay empty, so that pixels are whole groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
    kept,
    keys_of_block,
    logs,
    spread,
    tile_at,
)


@triton.jit
def program(
    Q, K, Q_TMA, L, REST, LARGE, FIRST, STOP, SEEN, SLOPES, TABLE_PTR, BIAS_PTR, WEIGHTS, FACTORS,
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
    SINKS: tl.constexpr, RESTED: tl.constexpr, BINS: tl.constexpr, ONE_BIN: tl.constexpr, TWO_SUMS: tl.constexpr,
    BLOCKS: tl.constexpr, EVEN: tl.constexpr,
    PER_ROW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2
    G: tl.constexpr = BN // GC
    TAKEN: tl.constexpr = BM // APART  # rows of each pixel in a tile
    # All maps' first columns come first: under a causal mask they are the longest work.
    map_id = tl.program_id(0).to(tl.int64)
    # Maps in which something was measured beside an lse are done in a launch of their own: one more subtraction for
    # each cell would take the others a twentieth longer.
    if (tl.load(LARGE + map_id) > 0) != RESTED:
        return
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
                rest = lse2
                if RESTED:
                    rest = tl.load(REST + at_row, mask=row_ok, other=0.0)
                factor = lse2
                if SINKS:
                    factor = tl.load(FACTORS + at_row, mask=row_ok, other=0.0)
                w = lse2
                if WEIGHTED:
                    w = tl.load(WEIGHTS + at_row, mask=row_ok, other=0.0)

                t = logs(q, k_0, lse2, row, row_ok, place, column_0, column_0_ok, first, stop, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, INTERVALS, TABLE, BIAS, ALIBI, SOFTCAP,
                          PRECISION)  # fmt: skip
                if RESTED:
                    t = t - rest[:, None]
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
                    sums_0 += fold_parts(kept(parts_0, factor, SINKS), BM, G)
                if WANT_MAXIMA:
                    peak = kept(tl.max(by_thread(p, BM, BN, GC), 3), factor, SINKS)
                    peaks_0 = tl.maximum(peaks_0, fold_peaks(peak, BM, G))
                if WANT_RECEIVED:
                    if WEIGHTED:
                        p = p * w[:, None]
                    received_0 += fold(p, BM, BN)

                t = logs(q, k_1, lse2, row, row_ok, place, column_1, column_1_ok, first, stop, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, INTERVALS, TABLE, BIAS, ALIBI, SOFTCAP,
                          PRECISION)  # fmt: skip
                if RESTED:
                    t = t - rest[:, None]
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
                    sums_1 += fold_parts(kept(parts_1, factor, SINKS), BM, G)
                if WANT_MAXIMA:
                    peak = kept(tl.max(by_thread(p, BM, BN, GC), 3), factor, SINKS)
                    peaks_1 = tl.maximum(peaks_1, fold_peaks(peak, BM, G))
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
