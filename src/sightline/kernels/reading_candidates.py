"""Kernels that look at a part of the map again for the strongest cells of a reading: see `top_candidates`.

`gather` takes the rows of a list, wherever they are, and the keys of one stretch; `near` takes rows next to each other,
and all keys they see, which are few.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sightline.kernels.launch import kernel
from sightline.kernels.map_tile import HIDDEN, by_thread, keys_of_block
from sightline.kernels.reading_tile import cells, rows_of_tile, values_of_block
from sightline.kernels.top_candidates import NO_KEY, NOTHING_LEFT, pack, take, unpack

# The bound of a row that sees few columns: others are at least 0.
NO_BOUND = tl.constexpr(-1.0)
# The size of a cell that nobody sees: below that of any other.
ABSENT = tl.constexpr(-2.0)


@kernel(unaligned=("LSE", "REST", "ALONG", "SIZES", "FACTORS", "SLOPES", "TABLE_PTR"))
def gather(
    Q, K, G, V, LSE, REST, ALONG, SIZES, FACTORS, FIRST, STOP, SLOPES, TABLE_PTR, BOUND, COUNTS, BEGINS, ENDS, LIST,
    CELLS, OFFSETS, OVER, OVER_COUNTS,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    g_batch: tl.int64, g_head: tl.int64, g_row: tl.int64, v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    interval_batch: tl.int64, table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64,
    table_column: tl.int64,
    first_map: tl.int32, heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, scale2: tl.float32,
    cap2: tl.float32, first_row: tl.int32, rows: tl.int32, width: tl.int32, bins: tl.int32, units: tl.int32,
    shares: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, VDIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    N: tl.constexpr, BINS: tl.constexpr, PARTS: tl.constexpr, FEW: tl.constexpr, OF: tl.constexpr,
    FACTORED: tl.constexpr, RESTED: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, V_PRECISION: tl.constexpr,
):  # fmt: skip
    """The strongest cells of one stretch of columns, for some of the rows in its list; FEW as in `top_candidates`."""
    UNIT: tl.constexpr = PARTS * BM
    PAIR: tl.constexpr = 2 if N > 4 else 1  # places that are written at once
    own = tl.program_id(1).to(tl.int64)
    map_id = own + first_map
    b, h = map_id // heads, map_id % heads
    if FEW:
        unit = tl.program_id(0)
        bin = tl.sum((tl.load(ENDS + own * BINS + tl.arange(0, BINS)) <= unit).to(tl.int32), 0)
    else:
        bin = tl.program_id(0) // shares
    if bin < bins:
        begin, end = bin * width, tl.minimum((bin + 1) * width, keys)
        keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
        values_of = V + b * (v_batch * 8) + (h // groups) * (v_head * 8)
        left = tl.load(COUNTS + own * BINS + bin)
        list = (own * units + tl.load(BEGINS + own * BINS + bin)) * UNIT
        slope = 0.0
        if ALIBI:
            slope = tl.load(SLOPES + h) * 1.4426950408889634
        table = TABLE_PTR + b * table_batch + h * table_head
        lane = tl.arange(0, 4)
        bit = tl.full([1], 1, tl.int32) << tl.arange(0, BN // 4)
        if FEW:
            column = begin + tl.arange(0, BN)
            k = keys_of_block(keys_of, column, column < end, k_row, D, DIM)
            v, size = values_of_block(values_of, SIZES, map_id, column, column < end, v_row, keys, DV, VDIM, OF)
            part_0 = (unit - tl.load(BEGINS + own * BINS + bin)) * PARTS
            part_end, step = tl.minimum(part_0 + PARTS, (left + BM - 1) // BM), 1
        else:
            part_0, part_end, step = tl.program_id(0) % shares, (left + BM - 1) // BM, shares
        for part in tl.range(part_0, part_end, step):
            inner = part * BM + tl.arange(0, BM)
            row_ok = inner < left
            entry = tl.load(LIST + list + inner, mask=row_ok, other=0)
            row = first_row + entry // N
            # Columns from `end` on are of another stretch.
            q, g, lse2, rest, along, factor, first, limit = rows_of_tile(
                Q, G, LSE, REST, ALONG, FACTORS, FIRST, STOP, b, h, map_id, row, row_ok, end,
                q_batch, q_head, q_row, g_batch, g_head, g_row, interval_batch, queries,
                D, DIM, DV, VDIM, OF, FACTORED, RESTED, STARTS, INTERVALS)  # fmt: skip
            bound = tl.load(BOUND + own * rows + entry // N, mask=row_ok, other=-HIDDEN)
            place = row + (keys - queries)
            to = (own * rows * N + entry)[:, None] * N
            if FEW:
                x, _ = cells(q, k, g, v, lse2, rest, along, factor, size, row, place, begin, column, column < end,
                             first, limit, slope, table, table, scale2, cap2, table_row, table_column, 0, 0,
                             True, OF, FACTORED, RESTED, STARTS, TABLE, False, ALIBI, SOFTCAP, PRECISION,
                             V_PRECISION)  # fmt: skip
                # Of each thread's columns those above the bound, as bits: seldom more than one or two of a row.
                mine = by_thread(x, BM, BN)
                word = tl.sum(tl.where(tl.abs(mine) > bound[:, None, None], bit[None, None, :], 0), 2).to(tl.uint32)
                places = to[:, :, None] + (lane * (N // 4))[None, :, None] + tl.arange(0, PAIR)[None, None, :]
                for turn in tl.static_range(0, N // 4, 2):
                    if turn == 0:
                        word = take(mine, word, bit, lane, CELLS + places, OFFSETS + places, row_ok, PAIR)
                    elif tl.max(tl.max(word, 1), 0) > 0:
                        at = places + turn
                        word = take(mine, word, bit, lane, CELLS + at, OFFSETS + at, row_ok, PAIR)
                    else:
                        tl.store(CELLS + places + turn, HIDDEN, mask=row_ok[:, None, None])
                over = tl.max(word, 1) > 0
                at = tl.atomic_add(OVER_COUNTS + own * BINS + bin + entry * 0, 1, mask=over, sem="relaxed")
                tl.store(OVER + list + at, entry, mask=over)
            else:
                best, best_code = _none(bound, BM, N)
                for block in tl.range(0, (end - begin + BN - 1) // BN):
                    start = begin + block * BN
                    column = start + tl.arange(0, BN)
                    k = keys_of_block(keys_of, column, column < end, k_row, D, DIM)
                    v, size = values_of_block(values_of, SIZES, map_id, column, column < end, v_row, keys, DV, VDIM, OF)
                    x, _ = cells(q, k, g, v, lse2, rest, along, factor, size, row, place, start, column, column < end,
                                 first, limit, slope, table, table, scale2, cap2, table_row, table_column, 0, 0,
                                 True, OF, FACTORED, RESTED, STARTS, TABLE, False, ALIBI, SOFTCAP, PRECISION,
                                 V_PRECISION)  # fmt: skip
                    best, best_code = _insert(best, best_code, tl.abs(x), _code(column, x))
                to_all = to + tl.arange(0, N)[None, :]
                some = (best_code >> 1) < keys
                cell = tl.where((best_code & 1) == 1, -best, best)
                tl.store(CELLS + to_all, tl.where(some, cell, HIDDEN), mask=row_ok[:, None])
                tl.store(OFFSETS + to_all, tl.where(some, (best_code >> 1) - begin, 0), mask=row_ok[:, None])


@kernel(unaligned=("LSE", "REST", "ALONG", "SIZES", "FACTORS", "SLOPES", "TABLE_PTR"))
def near(
    Q, K, G, V, LSE, REST, ALONG, SIZES, FACTORS, FIRST, STOP, SLOPES, TABLE_PTR, BOUND, TOP_KEYS, TOP_CELLS,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    g_batch: tl.int64, g_head: tl.int64, g_row: tl.int64, v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    interval_batch: tl.int64, table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64,
    table_column: tl.int64,
    first_map: tl.int32, heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, scale2: tl.float32,
    cap2: tl.float32, first_row: tl.int32, rows: tl.int32, n: tl.int32, width: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, VDIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    N: tl.constexpr, OF: tl.constexpr, FACTORED: tl.constexpr, RESTED: tl.constexpr, STARTS: tl.constexpr,
    INTERVALS: tl.constexpr, TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr, V_PRECISION: tl.constexpr,
):  # fmt: skip
    """The strongest cells of those rows that see few columns: under a table that is known by what they have seen."""
    own = tl.program_id(1).to(tl.int64)
    map_id = own + first_map
    b, h = map_id // heads, map_id % heads
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    row = first_row + inner
    if TABLE:
        row_ok = tl.load(BOUND + own * rows + inner, mask=inner < rows, other=0.0) == NO_BOUND
    else:
        row_ok = inner < rows
        seen = inner * 0 + keys
        if INTERVALS:
            seen = tl.load(STOP + b * interval_batch + row, mask=row_ok, other=0)
        if STARTS:
            seen -= tl.load(FIRST + b * interval_batch + row, mask=row_ok, other=0)
        row_ok = row_ok & (seen <= n * width)
    if tl.max(row_ok.to(tl.int32), 0) > 0:
        q, g, lse2, rest, along, factor, first, limit = rows_of_tile(
            Q, G, LSE, REST, ALONG, FACTORS, FIRST, STOP, b, h, map_id, row, row_ok, keys,
            q_batch, q_head, q_row, g_batch, g_head, g_row, interval_batch, queries,
            D, DIM, DV, VDIM, OF, FACTORED, RESTED, STARTS, INTERVALS)  # fmt: skip
        slope = 0.0
        if ALIBI:
            slope = tl.load(SLOPES + h) * 1.4426950408889634
        table = TABLE_PTR + b * table_batch + h * table_head
        keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
        values_of = V + b * (v_batch * 8) + (h // groups) * (v_head * 8)
        best, best_code = _none(tl.zeros([BM], tl.float32) - 1.0, BM, N)
        end = tl.max(limit, 0)
        for begin in tl.range(tl.min(tl.where(limit > 0, first, keys), 0), end, BN):
            column = begin + tl.arange(0, BN)
            k = keys_of_block(keys_of, column, column < end, k_row, D, DIM)
            v, size = values_of_block(values_of, SIZES, map_id, column, column < end, v_row, keys, DV, VDIM, OF)
            x, t = cells(q, k, g, v, lse2, rest, along, factor, size, tl.minimum(row, queries - 1),
                         row + (keys - queries), begin, column, column < end, first, limit, slope, table, table,
                         scale2, cap2, table_row, table_column, 0, 0,
                         True, OF, FACTORED, RESTED, STARTS, TABLE, False, ALIBI, SOFTCAP, PRECISION,
                         V_PRECISION)  # fmt: skip
            best, best_code = _insert(best, best_code, tl.where(t > HIDDEN / 2, tl.abs(x), ABSENT), _code(column, x))
        packed = pack(best, best_code)
        to = (map_id * queries + row) * n
        for j in tl.range(0, n):
            strongest = tl.max(packed, 1)
            packed = tl.where(packed == strongest[:, None], NOTHING_LEFT, packed)
            size, code = unpack(strongest)
            there = size >= 0
            tl.store(TOP_KEYS + to + j, tl.where(there, code >> 1, -1), mask=row_ok)
            cell = tl.where((code & 1) == 1, -size, size)
            tl.store(TOP_CELLS + to + j, tl.where(there, cell, 0.0), mask=row_ok)


@triton.jit
def _code(column, x):
    """A key and whether its cell is below 0, as one number that orders like the key."""
    return column[None, :] * 2 + (x < 0).to(tl.int32)


@triton.jit
def _none(bound, BM: tl.constexpr, N: tl.constexpr):
    """A list of the best so far, which begins with the bound: what is not above it gets no place."""
    best = tl.zeros([BM, N], tl.float32) + bound[:, None]
    best_code = tl.full([BM, N], NO_KEY, tl.int32) - tl.arange(0, N)[None, :]
    return best, best_code


@triton.jit
def _insert(best, best_code, size, code):
    """The best so far, and those of a tile that are larger."""
    top = tl.max(size, 1)
    least = tl.min(best, 1)
    while tl.max((top > least).to(tl.int32), 0) > 0:
        one = tl.min(tl.where(size == top[:, None], code, NO_KEY), 1)
        size = tl.where(code == one[:, None], ABSENT, size)
        # It takes the place of the weakest; of several weakest, of the one with the highest key.
        worst = tl.max(tl.where(best == least[:, None], best_code, -1), 1)
        goes = (best_code == worst[:, None]) & (top > least)[:, None]
        best = tl.where(goes, top[:, None], best)
        best_code = tl.where(goes, one[:, None], best_code)
        top = tl.max(size, 1)
        least = tl.min(best, 1)
    return best, best_code
