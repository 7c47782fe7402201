"""One piece of work of the pass on the CPU: some bands of rows of one map, tile by tile.

A tile costs one matrix product, which gives the logarithms of the weights (base 2: torch's exp2 is twice as fast as
its exp), one exponential, and then one reading for each thing that is asked for. The rows of a pixel are summed tile
by tile into a strip, and the strip's columns once per band: after the first sum little is left.

Every operation costs some microseconds before it begins, because the arithmetic has pushed Python out of the cache.
So tiles are as large as the cache allows, and views of memory are made once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.lens.row_sums import RowSums, Scales, Tile
from sightline.lens.shade import Limits, Shade
from sightline.lens.strongest import Best

if TYPE_CHECKING:
    from sightline.attention.call import Call
    from sightline.lens.bands import Band
    from sightline.lens.columns import ColumnPool
    from sightline.lens.stretches import Stretches

_LOG2_E = math.log2(math.e)


class Buffers:
    """Memory that a piece works in, and views of it, which are made once."""

    def __init__(self, plan: Plan) -> None:
        like = plan.scales.rising
        self.logs, self.weights = like.new_empty(2, plan.height * (plan.width + plan.width // 4))
        # For each picture: rows of pixels, one column for each cell.
        self.strips = [
            like.new_zeros(n, columns.width) for n, columns in zip(plan.strip_rows, plan.columns, strict=True)
        ]
        self.sums = RowSums(set(plan.rows), plan.height, -(-plan.call.sizes.keys // plan.width), plan.scales)
        self.tiles: dict[tuple[int, int], Tile] = {}

    def tile(self, height: int, width: int) -> Tile:
        """Memory for a tile."""
        tile = self.tiles.get((height, width))
        if tile is None:
            logs, weights = (x[: height * width].view(height, width) for x in (self.logs, self.weights))
            tile = self.tiles[height, width] = Tile(logs, weights, weights.T)
        return tile


@dataclass
class Plan:
    """What all pieces share: the call, what is asked for, and where it goes.

    Maps are numbered through the batch. Rows are in the order in which they are taken: band after band, `order`.
    """

    call: Call
    lse: Tensor  # [*batch, heads, queries]
    seen: Stretches
    limits: Limits
    order: Tensor | None  # the numbers of the rows; None if they follow each other
    places: Tensor  # their positions among the keys
    start: int  # the first row
    height: int  # most rows of a band
    width: int  # columns of a tile
    rows: dict[str, Tensor]  # sums per row, [maps, rows]
    tops: list[tuple[Tensor, Tensor]]  # keys and weights, [maps, rows, n]
    by_query: list[Tensor | None]  # for each `received`: weights of the queries, [*batch, heads, queries]
    columns: list[ColumnPool]  # for each picture
    strip_rows: list[int]  # for each picture: most rows of pixels of a band
    strip_gives_received: bool  # the first picture sums all of the map, and the first `received` has no weights
    scales: Scales
    spare: list[Buffers] = field(default_factory=list)

    def take(self) -> Buffers:
        """Memory that no piece is using, or new memory, which is slow at first. To be given back to `spare`."""
        try:
            return self.spare.pop()
        except IndexError:
            return Buffers(self)

    def cuts(self, low: int, high: int) -> list[tuple[int, int]]:
        """Tiles from column `low` to `high`; a narrow rest goes with the tile before it."""
        edges = [*range(low, high, self.width), high]
        if len(edges) > 2 and edges[-1] - edges[-2] <= self.width // 4:
            del edges[-2]
        return list(pairwise(edges))


class Sweep:
    """Bands of rows of one map. Sums over rows go to `received` and `grids`; of these `tops` are the first rows."""

    def __init__(
        self, plan: Plan, index: int, bands: list[Band], received: list[Tensor], grids: list[Tensor], tops: list[int]
    ) -> None:
        s = plan.call.sizes
        self.plan, self.index, self.bands = plan, index, bands
        self.received, self.grids, self.tops = received, grids, tops
        self.rows = slice(bands[0].start - plan.start, bands[-1].stop - plan.start)
        self.at = (*(int(i) for i in np.unravel_index(index, (*s.batch, s.heads))),)
        self.batch = index // s.heads if len(plan.seen.first) > 1 else 0
        self.first, self.stop = plan.seen.first[self.batch], plan.seen.stop[self.batch]
        holes = plan.limits.holes
        self.holes = None if holes is None else holes[index // s.heads if len(holes) > 1 else 0]

    @property
    def cells(self) -> int:
        """How many cells there are to look at."""
        return sum((b.stop - b.start) * max(0, int(self.stop[b.stop - 1] - self.first[b.start])) for b in self.bands)

    def run(self) -> None:
        """Sweep over all bands."""
        plan = self.plan
        self._take_rows()
        self.keys: dict[tuple[int, int], Tensor] = {}
        self.buffers = plan.take()
        for band in self.bands:
            low, high = int(self.first[band.start]), int(self.stop[band.stop - 1])
            if low < high:
                self._band(band, low, high)
        plan.spare.append(self.buffers)

    def _take_rows(self) -> None:
        """Queries such that their products with keys, plus a level for each row, are logarithms."""
        plan, call = self.plan, self.plan.call
        rows = slice(self.bands[0].start, self.bands[-1].stop) if plan.order is None else plan.order[self.rows]
        q, self.k = call.q[self.at][rows], call.k[(*self.at[:-1], self.at[-1] // call.sizes.groups)]
        self.finite = bool(torch.isfinite(q.sum() + self.k.sum()))
        factor = call.scale * _LOG2_E if call.softcap is None else call.scale / call.softcap
        self.level = plan.lse[self.at][rows, None] * -_LOG2_E
        # A row that sees nothing is all hidden; here it must only not be NaN.
        self.level.masked_fill_(self.level == torch.inf, 0.0)
        self.q = q.to(self.level.dtype) * factor
        by_query = [None if x is None else x[self.at][rows] for x in plan.by_query]
        self.totals = list(zip(by_query, self.received, strict=True))[int(plan.strip_gives_received) :]
        first, stop = plan.limits[:2]
        self.limits = first[self.batch, rows], stop[self.batch, rows]
        self.places = plan.places[self.rows]

    def _band(self, band: Band, low: int, high: int) -> None:
        """All that the rows of a band see, from column `low` to `high`."""
        plan, sums, height = self.plan, self.buffers.sums, band.stop - band.start
        rows = slice(band.start - self.bands[0].start, band.stop - self.bands[0].start)
        q, level = self.q[rows], self.level[rows]
        tops = [Best(height, weights.shape[-1], weights.dtype) for _, weights in plan.tops]
        # Between these columns all rows see everything.
        begun, ended = int(self.first[band.stop - 1]), int(self.stop[band.start])
        strips = [
            (pool.maxima if columns.largest else pool.sums, strip[: pool.count], columns)
            for pool, strip, columns in zip(band.pools, self.buffers.strips, plan.columns, strict=True)
            if pool is not None
        ]
        if plan.rows:
            offset = plan.call.sizes.keys - plan.call.sizes.queries
            sums.begin(self.places[rows], band.start + offset, band.stop - 1 + offset)
        for left, right in plan.cuts(low, high):
            tile = self.buffers.tile(height, right - left)
            self._score(q, level, left, right, tile.logs)
            shades: list[Shade] = []
            if left < begun or ended < right or self.holes is not None:
                shades = self._shades(rows, left, right, begun, ended)
            for shade in shades:
                shade.hide(tile.logs, tile.weights, self.finite)
            torch.exp2(tile.logs, out=tile.weights)
            for reduce, strip, columns in strips:
                columns.fill(strip, left, right, tile.weights, reduce)
            for by_query, total in self.totals:
                if by_query is None:
                    total[left:right] += tile.weights.sum(0)
                else:
                    total[left:right].addmv_(tile.turned, by_query[rows])
            if plan.rows:
                sums.add(tile, left, right)
            for shade in shades if tops else ():
                shade.mark(tile.weights, tile.logs)
            for top in tops:
                top.add(tile.weights, left)
        self._finish(band, low, high, tops)

    def _score(self, q: Tensor, level: Tensor, left: int, right: int, logs: Tensor) -> None:
        """Logarithms of weights, base 2, of all cells of a tile."""
        keys = self.keys.get((left, right))
        if keys is None:
            keys = self.k[left:right].T
            if keys.dtype == logs.dtype:
                self.keys[left, right] = keys
            else:
                keys = keys.to(logs.dtype)
        softcap = self.plan.call.softcap
        if softcap is None:
            torch.addmm(level, q, keys, out=logs)
        else:
            torch.mm(q, keys, out=logs).tanh_().mul_(softcap * _LOG2_E).add_(level)

    def _shades(self, rows: slice, left: int, right: int, begun: int, ended: int) -> list[Shade]:
        """What rows of a band do not see of a tile."""
        keys, shades = self.plan.limits.keys, []
        stop, start = min(begun, right), max(ended, left)
        if left < stop:
            shades.append(Shade(slice(0, stop - left), keys[left:stop], self.limits[0][rows]))
        if start < right:
            shades.append(Shade(slice(start - left, right - left), self.limits[1][rows], keys[start:right]))
        if self.holes is not None and bool((holes := self.holes[left:right]).lt(0).any()):
            shades.append(Shade(slice(0, right - left), holes, torch.zeros_like(self.limits[0][rows])))
        return shades

    def _finish(self, band: Band, low: int, high: int, tops: list[Best]) -> None:
        """From what was found of a band to results."""
        plan = self.plan
        for i, pool in enumerate(band.pools):
            if pool is not None:
                top = pool.top - self.tops[i]
                strip, grid = self.buffers.strips[i][: pool.count], self.grids[i][top : top + pool.count]
                plan.columns[i].add(strip, low, high, grid)
        if plan.strip_gives_received:
            pool = band.pools[0]
            assert pool is not None
            self.received[0][low:high] += self.buffers.strips[0][: pool.count, low:high].sum(0)
        rows = slice(band.start - plan.start, band.stop - plan.start)
        for name, found in plan.rows.items():
            found[self.index, rows] = self.buffers.sums.result(name)
        for best, (keys, weights) in zip(tops, plan.tops, strict=True):
            keys[self.index, rows], weights[self.index, rows] = best.result()
