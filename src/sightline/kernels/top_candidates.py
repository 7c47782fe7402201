"""Kernels that look at a part of the map again for its strongest keys: what `top_keys` does for each list of rows.

`gather` takes the rows of a list, wherever they are, and the keys of one bin; `near` takes rows next to each other, and
all keys they see, which are few.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sightline.kernels.launch import kernel
from sightline.kernels.map_tile import HIDDEN, by_thread, keys_of_block, logs

# The largest key there could be, for places that have none.
NO_KEY = tl.constexpr(0x7FFFFFFF)
# The bound of a row that sees few columns: others are negative.
NO_BOUND = tl.constexpr(1.0)
# Less than any logarithm packed with a key.
NOTHING_LEFT = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
# The other bits of an unsigned x are x ^ ALL_BITS, the same code as ~x: the interpreter of Triton 3.7 cannot do that.
ALL_BITS = tl.constexpr(0xFFFFFFFF)


@kernel(unaligned=("SLOPES", "TABLE_PTR"))
def gather(
    Q, K, L, REST, FIRST, STOP, SLOPES, TABLE_PTR, BOUND, COUNTS, BEGINS, ENDS, LIST, LOGS, OFFSETS,
    OVER, OVER_COUNTS,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    interval_batch: tl.int64, table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64,
    table_column: tl.int64,
    heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, scale2: tl.float32, cap2: tl.float32,
    first_row: tl.int32, rows: tl.int32, width: tl.int32, bins: tl.int32, units: tl.int32, shares: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr,
    PARTS: tl.constexpr, FEW: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr,
    TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The strongest keys of one bin, for some of the rows in its list.

    With FEW the bin is a single block of keys, and each of the four threads that share a row has room for a quarter of
    the places: rows for which that is not enough go to a list of their own, for a second launch without FEW.
    """
    UNIT: tl.constexpr = PARTS * BM
    PAIR: tl.constexpr = 2 if N > 4 else 1  # places that are written at once
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    if FEW:
        unit = tl.program_id(0)
        bin = tl.sum((tl.load(ENDS + map_id * BINS + tl.arange(0, BINS)) <= unit).to(tl.int32), 0)
    else:
        bin = tl.program_id(0) // shares
    if bin < bins:
        begin, end = bin * width, tl.minimum((bin + 1) * width, keys)
        keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
        left = tl.load(COUNTS + map_id * BINS + bin)
        list = (map_id * units + tl.load(BEGINS + map_id * BINS + bin)) * UNIT
        slope = 0.0
        if ALIBI:
            slope = tl.load(SLOPES + h) * 1.4426950408889634
        table = TABLE_PTR + b * table_batch + h * table_head
        dims, lane = tl.arange(0, DIM), tl.arange(0, 4)
        bit = tl.full([1], 1, tl.int32) << tl.arange(0, BN // 4)
        if FEW:
            column = begin + tl.arange(0, BN)
            k = keys_of_block(keys_of, column, column < end, k_row, D, DIM)
            part_0 = (unit - tl.load(BEGINS + map_id * BINS + bin)) * PARTS
            part_end, step = tl.minimum(part_0 + PARTS, (left + BM - 1) // BM), 1
        else:
            part_0, part_end, step = tl.program_id(0) % shares, (left + BM - 1) // BM, shares
        for part in tl.range(part_0, part_end, step):
            inner = part * BM + tl.arange(0, BM)
            row_ok = inner < left
            entry = tl.load(LIST + list + inner, mask=row_ok, other=0)
            row = first_row + entry // N
            q = tl.load(
                Q + b * (q_batch * 8) + h * (q_head * 8) + row.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :],
                mask=row_ok[:, None] & (dims[None, :] < D), other=0.0,
            )  # fmt: skip
            lse2 = tl.load(L + map_id * queries + row, mask=row_ok, other=-HIDDEN)
            rest = tl.load(REST + map_id * queries + row, mask=row_ok, other=0.0)
            bound = tl.load(BOUND + map_id * rows + entry // N, mask=row_ok, other=-HIDDEN)
            first, stop = row, row * 0 + keys
            if STARTS:
                first = tl.load(FIRST + b * interval_batch + row, mask=row_ok, other=0)
            if INTERVALS:
                stop = tl.load(STOP + b * interval_batch + row, mask=row_ok, other=0)
            # Columns from here on are hidden, or of another bin.
            limit = tl.where(row_ok, tl.minimum(stop, end), 0)
            place = row + (keys - queries)
            to = (map_id * rows * N + entry)[:, None] * N
            if FEW:
                t = logs(q, k, lse2, row, place, begin, column, column < end, first, limit, slope, table,
                         table, scale2, cap2, table_row, table_column, 0, 0,
                         False, False, TABLE, False, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                t = t - rest[:, None]
                # Of each thread's columns those above the bound, as bits: seldom more than one or two of a row.
                mine = by_thread(t, BM, BN)
                word = tl.sum(tl.where(mine > bound[:, None, None], bit[None, None, :], 0), 2)
                word = word.to(tl.uint32) & _below(limit - begin, lane)
                if STARTS:
                    word = word & (_below(first - begin, lane) ^ ALL_BITS)
                places = to[:, :, None] + (lane * (N // 4))[None, :, None] + tl.arange(0, PAIR)[None, None, :]
                for turn in tl.static_range(0, N // 4, 2):
                    if turn == 0:
                        word = take(mine, word, bit, lane, LOGS + places, OFFSETS + places, row_ok, PAIR)
                    elif tl.max(tl.max(word, 1), 0) > 0:
                        at = places + turn
                        word = take(mine, word, bit, lane, LOGS + at, OFFSETS + at, row_ok, PAIR)
                    else:
                        tl.store(LOGS + places + turn, HIDDEN, mask=row_ok[:, None, None])
                over = tl.max(word, 1) > 0
                at = tl.atomic_add(OVER_COUNTS + map_id * BINS + bin + entry * 0, 1, mask=over, sem="relaxed")
                tl.store(OVER + list + at, entry, mask=over)
            else:
                best, best_key = _none(bound, BM, N)
                for block in tl.range(0, (end - begin + BN - 1) // BN):
                    start = begin + block * BN
                    column = start + tl.arange(0, BN)
                    k = keys_of_block(keys_of, column, column < end, k_row, D, DIM)
                    t = _seen(q, k, lse2, rest, row, place, start, column, first, limit, slope, table, scale2,
                              cap2, table_row, table_column, STARTS, TABLE, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                    best, best_key = _insert(best, best_key, t, column)
                to_all = to + tl.arange(0, N)[None, :]
                some = best_key < keys
                tl.store(LOGS + to_all, tl.where(some, best, HIDDEN), mask=row_ok[:, None])
                tl.store(OFFSETS + to_all, tl.where(some, best_key - begin, 0), mask=row_ok[:, None])


@kernel(unaligned=("SLOPES", "TABLE_PTR"))
def near(
    Q, K, L, REST, FIRST, STOP, SLOPES, TABLE_PTR, BOUND, TOP_KEYS, TOP_WEIGHTS,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    interval_batch: tl.int64, table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64,
    table_column: tl.int64,
    heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, scale2: tl.float32, cap2: tl.float32,
    first_row: tl.int32, rows: tl.int32, n: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, N: tl.constexpr, STARTS: tl.constexpr,
    INTERVALS: tl.constexpr, TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The strongest keys of those rows that see few columns."""
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    row = first_row + inner
    row_ok = tl.load(BOUND + map_id * rows + inner, mask=inner < rows, other=HIDDEN) == NO_BOUND
    if tl.max(row_ok.to(tl.int32), 0) > 0:
        dims = tl.arange(0, DIM)
        q = tl.load(
            Q + b * (q_batch * 8) + h * (q_head * 8) + row.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :],
            mask=row_ok[:, None] & (dims[None, :] < D), other=0.0,
        )  # fmt: skip
        lse2 = tl.load(L + map_id * queries + row, mask=row_ok, other=-HIDDEN)
        rest = tl.load(REST + map_id * queries + row, mask=row_ok, other=0.0)
        first, stop = row * 0, row * 0 + keys
        if STARTS:
            first = tl.load(FIRST + b * interval_batch + row, mask=row_ok, other=keys)
        if INTERVALS:
            stop = tl.load(STOP + b * interval_batch + row, mask=row_ok, other=0)
        limit = tl.where(row_ok, stop, 0)
        slope = 0.0
        if ALIBI:
            slope = tl.load(SLOPES + h) * 1.4426950408889634
        table = TABLE_PTR + b * table_batch + h * table_head
        keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
        best, best_key = _none(tl.full([BM], HIDDEN / 2, tl.float32), BM, N)
        end = tl.max(limit, 0)
        for begin in tl.range(tl.min(first, 0), end, BN):
            column = begin + tl.arange(0, BN)
            k = keys_of_block(keys_of, column, column < end, k_row, D, DIM)
            t = _seen(q, k, lse2, rest, tl.minimum(row, queries - 1), row + (keys - queries), begin, column, first,
                      limit, slope, table, scale2, cap2, table_row, table_column, STARTS, TABLE, ALIBI, SOFTCAP,
                      PRECISION)  # fmt: skip
            best, best_key = _insert(best, best_key, t, column)
        packed = pack(tl.where(best_key < keys, best, HIDDEN), best_key)
        to = (map_id * queries + row) * n
        for j in tl.range(0, n):
            strongest = tl.max(packed, 1)
            packed = tl.where(packed == strongest[:, None], NOTHING_LEFT, packed)
            log, key = unpack(strongest)
            some = log > HIDDEN / 2
            tl.store(TOP_KEYS + to + j, tl.where(some, key, -1), mask=row_ok)
            tl.store(TOP_WEIGHTS + to + j, tl.where(some, tl.exp2(log), 0.0), mask=row_ok)


@triton.jit
def _seen(
    q, k, lse2, rest, row, place, begin, column, first, limit, slope, table, scale2, cap2, table_row,
    table_column,
    STARTS: tl.constexpr, TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The logarithms of a tile, hidden outside of what each row sees."""
    t = logs(q, k, lse2, row, place, begin, column, column < tl.max(limit, 0), first, limit, slope, table,
             table, scale2, cap2, table_row, table_column, 0, 0,
             True, STARTS, TABLE, False, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
    t = tl.where(t > HIDDEN / 2, t - rest[:, None], HIDDEN)
    return t


@triton.jit
def take(mine, word, bit, lane, LOGS, OFFSETS, row_ok, PAIR: tl.constexpr):
    """Write down one or two of each thread's columns, and give the bits of those that are left."""
    log, offset, word = _lowest(mine, word, bit, lane)
    if PAIR == 2:
        log_1, offset_1, word = _lowest(mine, word, bit, lane)
        log, offset = tl.join(log, log_1), tl.join(offset, offset_1)
    else:
        log, offset = log[:, :, None], offset[:, :, None]
    tl.store(LOGS, log, mask=row_ok[:, None, None])
    tl.store(OFFSETS, offset, mask=row_ok[:, None, None])
    return word


@triton.jit
def _lowest(mine, word, bit, lane):
    """Of each thread's columns that with the lowest bit: its logarithm, its place in the bin, and the bits left."""
    low = word & ((word ^ ALL_BITS) + 1)
    is_low = bit[None, None, :] == low.to(tl.int32, bitcast=True)[:, :, None]
    log = tl.where(word > 0, tl.sum(tl.where(is_low, mine, 0.0), 2), HIDDEN)
    i = tl.maximum((low.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127, 0)
    return log, 2 * lane[None, :] + i // 2 * 8 + i % 2, word & (low ^ ALL_BITS)


@triton.jit
def _below(limit, lane):
    """For each thread of a row the bits of its columns, 2 l and 2 l + 1 of every eight, that are below a limit."""
    columns = limit[:, None] - 2 * lane[None, :]
    bits = tl.maximum((columns >> 3) * 2 + tl.minimum(columns & 7, 2), 0)
    some = (tl.full([1, 1], 1, tl.uint32) << tl.minimum(bits, 31).to(tl.uint32)) - 1
    return tl.where(bits < 32, some, ALL_BITS)


@triton.jit
def _none(bound, BM: tl.constexpr, N: tl.constexpr):
    """A list of the best so far, which begins with the bound: what is not above it gets no place."""
    best = tl.zeros([BM, N], tl.float32) + bound[:, None]
    best_key = tl.full([BM, N], NO_KEY, tl.int32) - tl.arange(0, N)[None, :]
    return best, best_key


@triton.jit
def _insert(best, best_key, t, column):
    """The best so far, and those of a tile that are better."""
    top = tl.max(t, 1)
    least = tl.min(best, 1)
    while tl.max((top > least).to(tl.int32), 0) > 0:
        key = tl.min(tl.where(t == top[:, None], column[None, :], NO_KEY), 1)
        t = tl.where(column[None, :] == key[:, None], HIDDEN, t)
        # It takes the place of the weakest; of several weakest, of the one with the highest key.
        worst = tl.max(tl.where(best == least[:, None], best_key, -1), 1)
        goes = (best_key == worst[:, None]) & (top > least)[:, None]
        best = tl.where(goes, top[:, None], best)
        best_key = tl.where(goes, key[:, None], best_key)
        top = tl.max(t, 1)
        least = tl.min(best, 1)
    return best, best_key


@triton.jit
def pack(log, key):
    """A logarithm and a key in one number that orders as they do: of equals the lower key is larger."""
    bits = log.to(tl.int32, bitcast=True)
    # Bits of a float order like whole numbers, but for negative ones.
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - key).to(tl.int64)


@triton.jit
def unpack(packed):
    high = (packed >> 32).to(tl.int32)
    log = (high ^ ((high >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    key = 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)
    return log, key
