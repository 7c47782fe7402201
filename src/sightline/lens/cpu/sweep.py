"""One piece of work of the pass on the CPU: some bands of rows of one map, tile by tile.

A tile costs one matrix product, which gives the logarithms of the weights (base 2: torch's exp2 is twice as fast as
its exp), one exponential, and then one reading for each thing that is asked for. The rows of a pixel are summed tile
by tile into a strip, and the strip's columns once per band: after the first sum little is left. Where a kernel could be
compiled (`native.py`), it makes all of that but the product in one reading.

Every operation costs some microseconds before it begins, because the arithmetic has pushed Python out of the cache.
So tiles are as large as the cache allows, and views of memory are made once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sightline.lens.cpu.buffers import Block
from sightline.lens.cpu.hiding import Limits, Shade
from sightline.lens.cpu.native import CompiledSums
from sightline.lens.cpu.row_sums import BandSums, RowSums, Scales, Step, Tile
from sightline.lens.cpu.strips import Strip, Sums
from sightline.lens.cpu.top_keys import Best

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.kernels.native.tile import Kernel
    from sightline.lens.cpu.bands import Band
    from sightline.lens.cpu.stretches import Stretches
    from sightline.lens.cpu.strips import ColumnPool

_LOG2_E = math.log2(math.e)
# Bands whose programs are kept.
_PROGRAMS = 8


class Buffers:
    """Memory that a piece works in, and views of it, which are made once."""

    def __init__(self, plan: Plan) -> None:
        tile = plan.height * (plan.width + plan.width // 4)
        strips = [n * columns.width for n, columns in zip(plan.strip_rows, plan.columns, strict=True)]
        sums = -(-plan.height // Sums.each) * plan.call.sizes.keys if plan.of_cells else 0
        sizes = [tile, tile, sums, *strips]
        # For each picture a strip: rows of pixels, one column for each cell.
        self.block = Block(sum(sizes), plan.scales.rising.dtype)
        self.logs, self.weights, self.by_column, *self.strips = self.block.numbers.split(sizes)
        self.factor = None if plan.factor is None else plan.factor.new_ones(plan.height, 1)
        for columns, strip in zip(plan.columns, self.strips, strict=True):
            columns.clear(strip)
        tiles = 0 if plan.kernel else -(-plan.call.sizes.keys // plan.width)
        self.sums = RowSums(set(plan.rows), plan.height, tiles, plan.scales)
        self.tiles: dict[tuple[int, int], Tile] = {}
        self.programs: dict[tuple[int, int], Program] = {}

    def tile(self, height: int, width: int) -> Tile:
        """Memory for a tile."""
        tile = self.tiles.get((height, width))
        if tile is None:
            logs, weights = (x[: height * width].view(height, width) for x in (self.logs, self.weights))
            tile = self.tiles[height, width] = Tile(logs, weights)
        return tile

    def program(self, plan: Plan, batch: int, band: Band) -> Program:
        """What is to be done with a band, for all maps that come one after the other."""
        key = (batch, band.start)
        if key not in self.programs:
            if len(self.programs) >= _PROGRAMS:
                self.programs.clear()
            self.programs[key] = Program(plan, self, batch, band)
        return self.programs[key]


class Stride(NamedTuple):
    """A tile of a band, what of it is hidden, and what is done when it has its logarithms."""

    left: int
    right: int
    tile: Tile
    shades: list[Shade]
    hiding: list[Step] | None  # how logarithms are hidden, if they are finite; None if it would need much memory
    steps: list[Step]


class Program:
    """What is done with a band of any map: operations on memory that is known, so that none has to be looked up.

    After each long operation Python is slow, because it was pushed out of the cache; and while it does anything, the
    other threads cannot. So nothing but long operations is left between the first and the last tile.
    """

    def __init__(self, plan: Plan, buffers: Buffers, batch: int, band: Band) -> None:
        first, stop = (_member(x, batch) for x in plan.seen[:2])
        self.low, self.high = int(first[band.start]), int(stop[band.stop - 1])
        # Between these columns all rows see everything.
        begun, ended = int(first[band.stop - 1]), int(stop[band.start])
        cuts = plan.cuts(self.low, self.high)
        self.widths = [right - left for left, right in cuts]
        self.strips = {
            i: Strip(plan.columns[i], pool, buffers.strips[i], cuts)
            for i, pool in enumerate(band.pools)
            if pool is not None and plan.columns[i].touches(self.low, self.high) and not plan.of_cells
        }
        self.by_column: Sums | None = None
        if plan.of_cells and plan.strip_gives_received:
            self.by_column = Sums(buffers.by_column, band.stop - band.start, self.low, self.high)
        self.factor = None if buffers.factor is None else buffers.factor[: band.stop - band.start]
        offset = plan.call.sizes.keys - plan.call.sizes.queries
        places = plan.places[band.start - plan.start : band.stop - plan.start]
        self.sums: BandSums | CompiledSums
        if plan.kernel is None:
            self.sums = BandSums(buffers.sums, places, band.start + offset, band.stop - 1 + offset)
        else:
            self.sums = CompiledSums(plan.kernel, list(plan.rows), places, self.factor)
        self.strides: list[Stride] = []
        for n, (left, right) in enumerate(cuts):
            tile = buffers.tile(band.stop - band.start, right - left)
            shades = plan.shades(batch, band, left, right, begun, ended)
            if isinstance(self.sums, BandSums):
                steps = self._steps(self.sums, tile, n, left, right)
                self.strides.append(Stride(left, right, tile, shades, self._hiding(shades, tile), steps))
                continue
            seen = None
            if shades and plan.limits.holes is None:
                # What the kernel does not look at need not be hidden.
                seen = (first[band.order.numpy()], stop[band.order.numpy()])
            hiding: list[Step] | None = [] if seen is not None or not shades else None
            steps = self._compiled_steps(plan, self.sums, tile, n, left, seen)
            self.strides.append(Stride(left, right, tile, shades, hiding, steps))

    def _steps(self, sums: BandSums, tile: Tile, n: int, left: int, right: int) -> list[Step]:
        """What is done with the n-th tile by torch's operations."""
        steps: list[Step] = [partial(torch.exp2, tile.logs, out=tile.weights), *sums.steps(tile, left, right)]
        if self.factor is not None:
            # What rows have among their keys is done; from here on it is what the sinks have left of it.
            steps.append(partial(torch.mul, tile.weights, self.factor, out=tile.weights))
        for strip in self.strips.values():
            steps += strip.steps(n, left, tile.weights)
        return steps

    def _compiled_steps(
        self, plan: Plan, sums: CompiledSums, tile: Tile, n: int, left: int, seen: tuple[np.ndarray, np.ndarray] | None
    ) -> list[Step]:
        """What is done with it by the kernel, and by torch's operations what the kernel does not know."""
        if plan.of_cells:
            return [sums.step_into_picture(tile, left, seen, self.by_column, plan.call.sizes.keys)]
        strips = list(self.strips.values())
        fused = next((strip for strip in strips if strip.is_regular(n, left, tile.logs.shape[1])), None)
        rest = [step for strip in strips if strip is not fused for step in strip.steps(n, left, tile.weights)]
        keep = bool(rest) or bool(plan.tops) or len(plan.by_query) > plan.strip_gives_received
        return [sums.step(tile, left, seen, None if fused is None else (fused, n), keep), *rest]

    def _hiding(self, shades: list[Shade], tile: Tile) -> list[Step] | None:
        """How cells are hidden, with margins that are made once, but for one tile of a band at most."""
        if len(shades) > 1 or any(stride.shades for stride in self.strides):
            return None
        parts = [tile.logs[:, shade.columns] for shade in shades]
        margins = [shade.ahead - shade.behind for shade in shades]
        return [partial(torch.minimum, part, margin, out=part) for part, margin in zip(parts, margins, strict=True)]


@dataclass
class Plan:
    """What all pieces share: the call, what is asked for, and where it goes.

    Maps are numbered through the batch. Rows are in the order in which they are taken: band after band, `order`.
    """

    call: Call
    level: Tensor  # what makes logarithms of weights, base 2, of scores: [maps, queries, 1]
    rest: Tensor | None  # what is to be taken away beside it
    measures: bool  # where it is NaN it is measured
    factor: Tensor | None  # what sinks leave of each row's weights, [maps, queries, 1]
    seen: Stretches
    limits: Limits
    order: Tensor | None  # the numbers of the rows; None if they follow each other
    places: np.ndarray  # their positions among the keys
    start: int  # the first row
    height: int  # most rows of a band
    width: int  # columns of a tile
    rows: dict[str, np.ndarray]  # sums per row, [maps, rows]
    tops: list[tuple[Tensor, Tensor]]  # keys and weights, [maps, rows, n]
    by_query: list[Tensor | None]  # for each `received`: weights of the queries, [*batch, heads, queries]
    columns: list[ColumnPool]  # for each picture
    strip_rows: list[int]  # for each picture: most rows of pixels of a band
    strip_gives_received: bool  # the first picture sums all of the map, and the first `received` has no weights
    scales: Scales
    kernel: Kernel | None = None  # the compiled one
    of_cells: bool = False  # there is one picture, each of its pixels is a cell, and the kernel writes into it
    spare: list[Buffers] = field(default_factory=list)
    finite: dict[int, bool] = field(default_factory=dict)  # for each map: there is no inf and no NaN in q and k

    @property
    def batches(self) -> int:
        """How many members of the batch have something hidden in their own way."""
        return max(len(self.seen.first), 0 if self.limits.holes is None else len(self.limits.holes))

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

    def shades(self, batch: int, band: Band, left: int, right: int, begun: int, ended: int) -> list[Shade]:
        """What rows of a band do not see of a tile."""
        first, last, keys, holes = self.limits
        shades, stop, start = [], min(begun, right), max(ended, left)
        if left < stop:
            shades.append(Shade(slice(0, stop - left), keys[left:stop], band.of(_member(first, batch))))
        if start < right:
            shades.append(Shade(slice(start - left, right - left), band.of(_member(last, batch)), keys[start:right]))
        if holes is not None:
            part = _member(holes, batch)[left:right]
            if bool(part.lt(0).any()):
                shades.append(Shade(slice(0, right - left), part, keys.new_zeros(band.stop - band.start, 1)))
        return shades


class Sweep:
    """Bands of rows of one map. Sums over rows go to `received` and `grids`; of these `tops` are the first rows."""

    def __init__(
        self, plan: Plan, index: int, bands: list[Band], received: list[Tensor], grids: list[Tensor], tops: list[int]
    ) -> None:
        self.plan, self.index, self.bands = plan, index, bands
        self.received, self.grids, self.tops = received, grids, tops
        self.batch = index // plan.call.sizes.heads if plan.batches > 1 else 0
        self.first, self.stop = (_member(x, self.batch) for x in plan.seen[:2])

    @property
    def cells(self) -> int:
        """How many cells there are to look at."""
        return sum((b.stop - b.start) * max(0, int(self.stop[b.stop - 1] - self.first[b.start])) for b in self.bands)

    def run(self) -> None:
        """Sweep over all bands."""
        plan, call, s = self.plan, self.plan.call, self.plan.call.sizes
        self.at = (*(int(i) for i in np.unravel_index(self.index, (*s.batch, s.heads))),)
        self.q, self.k = call.q[self.at], call.k[(*self.at[:-1], self.at[-1] // s.groups)]
        self.level = plan.level[self.index]
        self.factor = call.scale * _LOG2_E if call.softcap is None else call.scale / call.softcap
        buffers = plan.take()
        for band in self.bands:
            program = buffers.program(plan, self.batch, band)
            if program.strides:
                self._band(band, program)
        plan.spare.append(buffers)

    def _band(self, band: Band, program: Program) -> None:
        """All that the rows of a band see."""
        plan, height = self.plan, band.stop - band.start
        level = band.of(self.level)
        q, keys = _as(level.dtype, band.of(self.q)), self.k[program.low : program.high].T.split(program.widths, 1)
        tops = [Best(height, weights.shape[-1], weights.dtype) for _, weights in plan.tops]
        weighted = [None if x is None else band.of(x[self.at]) for x in plan.by_query]
        totals = list(zip(weighted, self.received, strict=True))[int(plan.strip_gives_received) :]
        if program.factor is not None and plan.factor is not None:
            program.factor.copy_(band.of(plan.factor[self.index]))
        rest = self._rest(band, program, q, level, keys)
        if isinstance(program.sums, BandSums):
            program.sums.begin()
        else:
            program.sums.begin(self.grids[0][band.start].data_ptr() if plan.of_cells else 0)
        for (left, right, tile, shades, hiding, steps), part in zip(program.strides, keys, strict=True):
            self._score(q, level, part, tile.logs)
            if rest is not None:
                tile.logs.sub_(rest)
            if shades and (hiding is None or not self._finite()):
                for shade in shades:
                    shade.hide(tile.logs, tile.weights, self._finite())
            else:
                for step in hiding or ():
                    step()
            for step in steps:
                step()
            for by_query, total in totals:
                if by_query is None:
                    total[left:right] += tile.weights.sum(0)
                else:
                    total[left:right].addmv_(tile.turned, by_query)
            for shade in shades if tops else ():
                shade.mark(tile.weights, tile.logs)
            for top in tops:
                top.add(tile.weights, left)
        self._finish(band, program, tops)

    def _rest(self, band: Band, program: Program, q: Tensor, level: Tensor, keys: tuple[Tensor, ...]) -> Tensor | None:
        """What rows of a band lack beside their level, base 2, `[rows, 1]`; measured by the tiles that follow."""
        if self.plan.rest is None:
            return None
        rest = band.of(self.plan.rest[self.index])
        unknown = rest.isnan()
        if not self.plan.measures or not bool(unknown.any()):
            return rest if bool(rest.any()) else None
        total = torch.zeros_like(rest)
        for (_, _, tile, shades, *_), part in zip(program.strides, keys, strict=True):
            self._score(q, level, part, tile.logs)
            for shade in shades:
                shade.hide(tile.logs, tile.weights, self._finite())
            torch.exp2(tile.logs, out=tile.weights)
            total += tile.weights.sum(1, keepdim=True)
        found = total.log2()
        rest = torch.where(unknown & found.isfinite(), found, 0.0)
        band.put(self.plan.rest[self.index], rest)
        return rest

    def _finite(self) -> bool:
        """Whether there is no inf and no NaN in q and k, which would stay in their sums."""
        if self.plan.kernel is not None:
            return True  # else there would be none
        found = self.plan.finite
        if self.index not in found:
            found[self.index] = math.isfinite(float(self.q.sum() + self.k.sum()))
        return found[self.index]

    def _score(self, q: Tensor, level: Tensor, keys: Tensor, logs: Tensor) -> None:
        """Logarithms of weights, base 2, of all cells of a tile."""
        keys, softcap = _as(logs.dtype, keys), self.plan.call.softcap
        if softcap is None:
            torch.addmm(level, q, keys, alpha=self.factor, out=logs)
        else:
            torch.addmm(level, q, keys, beta=0.0, alpha=self.factor, out=logs)
            logs.tanh_().mul_(softcap * _LOG2_E).add_(level)

    def _finish(self, band: Band, program: Program, tops: list[Best]) -> None:
        """From what was found of a band to results."""
        plan = self.plan
        for i, strip in program.strips.items():
            strip.finish(self.grids[i].numpy(), self.tops[i])
        if plan.strip_gives_received:
            (program.by_column or program.strips[0]).add_rows(self.received[0].numpy())
        rows = slice(band.start - plan.start, band.stop - plan.start)
        for name, found in plan.rows.items():
            program.sums.result(name, found[self.index, rows])
        for best, (keys, weights) in zip(tops, plan.tops, strict=True):
            keys[self.index, rows], weights[self.index, rows] = best.result()


def _member(x: Any, batch: int) -> Any:
    """What holds for a member of the batch, or for all of them."""
    return x[batch if len(x) > 1 else 0]


def _as(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Some numbers in a dtype; if they are in it, without waiting for Python's lock."""
    return x if x.dtype == dtype else x.to(dtype)
