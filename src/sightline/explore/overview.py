"""A whole map in few bins: sums and maxima in power-of-two bins, filled patch by patch.

The same walk over a patch also adds to the head's tracks, the entropy of each query and what each key received, so
one pass over the map gives everything the first view shows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sightline.explore.arrays import array
from sightline.lens.pieces import Tracks, piece_of
from sightline.lens.requests import Picture
from sightline.lens.statistics import ENTROPY

if TYPE_CHECKING:
    from sightline.lens import Sight

# Cells of one step of work, each way: about 30 ms on one core, so that nobody waits long for a thread.
PATCH = 2048
FINE, COARSE = 2048, 512
# The statistic that stands beside the rows of a map.
TRACK = ENTROPY.name


def overview_level(length: int, bins: int) -> int:
    """The lowest level at which an axis has at most `bins` bins.

    >>> overview_level(65_536, 2048)
    5
    """
    return max(0, math.ceil(math.log2(max(length, 1) / bins)))


def bins_of(length: int, level: int) -> int:
    """How many bins of 2^level cells an axis has; the last one is ragged.

    >>> bins_of(1000, 8)
    4
    """
    return -(-length // (1 << level))


def cells_of(bins: slice, level: int, length: int) -> slice:
    """The cells of some bins.

    >>> cells_of(slice(3, 4), 8, 1000)
    slice(768, 1000, None)
    """
    return slice(bins.start << level, min(bins.stop << level, length))


class Overview:
    """Sums and maxima of a map at one pair of levels, with what is known so far."""

    def __init__(self, queries: int, keys: int, levels: tuple[int, int]) -> None:
        self.queries, self.keys, self.levels = queries, keys, levels
        shape = bins_of(queries, levels[0]), bins_of(keys, levels[1])
        self.sums = np.zeros(shape, np.float32)
        self.maxima = np.zeros(shape, np.float32)
        self.has_maxima = True  # a saved one may hold sums alone
        self.patch = (max(PATCH >> levels[0], 1), max(PATCH >> levels[1], 1))
        self.done = np.zeros([-(-n // p) for n, p in zip(shape, self.patch, strict=True)], bool)
        self.along: Tracks | None = None
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        return bool(self.done.all())

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.maxima.nbytes

    def missing(self, rows: slice, columns: slice) -> list[tuple[int, int]]:
        """The patches of a rectangle of bins that are not known yet."""
        height, width = self.patch
        inside = self.done[
            rows.start // height : -(-rows.stop // height), columns.start // width : -(-columns.stop // width)
        ]
        first = rows.start // height, columns.start // width
        return [(first[0] + int(i), first[1] + int(j)) for i, j in np.argwhere(~inside)]

    def all_missing(self) -> Iterator[tuple[int, int]]:
        """Every patch that is not known yet, coarsest questions first: the map fills evenly instead of from the top."""
        height, width = self.done.shape
        order = sorted((_bit_reversed(i), _bit_reversed(j), i, j) for i in range(height) for j in range(width))
        return ((i, j) for _, _, i, j in order if not self.done[i, j])

    def fill(self, sight: Sight, i: int, j: int) -> None:
        """Compute one patch from q and k. Any thread may, in any order."""
        if self.done[i, j]:
            return
        bins = [
            slice(n * size, min((n + 1) * size, total))
            for n, size, total in zip((i, j), self.patch, self.sums.shape, strict=True)
        ]
        spans = cells_of(bins[0], self.levels[0], self.queries), cells_of(bins[1], self.levels[1], self.keys)
        wanted = () if {TRACK, "received"} <= sight.kept.keys() else (TRACK,)
        piece = piece_of(sight, *spans, (1 << self.levels[0], 1 << self.levels[1]), wanted)
        with self._lock:
            if self.done[i, j]:
                return
            self.sums[bins[0], bins[1]] = array(piece.sums[0])
            self.maxima[bins[0], bins[1]] = array(piece.maxima[0])
            if self.along is None:
                self.along = Tracks(sight, (TRACK,))
            self.along.add(piece)
            self.done[i, j] = True

    def tracks(self, sight: Sight) -> tuple[np.ndarray, np.ndarray] | None:
        """The entropy of every query and what every key received, once the whole map has been walked over."""
        if not self.complete or self.along is None:
            return None
        both = self.along.rows()[TRACK][0], self.along.received[0]
        return array(both[0]), array(both[1])

    def pooled(self, levels: tuple[int, int], rows: slice, columns: slice, largest: bool) -> np.ndarray:
        """Bins of the same or a higher level: sums of sums in double precision, maxima of maxima."""
        values = self.maxima if largest else self.sums
        factors = [1 << (level - own) for level, own in zip(levels, self.levels, strict=True)]
        values = values[
            rows.start * factors[0] : rows.stop * factors[0], columns.start * factors[1] : columns.stop * factors[1]
        ]
        for dim, factor in enumerate(factors):
            if factor > 1:
                starts = np.arange(0, values.shape[dim], factor)
                if largest:
                    values = np.maximum.reduceat(values, starts, axis=dim)
                else:
                    values = np.add.reduceat(values, starts, axis=dim, dtype=np.float64)
        return values


def stored_levels(sight: Sight) -> list[int] | None:
    """The levels of the finest overview that came with a sight: kept sums of the whole map in power-of-two cells."""
    cells = [
        request.cell
        for request in sight.kept
        if isinstance(request, Picture)
        and request.cell is not None
        and request == Picture(cell=request.cell, reduce="sum")
        and not any(n & (n - 1) for n in request.cell)
    ]
    return [n.bit_length() - 1 for n in min(cells)] if cells else None


def stored(sight: Sight) -> Overview | None:
    """The finest overview that came with a sight."""
    levels = stored_levels(sight)
    if levels is None:
        return None
    cell = (1 << levels[0], 1 << levels[1])
    sums = sight.kept[Picture(cell=cell, reduce="sum")]
    largest = sums if cell == (1, 1) else sight.kept.get(Picture(cell=cell, reduce="max"))
    overview = Overview(sight.shape[-2], sight.shape[-1], (levels[0], levels[1]))
    overview.sums = array(sums[0])
    overview.has_maxima = largest is not None
    overview.maxima = overview.sums if largest is None else array(largest[0])
    overview.done[:] = True
    return overview


def pictures(queries: int, keys: int, maps: int, budget: int = 256 << 20) -> list[Picture]:
    """What a run should compute of every head so that the explorer's first view is there at once.

    Short maps are quickly computed anew and need only thumbnails; long ones get up to 512 bins a side, fewer where
    `maps` of them would take more than `budget` bytes.

    >>> [p.cell for p in pictures(65_536, 65_536, maps=16)]
    [(128, 128), (128, 128)]
    """
    bins = COARSE if queries * keys > 1 << 24 else 128
    while bins > 64 and maps * bins * bins * 8 > budget:
        bins //= 2
    cell = (1 << overview_level(queries, bins), 1 << overview_level(keys, bins))
    return [Picture(cell=cell, reduce="sum"), Picture(cell=cell, reduce="max")]


def _bit_reversed(n: int) -> int:
    return int(f"{n:016b}"[::-1], 2)
