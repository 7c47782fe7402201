"""The strongest keys of every row on a GPU, without a second look at the whole map.

A pass over the map (`look`) leaves the largest weight of every row in each of many stretches of columns (bins). The n
strongest keys of a row lie in the n bins with the largest of these: a bin outside them holds nothing that n other keys
do not beat. So each row has n small places to look at, and each bin has a list of the rows that want to look there.
Rows of one list are gathered into tiles, multiplied with the keys of their bin, and the best are taken out one after
the other, seldom more than two or three of a bin, because all that counts is at least as large as the n-th of the
bins' maxima. At last each row merges what its bins gave.

Rows that see no more columns than n bins have, such as the first ones under a causal mask, often have no such bound:
these are next to each other, and what they see is short, so they are done tile by tile without any lists.

Lists are filled in any order, by atomic counters, but a row's entries go to its own places: the same bits every time.

Limits: as `look`, without a bias that is a tensor; at most 32 keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch, on_its_device
from sightline.kernels.layout import Rows
from sightline.kernels.map_tile import HIDDEN
from sightline.kernels.rules import LOG2E, Rules
from sightline.kernels.top_candidates import NO_BOUND, NO_KEY, NOTHING_LEFT, gather, near, pack, unpack

# The most keys per row that the kernels can find.
MOST = 32
# Tiles of rows that a program does for the keys of one bin.
PARTS = 4
# The most bins there are.
BINS = 128
# About so many programs do what there was not enough room for, which is little as a rule.
PROGRAMS = 2048


@kernel()
def _choose(
    LARGEST, PLACES, L, FIRST, STOP, CHOSEN, POSITION, BOUND, LEAST, COUNTS,
    heads: tl.int32, interval_batch: tl.int64, queries: tl.int32, keys: tl.int32, first_row: tl.int32, rows: tl.int32,
    slots: tl.int32, n: tl.int32, width: tl.int32, bins: tl.int32,
    BM: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr, APART: tl.constexpr, ORDERED: tl.constexpr,
    STARTS: tl.constexpr, INTERVALS: tl.constexpr,
):  # fmt: skip
    """The n bins with the largest maxima of each row, its place in their lists, and the bound they give."""
    map_id = tl.program_id(1).to(tl.int64)
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = inner < rows
    bin = tl.arange(0, BINS)
    # Maxima are negated logarithms, which order like their bits: the least is the strongest.
    slot = first_row + inner
    if ORDERED:
        slot = tl.load(PLACES + slot, mask=ok, other=0)
    at = (map_id * bins + bin)[:, None] * slots + slot[None, :]
    # Bins that a row does not see, or without a column, were perhaps never written.
    begin, end = bin * width, tl.minimum((bin + 1) * width, keys)
    seen = ok[None, :] & ((bin < bins) & (begin < end))[:, None]
    interval = map_id // heads * interval_batch + first_row + inner
    first, stop = inner * 0, inner * 0 + keys
    if INTERVALS:
        stop = tl.load(STOP + interval, mask=ok, other=0)
        seen = seen & (begin[:, None] < stop[None, :])
    if STARTS:
        first = tl.load(FIRST + interval, mask=ok, other=0)
        seen = seen & (end[:, None] > first[None, :])
    maxima = tl.load(LARGEST + at, mask=seen, other=NO_KEY)
    tl.store(LEAST + map_id * queries + first_row + inner, tl.min(maxima, 0), mask=ok)
    many = ok & (stop - first > n * width)
    if tl.max(many.to(tl.int32), 0) > 0:
        for j in tl.range(0, n):
            least = tl.min(maxima, 0)
            best = tl.min(tl.where(maxima == least[None, :], bin[:, None], BINS), 0)
            some = many & (least != NO_KEY)
            position = tl.atomic_add(COUNTS + (map_id * BINS + best) * APART, 1, mask=some, sem="relaxed")
            to = (map_id * rows + inner) * N + j
            tl.store(CHOSEN + to, tl.where(some, best, -1), mask=ok)
            tl.store(POSITION + to, position, mask=some)
            if j == n - 1:
                # Scores computed again may differ in the last bit, which of large ones is not small.
                level = tl.load(L + map_id * queries + first_row + inner, mask=ok, other=0.0)
                bound = -least.to(tl.float32, bitcast=True) * 1.00001 - 1.0e-5 - tl.abs(level) * 4.8e-7
                bound = tl.where(least == NO_KEY, HIDDEN / 2, bound)
                tl.store(BOUND + map_id * rows + inner, tl.where(many, bound, NO_BOUND), mask=ok)
            maxima = tl.where(bin[:, None] == best[None, :], NO_KEY, maxima)
    else:
        for j in tl.range(0, n):
            tl.store(CHOSEN + (map_id * rows + inner) * N + j, tl.full([BM], -1, tl.int32), mask=ok)
        tl.store(BOUND + map_id * rows + inner, tl.full([BM], NO_BOUND, tl.float32), mask=ok)


@kernel()
def place_lists(
    COUNTERS, COUNTS, BEGINS, ENDS, OVER_COUNTS, UNIT: tl.constexpr, BINS: tl.constexpr, APART: tl.constexpr
):
    """Where the lists of a map begin and end, in units of rows."""
    at = tl.program_id(0) * BINS + tl.arange(0, BINS)
    count = tl.load(COUNTERS + at * APART)
    units = (count + UNIT - 1) // UNIT
    ends = tl.cumsum(units, 0)
    tl.store(COUNTS + at, count)
    tl.store(BEGINS + at, ends - units)
    tl.store(ENDS + at, ends)
    tl.store(OVER_COUNTS + at, count * 0)


@kernel()
def fill_lists(
    CHOSEN, POSITION, BEGINS, LIST, entries: tl.int64, room: tl.int64, n: tl.int32,
    UNIT: tl.constexpr, AT_ONCE: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Write each row's entries to the lists of its bins."""
    map_id = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    bin = tl.load(CHOSEN + map_id * entries + entry, mask=(entry < entries) & (entry % N < n), other=-1)
    ok = bin >= 0
    start = tl.load(BEGINS + map_id * BINS + bin, mask=ok, other=0) * UNIT
    position = tl.load(POSITION + map_id * entries + entry, mask=ok, other=0)
    tl.store(LIST + map_id * room + start + position, entry, mask=ok)


@kernel()
def _merge(
    LOGS, OFFSETS, CHOSEN, BOUND, TOP_KEYS, TOP_WEIGHTS,
    queries: tl.int32, first_row: tl.int32, rows: tl.int32, n: tl.int32, width: tl.int32,
    BM: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The n best of what a row's bins gave."""
    map_id = tl.program_id(1).to(tl.int64)
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = tl.load(BOUND + map_id * rows + inner, mask=inner < rows, other=NO_BOUND) != NO_BOUND
    # In one axis: with one for bins and one for their places, Triton 3.6 takes wrong maxima of 32 x 32.
    place = tl.arange(0, N * N)
    entry = (map_id * rows + inner)[:, None] * N + (place // N)[None, :]
    bin = tl.load(CHOSEN + entry, mask=ok[:, None] & (place // N < n)[None, :], other=-1)
    at = entry * N + (place % N)[None, :]
    t = tl.load(LOGS + at, mask=bin >= 0, other=HIDDEN)
    offset = tl.load(OFFSETS + at, mask=bin >= 0, other=0).to(tl.int32)
    # Bins, and columns in them, order like keys.
    packed = pack(t, (tl.maximum(bin, 0) << 24) | offset)
    to = (map_id * queries + first_row + inner) * n
    for j in tl.range(0, n):
        best = tl.max(packed, 1)
        packed = tl.where(packed == best[:, None], NOTHING_LEFT, packed)
        log, where = unpack(best)
        some = log > HIDDEN / 2
        key = (where >> 24) * width + (where & 0xFFFFFF)
        tl.store(TOP_KEYS + to + j, tl.where(some, key, -1), mask=ok)
        tl.store(TOP_WEIGHTS + to + j, tl.where(some, tl.exp2(log), 0.0), mask=ok)


def bins_for(n: int, rows: int, halves: int) -> int:
    """Into how many bins `look` should put the columns: the more, the less there is to look at again.

    `rows` are those of all maps, `halves` how many parts `look` can tell apart.
    """
    bins = min(BINS, max(2, halves))
    while bins > max(16, 2 * n) and 4 * bins * rows > 1 << 28:
        bins //= 2
    return bins


@on_its_device
def top(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    measured: Tensor,
    largest: Tensor,
    rows: Rows,
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

    Arguments as in `look`, `measured` what `measure` found of the lse; `largest` is what `look` gives for `rows`,
    `width` the columns of a bin. `at_once` are the bytes that may be taken beside the results: rows are done in parts.
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
    least = torch.empty(batch, heads, queries, dtype=torch.int32, device=device)
    bins = largest.shape[-2]
    rules = Rules(q, k, scale, intervals, starts, table, None, slopes, softcap)
    constants = rules.constants | {"N": places, "BINS": BINS, "UNIT": unit, "PARTS": PARTS}
    results = {"TOP_KEYS": found, "TOP_WEIGHTS": weights, "LEAST": least}
    most = max(1, at_once // (maps * places * (16 + 8 * places)))
    for start in range(0, queries, most):
        some = min(most, queries - start)
        entries = some * places
        units = entries // unit + bins

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(maps, *shape, dtype=dtype, device=device)

        # Counters lie apart, so that programs do not wait for each other at one line of the cache.
        apart = 32
        counters = torch.zeros(maps, BINS, apart, dtype=torch.int32, device=device)
        chosen, position, bound = empty(entries), empty(entries), empty(some, dtype=torch.float32)
        given = rules.given | results | {
            "LARGEST": largest, "PLACES": rows.places, "slots": rows.total, "L": lse2, "REST": measured,
            "CHOSEN": chosen, "POSITION": position, "BOUND": bound,
            "first_row": start, "rows": some, "n": n, "width": width, "bins": bins, "entries": entries, "units": units,
        }  # fmt: skip
        given |= {"COUNTS": counters}
        launch(
            _choose,
            (triton.cdiv(some, 32), maps),
            given,
            constants | {"BM": 32, "APART": apart, "ORDERED": rows.places is not None},
            num_warps=1,
        )
        launch(near, (triton.cdiv(some, 16), maps), given, constants | {"BM": 16, "BN": 32}, num_warps=1)
        if keys <= n * width:
            continue
        # Lists begin at whole units of rows.
        counts, begins, ends, over_counts = (empty(BINS) for _ in range(4))
        given |= {"COUNTERS": counters, "COUNTS": counts, "BEGINS": begins, "ENDS": ends, "OVER_COUNTS": over_counts}
        launch(place_lists, (maps,), given, constants | {"APART": apart})
        listed, over = empty(units * unit), empty(units * unit)
        given |= {"LIST": listed, "OVER": over, "room": units * unit}
        launch(fill_lists, (triton.cdiv(entries, 1024), maps), given, constants | {"AT_ONCE": 1024})
        given |= {"LOGS": empty(entries, places, dtype=torch.float32)}
        given |= {"OFFSETS": empty(entries, places, dtype=torch.uint16 if width < 1 << 16 else torch.int32)}
        tile = constants | {"BM": rows_of_tile, "BN": columns_of_tile}
        few = width <= columns_of_tile
        for quick in (True, False) if few else (False,):
            rest = few and not quick
            shares = max(1, (PROGRAMS if rest else 8 * PROGRAMS) // (bins * maps))
            shares = min(shares, triton.cdiv(some, rows_of_tile))
            again = {"COUNTS": over_counts, "LIST": over} if rest else {}
            launch(
                gather, (units if quick else bins * shares, maps), given | again | {"shares": shares},
                tile | {"FEW": quick},
                num_warps=4, num_stages=1 if quick else 2, maxnreg=128 if quick and half else None,
            )  # fmt: skip
        height = max(1, 512 // places**2) * 4
        launch(_merge, (triton.cdiv(some, height), maps), given, constants | {"BM": height}, num_warps=4)
    return found, weights, least
