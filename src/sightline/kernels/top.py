"""The strongest keys of every row on a GPU, in two steps: candidates, and the best of them.

A row's n strongest keys are all at least as strong as any bound that n of its keys reach. Such a bound is cheap: put
the columns into n bins or more, and take the least of the bins' maxima. The first kernel owns rows and walks over
columns from the last to the first. It starts with the bound that a pass over the map found (`look` with bins that are
stretches of columns), raises it by the bins of what it has seen (columns that lie apart, so that neighbours fall into
different bins), and writes down which columns reach the bound: a few dozen out of any number. The second kernel
fetches just these keys, computes their scores again, and takes the best.

Limits: as `look`, without a bias that is a tensor; at most 32 keys. A row with more candidates than fit is reported,
and is someone else's work.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.look import LOG2E
from sightline.kernels.tile import HIDDEN, by_thread, keys_of_block, logs

# Tiles with candidates that each of the four threads that share a row may write down.
ROOM = 48
# The most keys per row that the kernels can find.
MOST = 32


@triton.jit
def _candidates(
    Q, K, L, FIRST, STOP, SLOPES, TABLE_PTR, LARGEST, ENTRIES, COUNTS,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, interval_batch,
    table_batch, table_head, table_row, table_column,
    heads, groups, queries, keys, scale2, cap2, first_row, n_th,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BINS: tl.constexpr, NB: tl.constexpr,
    ROOM: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    # The last rows see most under a causal mask, so they come first.
    inner = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM + tl.arange(0, BM)
    row = first_row + inner
    row_ok = row < queries
    rows_here = tl.num_programs(0) * BM
    at_row = map_id * queries + row
    dims = tl.arange(0, DIM)
    q = tl.load(
        Q + b * q_batch + h * q_head + row.to(tl.int64)[:, None] * q_row + dims[None, :] * q_dim,
        mask=row_ok[:, None] & (dims[None, :] < D), other=0.0,
    )  # fmt: skip
    lse2 = tl.load(L + at_row, mask=row_ok, other=-HIDDEN)
    place = row + (keys - queries)
    first, stop = tl.zeros([BM], tl.int32), tl.zeros([BM], tl.int32) + keys
    if INTERVALS:
        first = tl.load(FIRST + b * interval_batch + row, mask=row_ok, other=0)
        stop = tl.load(STOP + b * interval_batch + row, mask=row_ok, other=0)
    stop = tl.where(row_ok, stop, 0)
    # Blocks that some row sees, and among them those that all rows see whole.
    begin, end = tl.min(tl.where(stop > first, first, keys), 0) // BN, (tl.max(stop, 0) + BN - 1) // BN
    full_begin = (tl.max(tl.where(row_ok, first, 0), 0) + BN - 1) // BN
    full_end = tl.min(tl.where(row_ok, stop, keys), 0) // BN
    full_end = tl.minimum(tl.maximum(full_end, begin), end)
    full_begin = tl.minimum(tl.maximum(full_begin, begin), full_end)
    # Maxima are of negated logarithms, which order like their bits: the n-th least is a bound.
    maxima = tl.load(
        LARGEST + at_row[:, None] * BINS + tl.arange(0, BINS)[None, :], mask=row_ok[:, None], other=0x7FFFFFFF
    )
    nth = tl.sum(tl.where(tl.arange(0, BINS)[None, :] == n_th - 1, tl.sort(maxima, 1), 0), 1)
    reached = -nth.to(tl.float32, bitcast=True)
    # Scores computed again may differ in the last bit.
    bound = tl.where(nth == 0x7FFFFFFF, HIDDEN / 2, reached * 1.00001 - 1.0e-5)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    keys_of = K + b * k_batch + (h // groups) * k_head
    lane = tl.arange(0, 4)
    to = ENTRIES + ((map_id * rows_here + inner)[:, None] * 4 + lane[None, :]) * ROOM
    count = tl.zeros([BM, 4], tl.int32)
    bins = tl.zeros([BM, 4, NB], tl.float32) + HIDDEN
    bit = tl.full([1], 1, tl.int32) << tl.arange(0, BN // 4)
    for phase in tl.static_range(3):
        # From the last block to the first: those that some rows see a part of, then whole ones, then parts again.
        above = end if phase == 0 else (full_end if phase == 1 else full_begin)
        below = full_end if phase == 0 else (full_begin if phase == 1 else begin)
        for step in tl.range(0, above - below):
            block = above - 1 - step
            column = block * BN + tl.arange(0, BN)
            column_ok = column < keys
            k = keys_of_block(keys_of, column, column_ok, k_row, k_dim, D, DIM)
            t = logs(q, k, lse2, row, row_ok, place, column, column_ok, first, stop, slope, table, table,
                     scale2, cap2, table_row, table_column, 0, 0,
                     phase != 1 or TABLE, INTERVALS, INTERVALS, TABLE, False, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
            mine = tl.reshape(by_thread(t, BM, BN, BN), [BM, 4, BN // 4])
            word = tl.sum(tl.where(mine >= bound[:, None, None], bit[None, None, :], 0), 2)
            bins = tl.maximum(bins, tl.max(tl.reshape(mine, [BM, 4, BN // 4 // NB, NB]), 2))
            found = word != 0
            entry = (block.to(tl.int64) << 32) | word.to(tl.uint32, bitcast=True).to(tl.int64)
            tl.store(to + count, entry, mask=found & (count < ROOM))
            count += found.to(tl.int32)
            bound = tl.maximum(bound, tl.min(tl.min(bins, 2), 1))
    tl.store(COUNTS + (map_id * rows_here + inner)[:, None] * 4 + lane[None, :], count, mask=row_ok[:, None])


@triton.jit
def _best(
    Q, K, L, SLOPES, ENTRIES, COUNTS, KEYS, LOGS,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim,
    heads, groups, queries, keys, scale2, cap2, first_row, rows_here, n,
    D: tl.constexpr, DIM: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, ROOM: tl.constexpr,
    AT_ONCE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    inner = tl.program_id(0)
    row = first_row + inner
    dims = tl.arange(0, DIM)
    q = tl.load(Q + b * q_batch + h * q_head + row.to(tl.int64) * q_row + dims * q_dim, mask=dims < D, other=0.0)
    lse2 = tl.load(L + map_id * queries + row)
    place = row + (keys - queries)
    counts = COUNTS + (map_id * rows_here + inner) * 4
    most = tl.minimum(tl.max(tl.load(counts + tl.arange(0, 4)), 0), ROOM)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    # The best so far, best first; places without a key are last.
    slot = tl.arange(0, N)
    best = tl.zeros([N], tl.float32) + HIDDEN
    best_key = tl.zeros([N], tl.int32) + 0x7FFFFFFF
    c = tl.arange(0, AT_ONCE)
    for start in tl.range(0, most, AT_ONCE // 4):
        lane, at = c % 4, start + c // 4
        ok = at < tl.minimum(tl.load(counts + lane), ROOM)
        entry = tl.load(ENTRIES + ((map_id * rows_here + inner) * 4 + lane) * ROOM + at, mask=ok, other=0)
        word, block = (entry & 0xFFFFFFFF).to(tl.uint32), (entry >> 32).to(tl.int32)
        while tl.max(word, 0) > 0:
            # The lowest bit of each word: bit i is column i // 2 * 8 + i % 2 of the tile, from the thread's first on.
            ok = word > 0
            low = word & (~word + 1)
            bit = (low.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            key = block * BN + 2 * lane + bit // 2 * 8 + bit % 2
            word = word & ~low
            k = tl.load(
                K + b * k_batch + (h // groups) * k_head + key.to(tl.int64)[:, None] * k_row + dims[None, :] * k_dim,
                mask=ok[:, None] & (dims[None, :] < D), other=0.0,
            )  # fmt: skip
            s = tl.sum(k.to(tl.float32) * q.to(tl.float32)[None, :], 1)
            if SOFTCAP:
                t = cap2 * (1 - 2 / (1 + tl.exp2(s * (scale2 / cap2) * 2.8853900817779268))) - lse2
            else:
                t = s * scale2 - lse2
            if ALIBI:
                t -= slope * tl.abs((place - key).to(tl.float32))
            t = tl.where(ok, t, HIDDEN)
            key = tl.where(ok, key, 0x7FFFFFFF)
            for _ in tl.range(0, n):
                top = tl.max(t, 0)
                top_key = tl.min(tl.where(t == top, key, 0x7FFFFFFF), 0)
                t = tl.where(key == top_key, HIDDEN, t)
                # Where it belongs: behind all that are stronger, or equal with a lower key.
                before = (best > top) | ((best == top) & (best_key < top_key))
                rank = tl.where(top > HIDDEN / 2, tl.sum(before.to(tl.int32), 0), N)
                best_moved = tl.gather(best, tl.maximum(slot - 1, 0), 0)
                key_moved = tl.gather(best_key, tl.maximum(slot - 1, 0), 0)
                best = tl.where(slot < rank, best, tl.where(slot == rank, top, best_moved))
                best_key = tl.where(slot < rank, best_key, tl.where(slot == rank, top_key, key_moved))
    to = (map_id * queries + row) * n + slot
    tl.store(KEYS + to, tl.where(best > HIDDEN / 2, best_key, -1), mask=slot < n)
    tl.store(LOGS + to, best, mask=slot < n)


def bins_for(n: int) -> int:
    """Into how many bins `look` should put the columns for the n strongest keys: the more, the tighter the bound."""
    return max(16, 2 * triton.next_power_of_2(n))


def top(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    largest: Tensor,
    n: int,
    *,
    scale: float,
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    room: int = ROOM,
    at_once: int = 1 << 26,
) -> tuple[Tensor, Tensor, Tensor]:
    """The n strongest keys of every row, -1 where a row has fewer, their weights, and whether a row had too many.

    Arguments as in `look`; `largest` is what it gives, for n bins or more.
    """
    batch, heads, queries, dim = q.shape
    keys, maps, device = k.shape[2], batch * heads, q.device
    half = q.dtype != torch.float32
    rows_of_tile, columns_of_tile = (64, 128) if half and dim <= 128 else (32, 64)
    found = torch.empty(batch, heads, queries, n, dtype=torch.int32, device=device)
    logarithms = torch.empty(batch, heads, queries, n, dtype=torch.float32, device=device)
    overfull = torch.zeros((), dtype=torch.bool, device=device)
    lse2 = (lse.float() * LOG2E).nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0).contiguous()
    first, stop = intervals if intervals is not None else (lse2, lse2)
    bins = largest.shape[-1]
    # Some rows at a time, so that the candidates take little memory whatever the length.
    at_a_time = max(1, at_once // (32 * room * maps * rows_of_tile)) * rows_of_tile
    options = {"D": dim, "DIM": max(16, triton.next_power_of_2(dim)), "ROOM": room}
    options |= {"ALIBI": slopes is not None, "SOFTCAP": softcap is not None}
    numbers = (scale * LOG2E, 0.0 if softcap is None else softcap * LOG2E)
    shared = (*q.stride(), *k.stride())
    for start in range(0, queries, at_a_time):
        tiles = triton.cdiv(min(at_a_time, queries - start), rows_of_tile)
        entries = torch.empty(maps, tiles * rows_of_tile, 4, room, dtype=torch.int64, device=device)
        counts = torch.zeros(maps, tiles * rows_of_tile, 4, dtype=torch.int32, device=device)
        _candidates[(tiles, maps)](
            q, k, lse2, first, stop, lse2 if slopes is None else slopes, lse2 if table is None else table, largest,
            entries, counts, *shared, 0 if first.shape[0] == 1 or intervals is None else first.stride(0),
            *((0, 0, 0, 0) if table is None else table.stride()),
            heads, heads // k.shape[1], queries, keys, *numbers, start, n,
            **options, BM=rows_of_tile, BN=columns_of_tile, BINS=bins, NB=max(2, triton.next_power_of_2(n) // 4),
            INTERVALS=intervals is not None, TABLE=table is not None,
            PRECISION="tf32" if half else "tf32x3", num_warps=4, num_stages=2,
        )  # fmt: skip
        rows = min(at_a_time, queries - start)
        _best[(rows, maps)](
            q, k, lse2, lse2 if slopes is None else slopes, entries, counts, found, logarithms, *shared,
            heads, heads // k.shape[1], queries, keys, *numbers, start, tiles * rows_of_tile, n,
            **options, N=triton.next_power_of_2(n), BN=columns_of_tile, AT_ONCE=16, num_warps=1,
        )  # fmt: skip
        overfull |= (counts > room).any()
    return found, logarithms.exp2_(), overfull
