"""What a walk over tiles gathers: each accumulator sees every tile once and keeps only sums or maxima.

Sums over rows are matrix products with a few rows of ones, so that they run at the speed of the matrix unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sightline.lens.geometry import Axis
from sightline.lens.statistics import STATISTICS, Cells, Rows, Statistic

if TYPE_CHECKING:
    from sightline.backends.call import Call


class Seen(NamedTuple):
    """One tile as the accumulators see it.

    For softmax there are `shares`, which sum to 1 over the keys a row sees (they are the weights where there is no
    sink), their logarithms `log`, about -1e30 where a cell is hidden, and `level`, by which scores are larger than
    these. For other normalisers there are `scores`.
    """

    rows: slice
    columns: slice
    weights: Tensor  # [*batch, heads, rows, columns]
    visible: Tensor | None
    scores: Tensor | None = None
    log: Tensor | None = None
    shares: Tensor | None = None
    level: Tensor | None = None  # [*batch, heads, rows, 1]
    magnitude: Tensor | None = None  # the weights without their sign, where they have one and somebody has made that

    @property
    def sizes(self) -> Tensor:
        """The weights without their sign."""
        return self.weights.abs() if self.magnitude is None else self.magnitude


class Accumulator:
    """Takes tiles, and gives its result at the end."""

    def band(self, rows: slice) -> None:
        """A new band of rows begins."""

    def add(self, tile: Seen) -> None:
        raise NotImplementedError

    def result(self) -> object:
        raise NotImplementedError


class RowSums(Accumulator):
    """Per row: the sums and maxima of some statistics, as they are declared.

    Those over shares are of what the keys have among each other: of the shares of a softmax, which sum to 1, or of the
    weights over the largest of them so far (`unit`), however small that is; `mass` is what these sum to.
    """

    def __init__(self, call: Call, wanted: Iterable[str], dtype: torch.dtype | None = None) -> None:
        s, names = call.sizes, set(wanted)
        self.call, self.offset = call, s.keys - s.queries
        self.statistics = [statistic for name, statistic in STATISTICS.items() if name in names]
        shape = (*s.batch, s.heads, s.queries)
        empty = torch.zeros(shape, dtype=dtype or call.compute_dtype, device=call.device)
        self.sums = {_key(one, part): empty.clone() for one in self.statistics for part in one.sums}
        self.maxima = {
            _key(one, part): torch.full_like(empty, -torch.inf) for one in self.statistics for part in one.maxima
        }
        over = [] if call.normalizer.is_softmax else self.statistics
        self.over_largest = [one for one in over if one.of == "shares"]
        if self.over_largest:
            self.sums |= {"mass": empty.clone(), "unit": empty.clone()}
        self._added = [(self.sums[_key(one, part)], add) for one in self.statistics for part, add in one.sums.items()]
        self._largest = [
            (self.maxima[_key(one, part)], largest) for one in self.statistics for part, largest in one.maxima.items()
        ]

    def add(self, tile: Seen) -> None:
        rows, shares = tile.rows, tile.shares
        if shares is None and self.over_largest:
            # Hidden cells have weight 0.
            unit = torch.maximum(self.sums["unit"][..., rows], tile.weights.amax(-1))
            self._rescale(rows, unit)
            shares = tile.weights / unit.masked_fill(unit == 0, 1.0)[..., None]
        cells = Cells(tile, self.offset, shares)
        for total, part in self._added:
            total[..., rows].add_(part(cells))
        for most, part in self._largest:
            own = most[..., rows]
            torch.maximum(own, part(cells), out=own)
        if self.over_largest:
            self.sums["mass"][..., rows].add_(cells.mass)

    def _rescale(self, rows: slice, unit: Tensor) -> None:
        """Go on with shares of a larger weight: a share of the old one is a smaller share of the new one."""
        before, mass = self.sums["unit"][..., rows], self.sums["mass"][..., rows]
        smaller = before / unit.masked_fill(unit == 0, 1.0)
        for one in self.over_largest:
            own = {part: self.sums[_key(one, part)][..., rows] for part in one.sums}
            own |= {part: self.maxima[_key(one, part)][..., rows] for part in one.maxima}
            for part, x in one.rescaled(Rows(own, mass), smaller).items():
                own[part].copy_(x)
        mass.mul_(smaller)
        before.copy_(unit)

    def join(self, other: RowSums, rows: slice) -> None:
        """Add what another one found of other columns of some rows."""
        mine, theirs = ({name: x[..., rows] for name, x in part.sums.items()} for part in (self, other))
        if self.over_largest:
            unit = torch.maximum(mine["unit"], theirs["unit"].to(mine["unit"].dtype))
            self._rescale(rows, unit)
            other._rescale(rows, unit.to(theirs["unit"].dtype))
        for name in mine.keys() - {"unit"}:
            mine[name] += theirs[name]
        for name, most in self.maxima.items():
            own = most[..., rows]
            torch.maximum(own, other.maxima[name][..., rows].to(own.dtype), out=own)

    def result(self) -> dict[str, Tensor]:
        every, mass = self.sums | self.maxima, self.sums.get("mass")
        return {
            one.name: one.finished(
                Rows(
                    {part: every[_key(one, part)] for part in (*one.sums, *one.maxima)},
                    mass if one in self.over_largest else None,
                )
            )
            for one in self.statistics
        }


def _key(statistic: Statistic, part: str) -> str:
    return part if part == statistic.name else f"{statistic.name}.{part}"


class Received(Accumulator):
    """Per key: the sum over queries, each with its weight if there are any; or the sum of what has lost its sign."""

    def __init__(self, call: Call, weights: Tensor | None, magnitude: bool = False) -> None:
        s = call.sizes
        self.by_query = weights if weights is None or not magnitude else weights.abs()
        self.magnitude = magnitude
        self.total = torch.zeros(*s.batch, s.heads, s.keys, dtype=call.compute_dtype, device=call.device)

    def add(self, tile: Seen) -> None:
        if self.magnitude:
            tile = tile._replace(weights=tile.sizes)
        if self.by_query is None:
            self.total[..., tile.columns] += tile.weights.sum(-2)
        else:
            self.total[..., tile.columns] += (self.by_query[..., None, tile.rows] @ tile.weights).squeeze(-2)

    def result(self) -> Tensor:
        return self.total


class Largest(Accumulator):
    """Per key: the largest cell over queries, each with its weight if there are any; by magnitude, the sign kept.

    Cells that are hidden count as 0, so what is above and what is below 0 is gathered apart.
    """

    def __init__(self, call: Call, weights: Tensor | None) -> None:
        s = call.sizes
        self.by_query = weights
        self.above = torch.zeros(*s.batch, s.heads, s.keys, dtype=call.compute_dtype, device=call.device)
        self.below = torch.zeros_like(self.above)

    def add(self, tile: Seen) -> None:
        cells = tile.weights
        if self.by_query is not None:
            cells = cells * self.by_query[..., tile.rows, None]
        above, below = self.above[..., tile.columns], self.below[..., tile.columns]
        torch.maximum(above, cells.amax(-2), out=above)
        torch.minimum(below, cells.amin(-2), out=below)

    def result(self) -> Tensor:
        return larger(self.above, self.below)


def larger(above: Tensor, below: Tensor) -> Tensor:
    """Of a number above 0 and one below the one that is further from it; of equal ones that above."""
    return torch.where(above >= -below, above, below)


class Strongest(Accumulator):
    """Per row: the n largest weights and their keys; of equal weights the lower key comes first.

    Those of signed cells are the largest by magnitude.
    """

    def __init__(self, call: Call, n: int, signed: bool = False) -> None:
        s = call.sizes
        self.n, self.signed = n, signed
        shape = (*s.batch, s.heads, s.queries, n)
        self.weights = torch.full(shape, -1.0, dtype=call.compute_dtype, device=call.device)
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=call.device)
        self.cells = torch.zeros_like(self.weights) if signed else None  # with their signs

    def add(self, tile: Seen) -> None:
        cells, weights = tile.weights, tile.sizes if self.signed else tile.weights
        weights = weights if tile.visible is None else weights.masked_fill(~tile.visible, -1.0)
        mine, keys = self.weights[..., tile.rows, :], self.keys[..., tile.rows, :]
        n = min(self.n, weights.shape[-1])
        values, places = weights.topk(n, -1)
        least = values[..., -1:].clamp_min(0.0)  # hidden keys are below 0, and which of them are taken is all the same
        if n < weights.shape[-1] and bool((weights >= least).sum(-1).gt(n).any()):
            # More equal weights than places: topk does not say which it takes, a stable sort does.
            values, places = (t[..., :n] for t in weights.sort(dim=-1, descending=True, stable=True))
        places, by_place = places.sort(-1)
        values = values.gather(-1, by_place)
        # What was found before has lower keys and stands first, so a stable sort keeps the order among equals.
        all_values = torch.cat([mine, values], -1)
        all_keys = torch.cat([keys, places + tile.columns.start], -1)
        best, order = all_values.sort(dim=-1, descending=True, stable=True)
        self.weights[..., tile.rows, :] = best[..., : self.n]
        self.keys[..., tile.rows, :] = all_keys.gather(-1, order)[..., : self.n]
        if self.cells is not None:
            signed = torch.cat([self.cells[..., tile.rows, :], cells.gather(-1, places)], -1)
            self.cells[..., tile.rows, :] = signed.gather(-1, order)[..., : self.n]

    def result(self) -> tuple[Tensor, Tensor]:
        absent = self.weights < 0
        found = self.weights if self.cells is None else self.cells
        return self.keys.masked_fill(absent, -1), found.masked_fill(absent, 0.0)


class Pixels(Accumulator):
    """The sums or maxima of the cells of every pixel; the maxima of signed cells are by magnitude."""

    def __init__(self, call: Call, vertical: Axis, horizontal: Axis, largest: bool, signed: bool = False) -> None:
        s = call.sizes
        self.vertical, self.horizontal, self.largest = vertical, horizontal, largest
        self.grid = torch.zeros(
            *s.batch, s.heads, vertical.bins, horizontal.bins, dtype=call.compute_dtype, device=call.device
        )
        self.below = torch.zeros_like(self.grid) if largest and signed else None  # the largest of what is below 0

    def add(self, tile: Seen) -> None:
        rows, columns = _overlap(tile.rows, self.vertical), _overlap(tile.columns, self.horizontal)
        if rows is None or columns is None:
            return
        weights = tile.weights
        if rows != tile.rows or columns != tile.columns:
            weights = weights[
                ...,
                rows.start - tile.rows.start : rows.stop - tile.rows.start,
                columns.start - tile.columns.start : columns.stop - tile.columns.start,
            ]
        self._put(self.grid, weights, rows, columns)
        if self.below is not None:
            self._put(self.below, weights.neg(), rows, columns)

    def _put(self, grid: Tensor, weights: Tensor, rows: slice, columns: slice) -> None:
        top, weights = pool(weights, -2, rows, self.vertical, self.largest)
        left, weights = pool(weights, -1, columns, self.horizontal, self.largest)
        part = grid[..., top : top + weights.shape[-2], left : left + weights.shape[-1]]
        if self.largest:
            torch.maximum(part, weights, out=part)
        else:
            part += weights

    def result(self) -> Tensor:
        return self.grid if self.below is None else larger(self.grid, -self.below)


def _overlap(span: slice, axis: Axis) -> slice | None:
    start, stop = max(span.start, axis.start), min(span.stop, axis.stop)
    return slice(start, stop) if start < stop else None


def pool(x: Tensor, dim: int, span: slice, axis: Axis, largest: bool) -> tuple[int, Tensor]:
    """The bins of a stretch of the map along one axis: the first bin's number, and their sums or maxima."""
    first = int(np.searchsorted(axis.edges, span.start, side="right")) - 1
    stop = int(np.searchsorted(axis.edges, span.stop, side="left"))
    length, cell = span.stop - span.start, axis.regular
    if cell == 1:
        return first, x
    if stop - first == 1:
        return first, x.amax(dim, keepdim=True) if largest else x.sum(dim, keepdim=True)
    if cell and span.start == axis.edges[first] and length % cell == 0:
        blocks = x.unflatten(dim, (length // cell, cell))
        return first, blocks.amax(dim) if largest else blocks.sum(dim)
    edges = np.clip(axis.edges[first : stop + 1], span.start, span.stop) - span.start
    if largest:
        # Bins differ in length by at most a few cells; repeating the last cell of a bin does not change a maximum.
        widest = int(np.diff(edges).max())
        index = np.minimum(edges[:-1, None] + np.arange(widest), edges[1:, None] - 1)
        picked = x.index_select(dim, torch.from_numpy(index.ravel()).to(x.device))
        return first, picked.unflatten(dim, index.shape).amax(dim)
    member = np.repeat(np.arange(stop - first), np.diff(edges))
    onehot = torch.from_numpy(member == np.arange(stop - first)[:, None]).to(x.device, x.dtype)
    return first, onehot @ x if dim == -2 else x @ onehot.mT
