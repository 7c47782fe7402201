"""What one program of the pass over the map does on a GPU: the kernel of `map_pass`.

A program owns two blocks of columns, left and right, and walks over the rows that see them, tile by tile; each tile of
q is fetched once for both. What each column got is added up element by element. For a picture a tile takes a few rows
of each of several pixels, the next tile the next rows of the same pixels; when all rows of these pixels are through (a
chunk) the sums of columns become sums of pixels by a small product, go to memory, and are added to what each key
received. The sums of a row lie within four threads of a warp. All that leaves a tile goes to memory by atomic additions
of whole numbers (fixed point), atomic minima and maxima: the same bits in any order.

Columns are as they are; rows of a picture lie in the order of the tiles, a band of them at a time (`layout`). So
nothing here depends on how long a text is, or how many pixels there are.
"""

from __future__ import annotations

import triton.language as tl

from sightline.kernels.launch import kernel
from sightline.kernels.map_tile import (
    HIDDEN,
    add_up,
    add_whole,
    fold,
    four,
    halves,
    keys_of_block,
    logs,
    lower,
    pooled,
    put,
    spread,
    taken_in,
    tile_at,
    two,
    within,
)


@kernel(unaligned=("SLOPES", "TABLE_PTR", "BIAS_PTR"))
def program(
    Q, K, Q_TMA, L, REST, LARGE, FIRST, STOP, SEEN, SLOPES, TABLE_PTR, BIAS_PTR, WEIGHTS,
    ROW_SUMS, LARGEST, RECEIVED, PIXELS, ORDER, COLUMN_PIXELS,
    q_map: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    interval_batch: tl.int64, seen_batch: tl.int64,
    table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64, table_column: tl.int64,
    bias_batch: tl.int64, bias_head: tl.int64, bias_row: tl.int64, bias_column: tl.int64,
    heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32,
    scale2: tl.float32, cap2: tl.float32, fixed: tl.float32, fixed_entropy: tl.float32, fixed_distance: tl.float32,
    pixel_unit: tl.float32, bins: tl.int32, bin_parts: tl.int32,
    slots: tl.int32, first_slot: tl.int64, all_slots: tl.int64, row_start: tl.int32, row_length: tl.int32,
    row_bins: tl.int32, tiles_per_chunk: tl.int32,
    column_start: tl.int32, column_length: tl.int32, column_bins: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TAKEN: tl.constexpr, TMA: tl.constexpr,
    STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WANT_ENTROPY: tl.constexpr, WANT_LARGEST: tl.constexpr, WANT_DISTANCE: tl.constexpr, WANT_TOTAL: tl.constexpr,
    WANT_RECEIVED: tl.constexpr, WEIGHTED: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_MAXIMA: tl.constexpr,
    AS_FLOATS: tl.constexpr, RESTED: tl.constexpr, BINNED: tl.constexpr, PER_ROW: tl.constexpr,
    PRECISION: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2
    # Statistics of rows leave no registers for logarithms and weights of a whole block: halves are taken in then.
    SPLIT: tl.constexpr = PER_ROW > 0 or WANT_LARGEST
    SIDE: tl.constexpr = BN // 2 if SPLIT else BN
    APART: tl.constexpr = BM // TAKEN  # pixels that a tile has rows of
    AT_ONCE: tl.constexpr = 16  # pixels across that are made at once
    PARTS: tl.constexpr = 0 if not TMA else 3 if PRECISION == "tf32x3" else 2  # that a sum is cut into
    # All maps' first columns come first: under a causal mask they are the longest work.
    own = tl.program_id(0)
    map_id = own.to(tl.int64)
    # Maps in which something was measured beside an lse are done in a launch of their own: one more subtraction for
    # each cell would take the others a twentieth longer.
    if (tl.load(LARGE + map_id) > 0) != RESTED:
        return
    block = tl.program_id(1)
    b, h = map_id // heads, map_id % heads
    left, right = block * 2 * BN, (block * 2 + 1) * BN
    inner_0, inner_1 = left + tl.arange(0, BN), right + tl.arange(0, BN)
    column_0, column_1 = column_start + inner_0, column_start + inner_1
    column_0_ok, column_1_ok = inner_0 < column_length, inner_1 < column_length
    last_column = column_start + column_length
    keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
    k_0 = keys_of_block(keys_of, column_0, column_0_ok, k_row, D, DIM)
    k_1 = keys_of_block(keys_of, column_1, column_1_ok, k_row, D, DIM)
    # Tiles of rows that see a part of these columns, and between them those that see all of them from one side.
    seen = SEEN + b * seen_batch + block * 6
    first_tile, tiles = (first_slot // BM).to(tl.int32), slots // BM
    first_chunk = first_tile // tiles_per_chunk
    begin, full_begin = within(seen, first_tile, tiles), within(seen + 1, first_tile, tiles)
    across_begin, across_end = within(seen + 2, first_tile, tiles), within(seen + 3, first_tile, tiles)
    full_end, end = within(seen + 4, first_tile, tiles), within(seen + 5, first_tile, tiles)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    bias = BIAS_PTR + b * bias_batch + h * bias_head
    pixels_of = PIXELS + map_id * row_bins * column_bins
    side = column_start + left + tl.arange(0, 2 * BN)
    part_0 = left + tl.arange(0, SIDE)
    part_2 = part_0 + BN
    first_pixel, last_pixel, pixel = 0, 0, side
    pixel_0, pixel_1, pixel_2, pixel_3 = part_0, part_0, part_0, part_0
    if WANT_MAXIMA:
        pixel = tl.load(COLUMN_PIXELS - column_start + side, mask=side < last_column, other=-1)
    if WANT_SUMS or WANT_MAXIMA:
        pixel_0 = tl.load(COLUMN_PIXELS + part_0, mask=part_0 < column_length, other=-1)
        pixel_2 = tl.load(COLUMN_PIXELS + part_2, mask=part_2 < column_length, other=-1)
        if SPLIT:
            pixel_1 = tl.load(COLUMN_PIXELS + part_0 + SIDE, mask=part_0 + SIDE < column_length, other=-1)
            pixel_3 = tl.load(COLUMN_PIXELS + part_2 + SIDE, mask=part_2 + SIDE < column_length, other=-1)
        first_pixel = tl.load(COLUMN_PIXELS + left)
        last_pixel = tl.load(COLUMN_PIXELS + tl.minimum(left + 2 * BN, column_length) - 1) + 1
    plain: tl.constexpr = not TABLE  # a table must be looked at in every tile
    pictured: tl.constexpr = WANT_SUMS or WANT_MAXIMA
    added: tl.constexpr = WANT_RECEIVED or WANT_SUMS
    dims = tl.arange(0, DIM)
    last_slot = slots if pictured else row_length
    slots_at = map_id * slots
    lse_of = L + slots_at
    # Of the four threads that share a row each brings another of its sums to memory.
    lane = tl.arange(0, 4)[None, :]
    sums_of = ROW_SUMS + slots_at * PER_ROW + lane.to(tl.int64) * slots
    largest_of = LARGEST + slots_at + lane * 0
    if BINNED:
        # Of all bands: who looks for the strongest keys needs the stretches of every row.
        bin = (block * 2 + tl.minimum(lane, 1)) // bin_parts
        largest_of = LARGEST + (map_id * bins + bin) * all_slots + first_slot
    received = tl.zeros([HALF, SIDE], tl.float32)
    received_0, received_1, received_2, received_3 = received, received, received, received
    nothing = tl.zeros([BM, 4], tl.float32)
    for phase in tl.static_range(2):
        # First the rows that see a part, or stand across, then all others.
        careful = phase == 0 or not plain
        above = full_begin - begin if phase == 0 else across_begin - full_begin
        across = across_end - across_begin if phase == 0 else 0
        steps = above + across + (end - full_end) if phase == 0 else above + (full_end - across_end)
        rounds, turns = 1, steps
        if pictured:
            rounds, turns = steps // tiles_per_chunk, tiles_per_chunk
        at_first = begin if phase == 0 else full_begin
        at_second = across_begin if phase == 0 else across_end
        for round in tl.range(0, rounds):
            r = tl.arange(0, BM)
            # What a chunk adds; without a picture there is but one.
            acc_0, acc_1, acc_2, acc_3 = received_0, received_1, received_2, received_3
            first, chunk, row_0 = 0, 0, r
            if pictured:
                acc_0, acc_1, acc_2, acc_3 = received, received, received, received
                first = spread(round, rounds, block) * turns
                first = tile_at(first, above, across, at_first, at_second, full_end, phase == 0)
                chunk = first // tiles_per_chunk
                row_0 = tl.load(ORDER + first * BM + r)
            else:
                first = tile_at(spread(0, turns, block), above, across, at_first, at_second, full_end, phase == 0)
            # The lse of a tile is fetched while the one before it is worked on.
            next_tile = first
            next_lse2 = tl.load(lse_of + next_tile * BM + r, mask=next_tile * BM + r < slots, other=0.0)
            for turn in tl.range(0, turns):
                tile, lse2 = next_tile, next_lse2
                following = tl.minimum(turn + 1, turns - 1)
                if pictured:
                    next_tile = first + following
                else:
                    following = spread(following, turns, block)
                    next_tile = tile_at(following, above, across, at_first, at_second, full_end, phase == 0)
                next_lse2 = tl.load(lse_of + next_tile * BM + r)
                slot = tile * BM + r
                # Of a place without a row the lse is such that it weighs nothing; it may have any row.
                row = tl.minimum(row_0 + turn * TAKEN if pictured else row_start + slot, queries - 1)
                row = tl.maximum(row, 0) if pictured else row
                at_row = map_id * queries + row
                if TMA:
                    if pictured:
                        q = Q_TMA.load([own * slots + tile * BM, 0])
                    else:
                        q = Q_TMA.load([own, tile * BM, 0]).reshape(BM, DIM)
                else:
                    q = tl.load(
                        Q + own * (q_map * 8) + slot.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :],
                        mask=(slot < last_slot)[:, None] & (dims[None, :] < D), other=0.0,
                    )  # fmt: skip
                begins, limit = row, row * 0 + last_column
                if careful:
                    if INTERVALS:
                        limit = tl.minimum(tl.load(STOP + b * interval_batch + row), last_column)
                    if STARTS:
                        begins = tl.load(FIRST + b * interval_batch + row)
                    # The row of a place without one is another's: it may see what is not finite.
                    limit = tl.where(lse2 > -HIDDEN / 2, 0, limit)
                place = row + (keys - queries)
                rest = lse2
                if RESTED:
                    rest = tl.load(REST + at_row)
                w = lse2
                if WEIGHTED:
                    w = tl.load(WEIGHTS + at_row)

                t = logs(q, k_0, lse2, row, place, column_start + left, column_0,
                          column_0_ok, begins, limit, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                if RESTED:
                    t = t - rest[:, None]
                near_0, chaos, far, total = nothing + HIDDEN, nothing, nothing, nothing
                if SPLIT:
                    t, t_1 = halves(t, BM, BN)
                acc_0, near_0, chaos, far, total = taken_in(
                    t, acc_0, near_0, chaos, far, total, w, place, column_start + left, WANT_LARGEST, WANT_ENTROPY,
                    WANT_DISTANCE, WANT_TOTAL, WEIGHTED, added, WANT_MAXIMA, phase == 1 and plain,
                    BM, SIDE)  # fmt: skip
                if SPLIT:
                    acc_1, near_0, chaos, far, total = taken_in(
                        t_1, acc_1, near_0, chaos, far, total, w, place, column_start + left + SIDE, WANT_LARGEST,
                        WANT_ENTROPY, WANT_DISTANCE, WANT_TOTAL, WEIGHTED, added, WANT_MAXIMA, phase == 1 and plain,
                        BM, SIDE)  # fmt: skip

                t = logs(q, k_1, lse2, row, place, column_start + right, column_1,
                          column_1_ok, begins, limit, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                if RESTED:
                    t = t - rest[:, None]
                near_1 = nothing + HIDDEN
                if SPLIT:
                    t, t_1 = halves(t, BM, BN)
                acc_2, near_1, chaos, far, total = taken_in(
                    t, acc_2, near_1, chaos, far, total, w, place, column_start + right, WANT_LARGEST, WANT_ENTROPY,
                    WANT_DISTANCE, WANT_TOTAL, WEIGHTED, added, WANT_MAXIMA, phase == 1 and plain,
                    BM, SIDE)  # fmt: skip
                if SPLIT:
                    acc_3, near_1, chaos, far, total = taken_in(
                        t_1, acc_3, near_1, chaos, far, total, w, place, column_start + right + SIDE, WANT_LARGEST,
                        WANT_ENTROPY, WANT_DISTANCE, WANT_TOTAL, WEIGHTED, added, WANT_MAXIMA, phase == 1 and plain,
                        BM, SIDE)  # fmt: skip
                if WANT_LARGEST:
                    # log2 of a weight is at most 0; negated, a float orders like its bits.
                    nearest, near = tl.max(near_0, 1), tl.max(near_1, 1)
                    if BINNED:
                        least = tl.maximum(-tl.where(lane == 0, nearest[:, None], near[:, None]), 0.0)
                        bits, there = least.to(tl.int32, bitcast=True), least < 1.0e29
                        if bin_parts == 1:
                            put(largest_of + slot[:, None], tl.where(there, bits, 0x7FFFFFFF), lane < 2, DIRECT)
                        else:
                            lower(largest_of + slot[:, None], bits, there & (lane < 2), DIRECT)
                    else:
                        least = tl.maximum(-tl.maximum(nearest, near), 0.0)[:, None]
                        bits, there = least.to(tl.int32, bitcast=True), least < 1.0e29
                        lower(largest_of + slot[:, None], bits, there & (lane < 1), DIRECT)
                if PER_ROW > 0:
                    # In the order in which they stand in memory: entropy, distance, total.
                    sums, rank = tl.zeros([BM, 4], tl.float32), 0
                    if WANT_ENTROPY:
                        sums = tl.where(lane == rank, (tl.sum(chaos, 1) * fixed_entropy)[:, None], sums)
                        rank += 1
                    if WANT_DISTANCE:
                        sums = tl.where(lane == rank, (tl.abs(tl.sum(far, 1)) * fixed_distance)[:, None], sums)
                        rank += 1
                    if WANT_TOTAL:
                        sums = tl.where(lane == rank, (tl.sum(total, 1) * fixed)[:, None], sums)
                    add_whole(sums_of + slot[:, None], sums.to(tl.int64), lane < PER_ROW, DIRECT)
            if pictured:
                if SPLIT:
                    whole = four(acc_0, acc_1, acc_2, acc_3)
                else:
                    whole = two(acc_0, acc_2)
                if WANT_RECEIVED:
                    # To memory, without waiting: kept in registers, they would push others out of the loop over tiles.
                    # The program is alone with its columns, so the order is always the same.
                    of_map = RECEIVED + map_id * keys
                    tl.atomic_add(of_map + side, tl.sum(whole, 0), mask=side < last_column, sem="relaxed")
                if WANT_SUMS:
                    to_pixel = first_chunk * APART + chunk * APART + tl.arange(0, APART)
                    for part in tl.range(first_pixel, last_pixel, AT_ONCE):
                        found = tl.zeros([BM if PARTS == 2 else HALF, AT_ONCE], tl.float32)
                        found = pooled(found, acc_0, pixel_0, part, AT_ONCE, PARTS)
                        found = pooled(found, acc_2, pixel_2, part, AT_ONCE, PARTS)
                        if SPLIT:
                            found = pooled(found, acc_1, pixel_1, part, AT_ONCE, PARTS)
                            found = pooled(found, acc_3, pixel_3, part, AT_ONCE, PARTS)
                        if PARTS == 2:
                            found = fold(found, BM, AT_ONCE)
                        # Of eight rows that a warp has, and the next warp's eight, of the same pixels.
                        found = tl.reshape(found, [APART // 8, HALF // APART, 8, AT_ONCE])
                        found = tl.reshape(tl.sum(found, 1), [APART, AT_ONCE])
                        beside = part + tl.arange(0, AT_ONCE)
                        ok = (to_pixel < row_bins)[:, None] & (beside < last_pixel)[None, :]
                        to_cell = pixels_of + to_pixel.to(tl.int64)[:, None] * column_bins + beside[None, :]
                        add_up(to_cell, found, AS_FLOATS, pixel_unit, fixed, ok, DIRECT)
                if WANT_MAXIMA:
                    f = tl.arange(0, HALF)
                    to_pixel = first_chunk * APART + chunk * APART + f // (4 * TAKEN) * 8 + f % 8
                    for part in tl.range(first_pixel, last_pixel):
                        top = tl.max(tl.where((pixel == part)[None, :], whole, 0.0), 1)
                        to_cell = pixels_of + to_pixel.to(tl.int64) * column_bins + part
                        bits = top.to(tl.int32, bitcast=True)
                        tl.atomic_max(to_cell, bits, mask=(to_pixel < row_bins) & (bits > 0), sem="relaxed")
            else:
                received_0, received_1, received_2, received_3 = acc_0, acc_1, acc_2, acc_3
    if WANT_RECEIVED and not pictured:
        of_map = RECEIVED + map_id * keys
        found = two(received_0, received_2)
        if SPLIT:
            found = four(received_0, received_1, received_2, received_3)
        found = tl.sum(found, 0)
        tl.store(of_map + side, found, mask=side < last_column)
