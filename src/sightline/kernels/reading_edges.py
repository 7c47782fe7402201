"""The strongest cells of every row by a reading on a GPU, without a second look at the whole map; see `top_keys`.

The pass over the map (`reading_columns`) leaves the size of the largest cell of every row in each of many stretches of
columns (bins). The n strongest lie in the n bins with the largest of these: rows are gathered by bin, multiplied with
its keys and values again, and each row merges what its bins gave. Rows that see no more than n bins have, a thousand
under a causal mask, are done as they are.

Cells of exactly 0 are in no list. Where a row has fewer than n others, its lowest keys come behind them; under a table
of booleans, which does not say which these are, such rows are done as they are too. Of equal sizes the lower key comes
first, and a row's entries go to its own places: the same bits every time.

Limits: as `reading_columns`, without a bias that is a tensor; at most 32 keys.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch, on_its_device
from sightline.kernels.layout import Rows
from sightline.kernels.map_tile import HIDDEN
from sightline.kernels.reading_candidates import NO_BOUND, gather, near
from sightline.kernels.reading_columns import BINS
from sightline.kernels.readings import Reading
from sightline.kernels.top_candidates import NOTHING_LEFT, pack, unpack
from sightline.kernels.top_keys import PROGRAMS, fill_lists, place_lists

# The most keys per row that the kernels can find.
MOST = 32
# Tiles of rows that a program does for the keys and values of one bin.
PARTS = 8
# A cell that is computed again may differ in its last bits, and of many numbers that nearly add up to 0 in more.
_SLACK = tl.constexpr(0.99)
# Bytes that may be taken beside the results: rows are done in parts.
_AT_ONCE = 64 << 20


@kernel()
def _choose(
    STRONGEST, PLACES, FIRST, STOP, CHOSEN, POSITION, BOUND, COUNTS,
    first_map: tl.int32, heads: tl.int32, interval_batch: tl.int64, keys: tl.int32, first_row: tl.int32,
    rows: tl.int32, slots: tl.int32, n: tl.int32, width: tl.int32, bins: tl.int32,
    BM: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr, APART: tl.constexpr, ORDERED: tl.constexpr,
    STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """The n bins with the largest cells of each row, its place in their lists, and the bound they give."""
    own = tl.program_id(1).to(tl.int64)
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = inner < rows
    bin = tl.arange(0, BINS)
    slot = first_row + inner
    if ORDERED:
        slot = tl.load(PLACES + slot, mask=ok, other=0)
    at = (own * bins + bin)[:, None] * slots + slot[None, :]
    # Bins that a row does not see, or without a column, were perhaps never written.
    begin, end = bin * width, tl.minimum((bin + 1) * width, keys)
    seen = ok[None, :] & ((bin < bins) & (begin < end))[:, None]
    interval = (first_map + own) // heads * interval_batch + first_row + inner
    first, stop = inner * 0, inner * 0 + keys
    if INTERVALS:
        stop = tl.load(STOP + interval, mask=ok, other=0)
        seen = seen & (begin[:, None] < stop[None, :])
    if STARTS:
        first = tl.load(FIRST + interval, mask=ok, other=0)
        seen = seen & (end[:, None] > first[None, :])
    sizes = tl.load(STRONGEST + at, mask=seen, other=0)
    many = ok & (stop - first > n * width)
    if TABLE:
        many = many & (tl.sum((sizes > 0).to(tl.int32), 0) >= n)
    if tl.max(many.to(tl.int32), 0) > 0:
        for j in tl.range(0, n):
            most = tl.max(sizes, 0)
            best = tl.min(tl.where(sizes == most[None, :], bin[:, None], BINS), 0)
            some = many & (most > 0)
            position = tl.atomic_add(COUNTS + (own * BINS + best) * APART, 1, mask=some, sem="relaxed")
            to = (own * rows + inner) * N + j
            tl.store(CHOSEN + to, tl.where(some, best, -1), mask=ok)
            tl.store(POSITION + to, position, mask=some)
            if j == n - 1:
                bound = most.to(tl.float32, bitcast=True) * _SLACK
                tl.store(BOUND + own * rows + inner, tl.where(many, bound, NO_BOUND), mask=ok)
            sizes = tl.where(bin[:, None] == best[None, :], 0, sizes)
    else:
        for j in tl.range(0, n):
            tl.store(CHOSEN + (own * rows + inner) * N + j, tl.full([BM], -1, tl.int32), mask=ok)
        tl.store(BOUND + own * rows + inner, tl.zeros([BM], tl.float32) + NO_BOUND, mask=ok)


@kernel()
def _merge(
    CELLS, OFFSETS, CHOSEN, BOUND, FIRST, STOP, TOP_KEYS, TOP_CELLS,
    first_map: tl.int32, heads: tl.int32, interval_batch: tl.int64, queries: tl.int32, keys: tl.int32,
    first_row: tl.int32, rows: tl.int32, n: tl.int32, width: tl.int32,
    BM: tl.constexpr, N: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr,
):  # fmt: skip
    """The n best of what a row's bins gave, and where these are fewer its lowest keys, whose cells are 0."""
    own = tl.program_id(1).to(tl.int64)
    inner = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = tl.load(BOUND + own * rows + inner, mask=inner < rows, other=NO_BOUND) != NO_BOUND
    # In one axis: with one for bins and one for their places, Triton 3.6 takes wrong maxima of 32 x 32.
    place = tl.arange(0, N * N)
    entry = (own * rows + inner)[:, None] * N + (place // N)[None, :]
    bin = tl.load(CHOSEN + entry, mask=ok[:, None] & (place // N < n)[None, :], other=-1)
    at = entry * N + (place % N)[None, :]
    x = tl.load(CELLS + at, mask=bin >= 0, other=HIDDEN)
    offset = tl.load(OFFSETS + at, mask=bin >= 0, other=0).to(tl.int32)
    # Bins, and columns in them, order like keys; the last bit says whether the cell is below 0.
    code = (tl.maximum(bin, 0) << 24) | (offset << 1) | (x < 0).to(tl.int32)
    packed = pack(tl.where(x == HIDDEN, -1.0, tl.abs(x)), code)
    to = ((first_map + own) * queries + first_row + inner) * n
    listed, count = tl.full([BM, N], -1, tl.int32), inner * 0
    for j in tl.range(0, n):
        best = tl.max(packed, 1)
        packed = tl.where(packed == best[:, None], NOTHING_LEFT, packed)
        size, where = unpack(best)
        some = size >= 0
        key = tl.where(some, (where >> 24) * width + ((where & 0xFFFFFF) >> 1), -1)
        cell = tl.where((where & 1) == 1, -size, size)
        tl.store(TOP_KEYS + to + j, key, mask=ok)
        tl.store(TOP_CELLS + to + j, tl.where(some, cell, 0.0), mask=ok)
        listed = tl.where((tl.arange(0, N) == j)[None, :], key[:, None], listed)
        count += some.to(tl.int32)
    if tl.min(tl.where(ok, count, n), 0) < n:
        interval = (first_map + own) // heads * interval_batch + first_row + inner
        first, stop = inner * 0, inner * 0 + keys
        if INTERVALS:
            stop = tl.load(STOP + interval, mask=ok, other=0)
        if STARTS:
            first = tl.load(FIRST + interval, mask=ok, other=0)
        # Of the lowest 2 n keys at most n are listed.
        for step in tl.range(0, 2 * n):
            key = first + step
            known = tl.max((listed == key[:, None]).to(tl.int32), 1) > 0
            goes = ok & (known == 0) & (key < stop) & (count < n)
            tl.store(TOP_KEYS + to + count, key, mask=goes)
            count += goes.to(tl.int32)


@on_its_device
def edges(
    q: Tensor, reading: Reading, n: int, results: tuple[Tensor, Tensor], first_map: int, strongest: Tensor,
    rows: Rows, width: int,
) -> None:  # fmt: skip
    """Put the n strongest keys of every row of some maps, and their cells, into `results`, `[…, queries, n]`.

    -1 is where a row has fewer. Of a signed reading they are the largest by magnitude, with their sign. `strongest` and
    `width` are what `columns` gives for `rows`, from `first_map` on.
    """
    queries, keys = q.shape[2], reading.rules.given["keys"]
    maps, bins, _ = strongest.shape
    device, dim = q.device, max(q.shape[-1], reading.constants["DV"])
    rows_of_tile, columns_of_tile = (32, 32) if reading.exact else (64, 128 if dim <= 128 else 64)
    unit = PARTS * rows_of_tile
    places = max(4, triton.next_power_of_2(n))
    constants = reading.constants | {"N": places, "BINS": BINS, "UNIT": unit, "PARTS": PARTS}
    near_tile = constants | {"BM": 16, "BN": 32}
    if not constants["TABLE"]:
        if first_map == 0:
            # Rows of all maps at once: what takes long is one tile after the other, not how many rows there are.
            every: dict[str, Any] = reading.given | {
                "first_map": 0, "first_row": 0, "rows": queries, "n": n, "width": width, "BOUND": None,
                "TOP_KEYS": results[0], "TOP_CELLS": results[1],
            }  # fmt: skip
            launch(near, (triton.cdiv(queries, 16), q.shape[0] * q.shape[1]), every, near_tile, num_warps=1)
        if keys <= n * width:
            return
    for start, some in parts_of(queries, maps, places):
        entries = some * places
        units = entries // unit + bins

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(maps, *shape, dtype=dtype, device=device)

        # Counters lie apart, so that programs do not wait for each other at one line of the cache.
        apart = 32
        counters = torch.zeros(maps, BINS, apart, dtype=torch.int32, device=device)
        chosen, position, bound = empty(entries), empty(entries), empty(some, dtype=torch.float32)
        given: dict[str, Any] = reading.given | {
            "STRONGEST": strongest, "PLACES": rows.places, "slots": rows.total, "first_map": first_map,
            "CHOSEN": chosen, "POSITION": position, "BOUND": bound, "COUNTS": counters,
            "TOP_KEYS": results[0], "TOP_CELLS": results[1],
            "first_row": start, "rows": some, "n": n, "width": width, "bins": bins, "entries": entries, "units": units,
        }  # fmt: skip
        launch(
            _choose,
            (triton.cdiv(some, 32), maps),
            given,
            constants | {"BM": 32, "APART": apart, "ORDERED": rows.places is not None},
            num_warps=1,
        )
        if constants["TABLE"]:
            launch(near, (triton.cdiv(some, 16), maps), given, near_tile, num_warps=1)
        if keys <= n * width:
            continue
        # Lists begin at whole units of rows.
        counts, begins, ends, over_counts = (empty(BINS) for _ in range(4))
        given |= {"COUNTERS": counters, "COUNTS": counts, "BEGINS": begins, "ENDS": ends, "OVER_COUNTS": over_counts}
        launch(place_lists, (maps,), given, constants | {"APART": apart})
        listed, over = empty(units * unit), empty(units * unit)
        given |= {"LIST": listed, "OVER": over, "room": units * unit}
        launch(fill_lists, (triton.cdiv(entries, 1024), maps), given, constants | {"AT_ONCE": 1024})
        given |= {"CELLS": empty(entries, places, dtype=torch.float32)}
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
                tile | {"FEW": quick}, num_warps=4, num_stages=1,
            )  # fmt: skip
        height = max(1, 512 // places**2) * 4
        launch(_merge, (triton.cdiv(some, height), maps), given, constants | {"BM": height}, num_warps=4)


def parts_of(queries: int, maps: int, places: int) -> list[tuple[int, int]]:
    """Rows that are done at once: where they begin, and how many they are."""
    most = max(1, _AT_ONCE // (maps * places * (16 + 8 * places)))
    return [(start, min(most, queries - start)) for start in range(0, queries, most)]
