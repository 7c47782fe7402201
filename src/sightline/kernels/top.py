"""The strongest keys of every row on a GPU, without a second look at the whole map.

A pass over the map (`look`) leaves the largest weight of every row in each of many stretches of columns (bins). The n
strongest keys of a row lie in the n bins with the largest of these: a bin outside them holds nothing that n other keys
do not beat. So each row has n small places to look at, and each bin has a list of the rows that want to look there.
Rows of one list are gathered into tiles, multiplied with the keys of their bin, and the best are taken out one after
the other, seldom more than two or three of a bin, because all that counts is at least as large as the n-th of the
bins' maxima. At last each row merges what its bins gave.

Lists are filled in any order, by atomic counters, but a row's entries go to its own places: the same bits every time.

Limits: as `look`, without a bias that is a tensor; at most 32 keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.look import LOG2E
from sightline.kernels.tile import HIDDEN, by_thread, keys_of_block, logs

# The most keys per row that the kernels can find.
MOST = 32
# Tiles of rows that a program does for the keys of one bin.
PARTS = 4

# The largest key there could be, for places that have none.
NO_KEY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _choose(
    LARGEST, FIRST, STOP, EDGES, CHOSEN, POSITION, BOUND, LEAST, COUNTS, heads, interval_batch, queries, first_row,
    rows, n, BM: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr, APART: tl.constexpr, STARTS: tl.constexpr,
    INTERVALS: tl.constexpr,
):  # fmt: skip
    """The n bins with the largest maxima of each row, its place in their lists, and the bound they give."""
    map_id = tl.program_id(1).to(tl.int64)
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = inner < rows
    bins = tl.arange(0, BINS)
    # Maxima are negated logarithms, which order like their bits: the least is the strongest.
    at = (map_id * BINS + bins)[:, None] * queries + (first_row + inner)[None, :]
    # Bins that a row does not see, or without a column, were perhaps never written.
    begin, end = tl.load(EDGES + bins), tl.load(EDGES + bins + 1)
    seen = ok[None, :] & (begin < end)[:, None]
    interval = map_id // heads * interval_batch + first_row + inner
    if INTERVALS:
        stop = tl.load(STOP + interval, mask=ok, other=0)
        seen = seen & (begin[:, None] < stop[None, :])
    if STARTS:
        first = tl.load(FIRST + interval, mask=ok, other=0)
        seen = seen & (end[:, None] > first[None, :])
    maxima = tl.load(LARGEST + at, mask=seen, other=NO_KEY)
    tl.store(LEAST + map_id * queries + first_row + inner, tl.min(maxima, 0), mask=ok)
    for j in tl.range(0, n):
        least = tl.min(maxima, 0)
        best = tl.min(tl.where(maxima == least[None, :], bins[:, None], BINS), 0)
        some = ok & (least != NO_KEY)
        position = tl.atomic_add(COUNTS + (map_id * BINS + best) * APART, 1, mask=some, sem="relaxed")
        to = (map_id * rows + inner) * N + j
        tl.store(CHOSEN + to, best, mask=some)
        tl.store(POSITION + to, position, mask=some)
        if j == n - 1:
            # Scores computed again may differ in the last bit.
            reached = -least.to(tl.float32, bitcast=True) * 1.00001 - 1.0e-5
            tl.store(BOUND + map_id * rows + inner, tl.where(least == NO_KEY, HIDDEN / 2, reached), mask=ok)
        maxima = tl.where(bins[:, None] == best[None, :], NO_KEY, maxima)


@triton.jit
def _list(CHOSEN, POSITION, BEGINS, LIST, entries, room, UNIT: tl.constexpr, AT_ONCE: tl.constexpr,
          BINS: tl.constexpr):  # fmt: skip
    """Write each row's entries to the lists of its bins."""
    map_id = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    ok = entry < entries
    bin = tl.load(CHOSEN + map_id * entries + entry, mask=ok, other=-1)
    ok = bin >= 0
    start = tl.load(BEGINS + map_id * BINS + bin, mask=ok, other=0).to(tl.int32) * UNIT
    position = tl.load(POSITION + map_id * entries + entry, mask=ok, other=0)
    tl.store(LIST + map_id * room + start + position, entry, mask=ok)


@triton.jit
def _gather(
    Q, K, L, FIRST, STOP, SLOPES, TABLE_PTR, BOUND, COUNTS, BEGINS, ENDS, LIST, EDGES, LOGS, KEYS, OVER, OVER_COUNTS,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, interval_batch,
    table_batch, table_head, table_row, table_column,
    heads, groups, queries, keys, scale2, cap2, first_row, rows, units,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr,
    PARTS: tl.constexpr, FEW: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The strongest keys of one bin, for some of the rows in its list.

    With FEW the bin is a single block of keys, and each of the four threads that share a row has room for a quarter of
    the places: rows for which that is not enough go to a list of their own, for a second launch without FEW.
    """
    UNIT: tl.constexpr = PARTS * BM
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    unit = tl.program_id(0)
    bin = tl.sum((tl.load(ENDS + map_id * BINS + tl.arange(0, BINS)) <= unit).to(tl.int32), 0)
    if bin < BINS:
        begin, end = tl.load(EDGES + bin), tl.load(EDGES + bin + 1)
        keys_of = K + b * k_batch + (h // groups) * k_head
        column = begin + tl.arange(0, BN)
        if FEW:
            k = keys_of_block(keys_of, column, column < end, k_row, k_dim, D, DIM)
        left = tl.load(COUNTS + map_id * BINS + bin)
        first_unit = tl.load(BEGINS + map_id * BINS + bin).to(tl.int32)
        left -= (unit - first_unit) * UNIT
        slope = 0.0
        if ALIBI:
            slope = tl.load(SLOPES + h) * 1.4426950408889634
        table = TABLE_PTR + b * table_batch + h * table_head
        dims, slot, lane = tl.arange(0, DIM), tl.arange(0, N), tl.arange(0, 4)
        bit = tl.full([1], 1, tl.int32) << tl.arange(0, BN // 4)
        for part in tl.range(0, (tl.minimum(left, UNIT) + BM - 1) // BM):
            inner = part * BM + tl.arange(0, BM)
            row_ok = inner < left
            entry = tl.load(LIST + (map_id * units + unit) * UNIT + inner, mask=row_ok, other=0)
            row = first_row + entry // N
            q = tl.load(
                Q + b * q_batch + h * q_head + row.to(tl.int64)[:, None] * q_row + dims[None, :] * q_dim,
                mask=row_ok[:, None] & (dims[None, :] < D), other=0.0,
            )  # fmt: skip
            lse2 = tl.load(L + map_id * queries + row, mask=row_ok, other=-HIDDEN)
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
                t = _seen(q, k, lse2, row, row_ok, place, column, first, limit, slope, table, scale2, cap2,
                          table_row, table_column, STARTS, TABLE, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
                # Of each thread's columns those above the bound, as bits: seldom more than one or two of a row.
                mine = tl.reshape(by_thread(t, BM, BN, BN), [BM, 4, BN // 4])
                word = tl.sum(tl.where(mine > bound[:, None, None], bit[None, None, :], 0), 2)
                word = word.to(tl.uint32, bitcast=True)
                turn = 0
                while (tl.max(tl.max(word, 1), 0) > 0) & (turn < N // 4):
                    low = word & (~word + 1)
                    is_low = bit[None, None, :] == low.to(tl.int32, bitcast=True)[:, :, None]
                    value = tl.sum(tl.where(is_low, mine, 0.0), 2)
                    i = (low.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
                    key = begin + 2 * lane[None, :] + i // 2 * 8 + i % 2
                    at = to + (lane * (N // 4) + turn)[None, :]
                    tl.store(LOGS + at, value, mask=word > 0)
                    tl.store(KEYS + at, key, mask=word > 0)
                    word = word & ~low
                    turn += 1
                over = tl.max(word, 1) > 0
                more = tl.sum(over.to(tl.int32), 0)
                if more > 0:
                    at = tl.atomic_add(OVER_COUNTS + map_id * BINS + bin, more, sem="relaxed")
                    at += tl.cumsum(over.to(tl.int32), 0) - 1
                    tl.store(OVER + (map_id * units + first_unit) * UNIT + at, entry, mask=over)
            else:
                # A list of the best so far, which begins with the bound: what is not above it gets no place.
                best = tl.zeros([BM, N], tl.float32) + bound[:, None]
                best_key = tl.full([BM, N], NO_KEY, tl.int32) - slot[None, :]
                for step in tl.range(0, (end - begin + BN - 1) // BN):
                    column = begin + step * BN + tl.arange(0, BN)
                    k = keys_of_block(keys_of, column, column < end, k_row, k_dim, D, DIM)
                    t = _seen(q, k, lse2, row, row_ok, place, column, first, limit, slope, table, scale2, cap2,
                              table_row, table_column, STARTS, TABLE, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
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
                to_all = to + slot[None, :]
                tl.store(LOGS + to_all, tl.where(best_key < keys, best, HIDDEN), mask=row_ok[:, None])
                tl.store(KEYS + to_all, best_key, mask=row_ok[:, None])


@triton.jit
def _seen(
    q, k, lse2, row, row_ok, place, column, first, limit, slope, table, scale2, cap2, table_row, table_column,
    STARTS: tl.constexpr, TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The logarithms of a tile, hidden outside of what each row sees."""
    t = logs(q, k, lse2, row, row_ok, place, column, column < tl.max(limit, 0), first, limit, slope, table, table,
             scale2, cap2, table_row, table_column, 0, 0,
             TABLE, False, False, TABLE, False, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
    t = tl.where(column[None, :] < limit[:, None], t, HIDDEN)
    if STARTS:
        t = tl.where(column[None, :] >= first[:, None], t, HIDDEN)
    return t


@triton.jit
def _merge(
    LOGS, KEYS, TOP_KEYS, TOP_WEIGHTS, queries, first_row, rows, n,
    BM: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The n best of what a row's bins gave, the stronger first, and of equals the lower key."""
    map_id = tl.program_id(1).to(tl.int64)
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = (inner < rows)[:, None]
    at = (map_id * rows + inner)[:, None] * N * N + tl.arange(0, N * N)[None, :]
    t = tl.load(LOGS + at, mask=ok, other=HIDDEN)
    keys = tl.load(KEYS + at, mask=ok & (t > HIDDEN / 2), other=NO_KEY)
    for j in tl.range(0, n):
        top = tl.max(t, 1)
        key = tl.where(top > HIDDEN / 2, tl.min(tl.where(t == top[:, None], keys, NO_KEY), 1), NO_KEY)
        t = tl.where(keys == key[:, None], HIDDEN, t)
        to = (map_id * queries + first_row + inner) * n + j
        tl.store(TOP_KEYS + to, tl.where(key == NO_KEY, -1, key).to(tl.int64), mask=inner < rows)
        tl.store(TOP_WEIGHTS + to, tl.where(key == NO_KEY, 0.0, tl.exp2(top)), mask=inner < rows)


def bins_for(n: int, rows: int, halves: int) -> int:
    """Into how many bins `look` should put the columns: the more, the less there is to look at again.

    `rows` are those of all maps, `halves` how many parts `look` can tell apart.
    """
    bins = min(128, triton.next_power_of_2(halves))
    while bins > max(16, 2 * n) and 4 * bins * rows > 1 << 28:
        bins //= 2
    return bins


def top(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    largest: Tensor,
    edges: Tensor,
    width: int,
    n: int,
    *,
    scale: float,
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    starts: bool = True,
    at_once: int = 1 << 28,
) -> tuple[Tensor, Tensor, Tensor]:
    """The n strongest keys of every row, -1 where a row has fewer; their weights; and the bits of the largest of all.

    These are what `look` would have given with one bin: the log2 of the largest weight of a row, negated.

    Arguments as in `look`; `largest` and `edges` are what it gives, `width` the most columns of a bin. `at_once` are
    the bytes that may be taken beside the results: rows are done in parts.
    """
    batch, heads, queries, dim = q.shape
    keys, maps, device = k.shape[2], batch * heads, q.device
    half = q.dtype != torch.float32
    rows_of_tile, columns_of_tile = (64, 128) if half and dim <= 128 else (32, 64)
    unit = PARTS * rows_of_tile
    places = max(4, triton.next_power_of_2(n))
    found = torch.empty(batch, heads, queries, n, dtype=torch.int64, device=device)
    weights = torch.empty(batch, heads, queries, n, dtype=torch.float32, device=device)
    lse2 = (lse.float() * LOG2E).nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0).contiguous()
    first, stop = intervals if intervals is not None else (lse2, lse2)
    interval_batch = 0 if first.shape[0] == 1 or intervals is None else first.stride(0)
    least = torch.empty(batch, heads, queries, dtype=torch.int32, device=device)
    bins = largest.shape[-2]
    numbers = (scale * LOG2E, 0.0 if softcap is None else softcap * LOG2E)
    most = max(1, at_once // (maps * places * (12 + 8 * places)))
    for start in range(0, queries, most):
        rows = min(most, queries - start)
        entries = rows * places
        units = entries // unit + bins

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(maps, *shape, dtype=dtype, device=device)

        # Counters lie apart, so that programs do not wait for each other at one line of the cache.
        apart = 32
        counters = torch.zeros(maps, bins, apart, dtype=torch.int32, device=device)
        chosen = torch.full((maps, entries), -1, dtype=torch.int32, device=device)
        position, bound = empty(entries), empty(rows, dtype=torch.float32)
        _choose[(triton.cdiv(rows, 32), maps)](
            largest, first, stop, edges, chosen, position, bound, least, counters, heads, interval_batch, queries,
            start, rows, n, BM=32, N=places, BINS=bins, APART=apart, STARTS=starts and intervals is not None,
            INTERVALS=intervals is not None, num_warps=1,
        )  # fmt: skip
        # Lists begin at whole units of rows.
        counts = counters[..., 0].contiguous()
        units_of = (counts + (unit - 1)) // unit
        ends = units_of.cumsum(-1)
        begins = ends - units_of
        listed = empty(units * unit)
        _list[(triton.cdiv(entries, 1024), maps)](
            chosen, position, begins, listed, entries, units * unit, UNIT=unit, AT_ONCE=1024, BINS=bins
        )
        logarithms = torch.full((maps, entries, places), HIDDEN.value, device=device)
        candidates = empty(entries, places)
        few = width <= columns_of_tile
        over, over_counts = empty(units * unit), torch.zeros_like(counts)
        for quick in (True, False) if few else (False,):
            rest = few and not quick
            _gather[(units, maps)](
                q, k, lse2, first, stop, lse2 if slopes is None else slopes, lse2 if table is None else table,
                bound, over_counts if rest else counts, begins, ends, over if rest else listed, edges,
                logarithms, candidates, over, over_counts,
                *q.stride(), *k.stride(), interval_batch,
                *((0, 0, 0, 0) if table is None else table.stride()),
                heads, heads // k.shape[1], queries, keys, *numbers, start, rows, units,
                D=dim, DIM=max(16, triton.next_power_of_2(dim)), BM=rows_of_tile, BN=columns_of_tile, N=places,
                BINS=bins, PARTS=PARTS, FEW=quick, STARTS=starts and intervals is not None,
                INTERVALS=intervals is not None, TABLE=table is not None, ALIBI=slopes is not None,
                SOFTCAP=softcap is not None, PRECISION="tf32" if half else "tf32x3",
                num_warps=4, num_stages=2, maxnreg=128 if quick and half else None,
            )  # fmt: skip
        height = max(1, 512 // places**2) * 4
        _merge[(triton.cdiv(rows, height), maps)](
            logarithms, candidates, found, weights, queries, start, rows, n, BM=height, N=places, num_warps=4
        )
    return found, weights, least
