"""What one program of the pass over the map does on a GPU: the kernel of `map_pass`.

A program owns two blocks of columns, left and right, and walks over the rows that see them, tile by tile; each tile of
q is fetched once for both. What each column got is added up element by element. For a picture a tile takes a few rows
of each of several pixels, the next tile the next rows of the same pixels; when all rows of these pixels are through (a
chunk) the sums of columns become sums of pixels by a small product, go to memory, and are added to what each key
received. The sums of a row lie within four threads of a warp. All that leaves a tile goes to memory by atomic additions
of whole numbers (fixed point), atomic minima and maxima: the same bits in any order.

Columns are as they are; rows of a picture are counted in slots (`layout`). So nothing here depends on how long a text
is, or how many pixels there are.
"""

from __future__ import annotations

import triton.language as tl

from sightline.kernels.launch import kernel
from sightline.kernels.map_tile import (
    HIDDEN,
    add_up,
    away,
    by_thread,
    fold,
    fold_peaks,
    in_order,
    in_order_2,
    keys_of_block,
    logs,
    pooled,
    spread,
    tile_at,
)


@kernel(unaligned=("SLOPES", "TABLE_PTR", "BIAS_PTR"))
def program(
    Q, K, Q_TMA, L, REST, LARGE, FIRST, STOP, SEEN, SLOPES, TABLE_PTR, BIAS_PTR, WEIGHTS,
    ROW_SUMS, LARGEST, RECEIVED, PIXELS, ORDER, COLUMN_PIXELS,
    q_map: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    interval_batch: tl.int64, seen_batch: tl.int64,
    table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64, table_column: tl.int64,
    bias_batch: tl.int64, bias_head: tl.int64, bias_row: tl.int64, bias_column: tl.int64,
    first_map: tl.int32, heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32,
    scale2: tl.float32, cap2: tl.float32, fixed: tl.float32, fixed_entropy: tl.float32, fixed_distance: tl.float32,
    pixel_unit: tl.float32, bins: tl.int32, bin_parts: tl.int32,
    slots: tl.int32, row_start: tl.int32, row_length: tl.int32, row_slots: tl.int32, row_bins: tl.int32,
    tiles_per_chunk: tl.int32, column_start: tl.int32, column_length: tl.int32, column_bins: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TAKEN: tl.constexpr, TMA: tl.constexpr,
    STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WANT_ENTROPY: tl.constexpr, WANT_LARGEST: tl.constexpr, WANT_DISTANCE: tl.constexpr, WANT_TOTAL: tl.constexpr,
    WANT_RECEIVED: tl.constexpr, WEIGHTED: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_MAXIMA: tl.constexpr,
    AS_FLOATS: tl.constexpr, RESTED: tl.constexpr, BINNED: tl.constexpr, PER_ROW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2
    APART: tl.constexpr = BM // TAKEN  # pixels that a tile has rows of
    AT_ONCE: tl.constexpr = 16  # pixels across that are made at once
    PARTS: tl.constexpr = 0 if not TMA else 3 if PRECISION == "tf32x3" else 2  # that a sum is cut into
    # All maps' first columns come first: under a causal mask they are the longest work.
    own = tl.program_id(0)
    map_id = (first_map + own).to(tl.int64)
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
    begin, full_begin, across_begin = tl.load(seen), tl.load(seen + 1), tl.load(seen + 2)
    across_end, full_end, end = tl.load(seen + 3), tl.load(seen + 4), tl.load(seen + 5)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    bias = BIAS_PTR + b * bias_batch + h * bias_head
    pixels_of = PIXELS + map_id * row_bins * column_bins
    first_pixel, last_pixel, pixel_0, pixel_1 = 0, 0, inner_0, inner_1
    if WANT_SUMS or WANT_MAXIMA:
        pixel_0 = tl.load(COLUMN_PIXELS + inner_0, mask=column_0_ok, other=-1)
        pixel_1 = tl.load(COLUMN_PIXELS + inner_1, mask=column_1_ok, other=-1)
        first_pixel = tl.load(COLUMN_PIXELS + left)
        last_pixel = tl.load(COLUMN_PIXELS + tl.minimum(left + 2 * BN, column_length) - 1) + 1
    plain: tl.constexpr = not TABLE  # a table must be looked at in every tile
    pictured: tl.constexpr = WANT_SUMS or WANT_MAXIMA
    mixed: tl.constexpr = pictured
    summed: tl.constexpr = WANT_DISTANCE or WANT_TOTAL
    added: tl.constexpr = WANT_RECEIVED or WANT_SUMS
    dims = tl.arange(0, DIM)
    last_slot = slots if pictured else row_length
    slots_at = map_id * slots
    lse_of = L + slots_at
    # The sums of a row stand next to each other, those that are wanted.
    entropy_of = ROW_SUMS + slots_at * PER_ROW
    distance_of = entropy_of + (1 if WANT_ENTROPY else 0)
    total_of = distance_of + (1 if WANT_DISTANCE else 0)
    largest_of = LARGEST + slots_at * bins
    received_0 = tl.zeros([HALF, BN], tl.float32)
    received_1 = tl.zeros([HALF, BN], tl.float32)
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
            acc_0, acc_1 = received_0, received_1
            chunk, slot_0, row_0 = 0, r, r
            if pictured:
                acc_0, acc_1 = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
                first_step = spread(round, rounds, block) * turns
                chunk = tile_at(first_step, above, across, at_first, at_second, full_end, phase == 0) // tiles_per_chunk
                # Rows r and r + 8 of 16 are of the same pixel, and 8 rows after one another of 8 pixels.
                slot_0 = (chunk * APART + r // (8 * TAKEN) * 8 + r % 8) * row_slots + r // 8 % TAKEN
                row_0 = tl.load(ORDER + slot_0)
            for turn in tl.range(0, turns):
                tile = 0
                if pictured:
                    slot = slot_0 + turn * TAKEN
                else:
                    step = spread(turn, turns, block)
                    tile = tile_at(step, above, across, at_first, at_second, full_end, phase == 0)
                    slot = tile * BM + r
                # Of a slot without a row the lse is such that it weighs nothing; it may have any row.
                row = tl.minimum(row_0 + turn * TAKEN if pictured else row_start + slot, queries - 1)
                row = tl.maximum(row, 0) if pictured else row
                at_row = map_id * queries + row
                if TMA:
                    if pictured:
                        q = Q_TMA.load([own, chunk * (APART // 8), turn * TAKEN, 0, 0])
                    else:
                        q = Q_TMA.load([own, 0, tile * BM, 0, 0])
                    q = q.reshape(BM, DIM)
                else:
                    q = tl.load(
                        Q + own * (q_map * 8) + slot.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :],
                        mask=(slot < last_slot)[:, None] & (dims[None, :] < D), other=0.0,
                    )  # fmt: skip
                lse2 = tl.load(lse_of + slot)
                first, limit = row, row * 0 + last_column
                if careful:
                    if INTERVALS:
                        limit = tl.minimum(tl.load(STOP + b * interval_batch + row), last_column)
                    if STARTS:
                        first = tl.load(FIRST + b * interval_batch + row)
                    # The row of a slot without one is another's: it may see what is not finite.
                    limit = tl.where(lse2 > -HIDDEN / 2, 0, limit)
                # Sums of rows go to memory in the order of the slots.
                to = in_order(slot, mixed, BM, TAKEN)
                place = row + (keys - queries)
                rest = lse2
                if RESTED:
                    rest = tl.load(REST + at_row)
                w = lse2
                if WEIGHTED:
                    w = tl.load(WEIGHTS + at_row)

                t = logs(q, k_0, lse2, row, place, column_start + left, column_0,
                          column_0_ok, first, limit, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                if RESTED:
                    t = t - rest[:, None]
                p = tl.exp2(t)
                if WANT_LARGEST:
                    nearest = tl.max(by_thread(t, BM, BN), 2)
                if WANT_ENTROPY:
                    chaos = tl.sum(by_thread(p * t, BM, BN), 2)
                if summed:
                    parts_0 = tl.sum(by_thread(p, BM, BN), 2)
                if WANT_DISTANCE:
                    far = away(p, parts_0, place, column_0, column_start + left, phase == 1 and plain, BM, BN)
                if WEIGHTED:
                    p = p * w[:, None]
                if added:
                    acc_0 += fold(p, BM, BN)
                if WANT_MAXIMA:
                    acc_0 = tl.maximum(acc_0, fold_peaks(p, BM, BN))

                t = logs(q, k_1, lse2, row, place, column_start + right, column_1,
                          column_1_ok, first, limit, slope, table, bias,
                          scale2, cap2, table_row, table_column, bias_row, bias_column,
                          careful, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                if RESTED:
                    t = t - rest[:, None]
                p = tl.exp2(t)
                if WANT_LARGEST:
                    near = tl.max(by_thread(t, BM, BN), 2)
                    # log2 of a weight is at most 0; negated, a float orders like its bits.
                    if BINNED:
                        least = tl.maximum(-tl.join(tl.max(nearest, 1), tl.max(near, 1)), 0.0)
                        least = in_order_2(least, mixed, BM, TAKEN)
                        least_ok = least < 1.0e29
                        bin = (block * 2 + tl.arange(0, 2)) // bin_parts
                        to_bin = largest_of + (bin * slots)[None, :] + to[:, None]
                        bits = least.to(tl.int32, bitcast=True)
                        if bin_parts == 1:
                            tl.store(to_bin, tl.where(least_ok, bits, 0x7FFFFFFF))
                        else:
                            tl.atomic_min(to_bin, bits, mask=least_ok, sem="relaxed")
                    else:
                        least = tl.maximum(-tl.max(tl.maximum(nearest, near), 1), 0.0)
                        least = in_order(least, mixed, BM, TAKEN)
                        bits = least.to(tl.int32, bitcast=True)
                        tl.atomic_min(largest_of + to, bits, mask=least < 1.0e29, sem="relaxed")
                if WANT_ENTROPY:
                    chaos = tl.sum(chaos + tl.sum(by_thread(p * t, BM, BN), 2), 1)
                if summed:
                    parts_1 = tl.sum(by_thread(p, BM, BN), 2)
                if WANT_DISTANCE:
                    far += away(p, parts_1, place, column_1, column_start + right, phase == 1 and plain, BM, BN)
                    far = tl.abs(tl.sum(far, 1))
                if WANT_ENTROPY and WANT_DISTANCE:
                    # Two sums in one go: getting a row's sum to the thread that adds it costs more than the sum.
                    both = tl.join(chaos * fixed_entropy, far * fixed_distance).to(tl.int64)
                    both = in_order_2(both, mixed, BM, TAKEN)
                    tl.atomic_add(entropy_of + to[:, None] * PER_ROW + tl.arange(0, 2)[None, :], both, sem="relaxed")
                elif WANT_ENTROPY:
                    found = in_order((chaos * fixed_entropy).to(tl.int64), mixed, BM, TAKEN)
                    tl.atomic_add(entropy_of + to * PER_ROW, found, sem="relaxed")
                elif WANT_DISTANCE:
                    found = in_order((far * fixed_distance).to(tl.int64), mixed, BM, TAKEN)
                    tl.atomic_add(distance_of + to * PER_ROW, found, sem="relaxed")
                if WANT_TOTAL:
                    total = tl.sum(parts_0 + parts_1, 1) * fixed
                    total = in_order(total.to(tl.int64), mixed, BM, TAKEN)
                    tl.atomic_add(total_of + to * PER_ROW, total, sem="relaxed")
                if WEIGHTED:
                    p = p * w[:, None]
                if added:
                    acc_1 += fold(p, BM, BN)
                if WANT_MAXIMA:
                    acc_1 = tl.maximum(acc_1, fold_peaks(p, BM, BN))
            if pictured:
                if WANT_RECEIVED:
                    # To memory, without waiting: kept in registers, they would push others out of the loop over tiles.
                    # The program is alone with its columns, so the order is always the same.
                    of_map = RECEIVED + map_id * keys
                    tl.atomic_add(of_map + column_0, tl.sum(acc_0, 0), mask=column_0_ok, sem="relaxed")
                    tl.atomic_add(of_map + column_1, tl.sum(acc_1, 0), mask=column_1_ok, sem="relaxed")
                if WANT_SUMS:
                    to_pixel = chunk * APART + tl.arange(0, APART)
                    for part in tl.range(first_pixel, last_pixel, AT_ONCE):
                        found = pooled(acc_0, acc_1, pixel_0, pixel_1, part, AT_ONCE, PARTS)
                        # Of eight rows that a warp has, and the next warp's eight, of the same pixels.
                        found = tl.reshape(found, [APART // 8, HALF // APART, 8, AT_ONCE])
                        found = tl.reshape(tl.sum(found, 1), [APART, AT_ONCE])
                        beside = part + tl.arange(0, AT_ONCE)
                        ok = (to_pixel < row_bins)[:, None] & (beside < last_pixel)[None, :]
                        to_cell = pixels_of + to_pixel.to(tl.int64)[:, None] * column_bins + beside[None, :]
                        add_up(to_cell, found, AS_FLOATS, pixel_unit, fixed, ok)
                if WANT_MAXIMA:
                    f = tl.arange(0, HALF)
                    to_pixel = chunk * APART + f // (4 * TAKEN) * 8 + f % 8
                    for part in tl.range(first_pixel, last_pixel):
                        top = tl.max(tl.where((pixel_0 == part)[None, :], acc_0, 0.0), 1)
                        top = tl.maximum(top, tl.max(tl.where((pixel_1 == part)[None, :], acc_1, 0.0), 1))
                        to_cell = pixels_of + to_pixel.to(tl.int64) * column_bins + part
                        bits = top.to(tl.int32, bitcast=True)
                        tl.atomic_max(to_cell, bits, mask=(to_pixel < row_bins) & (bits > 0), sem="relaxed")
            else:
                received_0, received_1 = acc_0, acc_1
    if WANT_RECEIVED and not pictured:
        tl.store(RECEIVED + map_id * keys + column_0, tl.sum(received_0, 0), mask=column_0_ok)
        tl.store(RECEIVED + map_id * keys + column_1, tl.sum(received_1, 0), mask=column_1_ok)
