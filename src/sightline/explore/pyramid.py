"""The map of one head as tiles at every zoom level.

Level `l` pools exactly 2^l x 2^l cells into one bin; a tile is 256 x 256 bins. Near the ground a tile is computed
from q and k when it is asked for. High up, where one tile covers millions of cells, tiles are made from an
overview; while that is not filled yet, a few rows of each bin give an estimate, which says that it is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sightline.errors import InputError
from sightline.explore.arrays import array
from sightline.explore.estimate import Estimate
from sightline.explore.overview import FINE, PATCH, Overview, bins_of, cells_of, overview_level, stored
from sightline.explore.visible_counts import VisibleCounts
from sightline.lens.requests import Picture
from sightline.masks import EMPTY

if TYPE_CHECKING:
    from sightline.lens import Sight

TILE = 256
POOLS = ("mean", "max", "sum")
# A tile of more cells than this is made from an overview.
DIRECT = 1 << 24
# More patches than this are not waited for: an estimate is shown meanwhile.
PATIENCE = 16
# A tile beyond this is refused: no view needs it, and it would hold a thread for minutes.
LARGEST = 1 << 28

Step = Callable[[], None]
Levels = tuple[int, int]


class Plan(NamedTuple):
    """How to make one tile: small steps that any thread may do, and what then puts it together."""

    steps: list[Step]
    finish: Callable[[], np.ndarray]
    is_estimate: bool


def top_level(length: int) -> int:
    """The level at which a whole axis fits into one tile.

    >>> top_level(20), top_level(257), top_level(100_000)
    (0, 1, 9)
    """
    return max(0, math.ceil(math.log2(max(length, 1) / TILE)))


class Pyramid:
    """Every tile of one head's map.

    >>> import torch, sightline as sl
    >>> sight = sl.look(torch.randn(1, 300, 8), torch.randn(1, 300, 8), mask=sl.causal())
    >>> plan = Pyramid(sight).plan((1, 1), 0, 0, "mean")
    >>> [step() for step in plan.steps]
    [None]
    >>> plan.finish().shape
    (256, 256)
    """

    def __init__(self, sight: Sight, of: str = "weights") -> None:
        self.sight, self.of = sight, of
        self.queries, self.keys = sight.shape[-2:]
        self.exact = sight.has_qk
        plain = of == "weights"  # the overviews are of weights
        self.stored = stored(sight) if plain else None
        self.counts = VisibleCounts(sight)
        self.fine: Overview | None = None
        if plain and self.exact and self.queries * self.keys > DIRECT:
            levels = overview_level(self.queries, FINE), overview_level(self.keys, FINE)
            same = self.stored is not None and self.stored.levels == levels and self.stored.has_maxima
            self.fine = self.stored if same else Overview(self.queries, self.keys, levels)

    @property
    def nbytes(self) -> int:
        """Memory of what is filled while the head is looked at."""
        return 0 if self.fine is None or self.fine is self.stored else self.fine.nbytes

    def check(self, levels: Levels, y: int, x: int, pool: str) -> None:
        """Raise for a tile that does not exist or cannot be made."""
        if pool not in POOLS:
            raise InputError("unknown pooling", expected=f"one of {', '.join(POOLS)}", got=repr(pool), hint="pool=mean")
        sound = all(0 <= level <= 32 for level in levels)
        tiles = [-(-bins // TILE) for bins in self._bins(levels)] if sound else [0, 0]
        if not (0 <= y < tiles[0] and 0 <= x < tiles[1]):
            raise InputError(
                "there is no such tile",
                expected=f"y below {tiles[0]} and x below {tiles[1]} at these levels",
                got=f"levels {levels[0]}/{levels[1]}, tile {y}/{x}",
                hint=f"a tile is {TILE} bins of 2^level cells; the map has {self.queries} x {self.keys}",
            )
        if self._source(levels, y, x, pool) is not None:
            return
        if not self.exact:
            raise InputError(
                "this zoom level needs q and k, which were not kept",
                expected="a run that kept q and k",
                got="a run with an overview only",
                hint="sl.watch(model, keep_qk=True)",
            )
        if self._cells(levels, y, x) > LARGEST:
            raise InputError(
                "this tile covers too many cells",
                expected=f"at most {LARGEST:,} cells",
                got=f"{self._cells(levels, y, x):,}",
                hint="levels of queries and keys that differ less",
            )

    def is_hidden(self, levels: Levels, y: int, x: int) -> bool:
        """Whether the mask hides all of a tile, as far as the mask can say without looking at cells."""
        mask = self.sight.mask
        if mask is None:
            return False
        rows, columns = self._cell_spans(levels, y, x)
        edges = [np.array([span.start, span.stop]) for span in (rows, columns)]
        return int(mask.kinds(edges[0], edges[1], self.queries, self.keys)[0, 0]) == EMPTY

    def plan(self, levels: Levels, y: int, x: int, pool: str) -> Plan:
        """How to make a tile that `check` has let pass."""
        rows, columns = self._bin_spans(levels, y, x)
        source = self._source(levels, y, x, pool)
        if source is None:
            return self._direct(levels, rows, columns, pool)
        factors = [1 << (level - own) for level, own in zip(levels, source.levels, strict=True)]
        missing = source.missing(
            *(
                slice(span.start * factor, min(span.stop * factor, size))
                for span, factor, size in zip((rows, columns), factors, source.sums.shape, strict=True)
            )
        )
        if len(missing) > PATIENCE:
            return self._estimate(levels, rows, columns, pool)
        return Plan(
            [partial(source.fill, self.sight, i, j) for i, j in missing],
            lambda: self._finish(levels, rows, columns, pool, source.pooled(levels, rows, columns, pool == "max")),
            False,
        )

    def background(self) -> Iterator[Step]:
        """The steps that fill the overview."""
        overview = self.fine
        if overview is not None:
            for i, j in overview.all_missing():
                yield partial(overview.fill, self.sight, i, j)

    def _source(self, levels: Levels, y: int, x: int, pool: str) -> Overview | None:
        """The overview a tile is made from, if it is. Single cells are those of `sight.tile`, where there are any."""
        if self.exact and levels == (0, 0):
            return None
        if self.stored is not None and _covers(self.stored, levels, pool):
            return self.stored
        if self.fine is not None and _covers(self.fine, levels, pool):
            return self.fine if self.fine.complete or self._cells(levels, y, x) > DIRECT else None
        return None

    def _direct(self, levels: Levels, rows: slice, columns: slice, pool: str) -> Plan:
        """A tile computed from q and k, in pieces of at most a patch."""
        grid = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.float32)
        reduce = "max" if pool == "max" else "sum"

        def step(band: slice, span: slice) -> None:
            cells = cells_of(band, levels[0], self.queries), cells_of(span, levels[1], self.keys)
            grid[
                band.start - rows.start : band.stop - rows.start, span.start - columns.start : span.stop - columns.start
            ] = self._picture(*cells, (1 << levels[0], 1 << levels[1]), reduce)

        pieces = [_cuts(span, max(PATCH >> level, 1)) for span, level in zip((rows, columns), levels, strict=True)]
        return Plan(
            [partial(step, band, span) for band in pieces[0] for span in pieces[1]],
            lambda: self._finish(levels, rows, columns, pool, grid),
            False,
        )

    def _estimate(self, levels: Levels, rows: slice, columns: slice, pool: str) -> Plan:
        """A tile made from a few rows of each bin."""
        estimate = Estimate(self.sight, self.counts, levels, rows, columns, pool == "max")
        return Plan(estimate.steps(), lambda: self._finish(levels, rows, columns, pool, estimate.values()), True)

    def _picture(self, rows: slice, columns: slice, cell: tuple[int, int], reduce: str) -> np.ndarray:
        """Sums or maxima of bins from q and k, kept nowhere. A cell is the same here as in any row and any tile."""
        if cell == (1, 1):
            return array(self.sight.tile(rows, columns, of=self.of)[0])
        request = Picture(rows=rows, columns=columns, cell=cell, reduce=reduce, of=self.of)
        found = self.sight.compute([request])[request]
        return array(found[0])

    def _finish(self, levels: Levels, rows: slice, columns: slice, pool: str, values: np.ndarray) -> np.ndarray:
        """A full tile: means over visible cells, NaN where no cell is visible and beyond the map."""
        visible = self._visible(levels, rows, columns)
        tile = np.full((TILE, TILE), np.nan, np.float32)
        here = tile[: values.shape[0], : values.shape[1]]
        here[...] = values / np.maximum(visible, 1) if pool == "mean" else values
        here[visible == 0] = np.nan
        return tile

    def _visible(self, levels: Levels, rows: slice, columns: slice) -> np.ndarray:
        """How many cells of each bin may be attended to."""
        cells = cells_of(rows, levels[0], self.queries), cells_of(columns, levels[1], self.keys)
        return self.counts(*cells, (1 << levels[0], 1 << levels[1]))

    def _bins(self, levels: Levels) -> tuple[int, int]:
        return bins_of(self.queries, levels[0]), bins_of(self.keys, levels[1])

    def _bin_spans(self, levels: Levels, y: int, x: int) -> tuple[slice, slice]:
        height, width = self._bins(levels)
        return slice(y * TILE, min((y + 1) * TILE, height)), slice(x * TILE, min((x + 1) * TILE, width))

    def _cell_spans(self, levels: Levels, y: int, x: int) -> tuple[slice, slice]:
        rows, columns = self._bin_spans(levels, y, x)
        return cells_of(rows, levels[0], self.queries), cells_of(columns, levels[1], self.keys)

    def _cells(self, levels: Levels, y: int, x: int) -> int:
        rows, columns = self._cell_spans(levels, y, x)
        return (rows.stop - rows.start) * (columns.stop - columns.start)


def _cuts(span: slice, size: int) -> list[slice]:
    return [slice(start, min(start + size, span.stop)) for start in range(span.start, span.stop, size)]


def _covers(overview: Overview, levels: Levels, pool: str) -> bool:
    fine_enough = levels[0] >= overview.levels[0] and levels[1] >= overview.levels[1]
    return fine_enough and (overview.has_maxima or pool != "max")
