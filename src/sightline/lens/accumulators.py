"""What a walk over tiles gathers: each accumulator sees every tile once and keeps only sums or maxima.

Sums over rows are matrix products with a few rows of ones, so that they run at the speed of the matrix unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sightline.lens.geometry import Axis

if TYPE_CHECKING:
    from sightline.attention.call import Call


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


class Accumulator:
    """Takes tiles, and gives its result at the end."""

    def band(self, rows: slice) -> None:
        """A new band of rows begins."""

    def add(self, tile: Seen) -> None:
        raise NotImplementedError

    def result(self) -> object:
        raise NotImplementedError


class RowSums(Accumulator):
    """Per row: the sum of the weights, the expected logarithm, the expected distance, the largest score.

    Logarithms and distances are of what the keys have among each other: of the shares, which sum to 1, or of the
    weights over the largest of them so far (`unit`), however small that is.
    """

    def __init__(self, call: Call, wanted: set[str]) -> None:
        s = call.sizes
        self.wanted, self.call = wanted, call
        shape = (*s.batch, s.heads, s.queries)
        empty = torch.zeros(shape, dtype=call.compute_dtype, device=call.device)
        self.sums = {name: empty.clone() for name in self._kept()}
        self.largest = torch.full_like(empty, -torch.inf) if "max_score" in wanted else None

    def _kept(self) -> list[str]:
        kept = [name for name in ("entropy", "distance") if name in self.wanted]
        over_largest = kept and not self.call.normalizer.is_softmax
        return kept + (["mass", "unit"] if over_largest else []) + (["total"] if "total" in self.wanted else [])

    def add(self, tile: Seen) -> None:
        rows = tile.rows
        if self.largest is not None:
            part = self.largest[..., rows]
            torch.maximum(part, _largest_score(tile), out=part)
        if "total" in self.sums:
            self.sums["total"][..., rows] += tile.weights.sum(-1)
        if tile.shares is not None:
            self._add(tile, tile.shares, tile.log)
        elif "unit" in self.sums:
            # Hidden cells have weight 0.
            before = self.sums["unit"][..., rows]
            unit = torch.maximum(before, tile.weights.amax(-1))
            self._rescale(rows, unit)
            self._add(tile, tile.weights / unit.masked_fill(unit == 0, 1.0)[..., None], None)

    def _rescale(self, rows: slice, unit: Tensor) -> None:
        """Go on with shares of a larger weight: a share of the old one is a smaller share of the new one."""
        sums = {name: x[..., rows] for name, x in self.sums.items()}
        smaller = sums["unit"] / unit.masked_fill(unit == 0, 1.0)
        if "entropy" in sums:
            # The sum of (s w) log (s w) is s times (the sum of w log w, and log s times the sum of w).
            sums["entropy"].add_(torch.where(smaller > 0, smaller.log(), 0.0) * sums["mass"]).mul_(smaller)
        for name in ("mass", "distance"):
            if name in sums:
                sums[name].mul_(smaller)
        sums["unit"].copy_(unit)

    def _add(self, tile: Seen, shares: Tensor, log: Tensor | None) -> None:
        if "mass" in self.sums or "distance" in self.sums:
            self._linear(tile, shares)
        if "entropy" in self.sums:
            self.sums["entropy"][..., tile.rows] += _times_log(shares, log)

    def _linear(self, tile: Seen, shares: Tensor) -> None:
        """Sums and distances: away from the diagonal a distance is a row's part plus a column's part, both positive."""
        s, rows, columns = self.call.sizes, tile.rows, tile.columns
        if "distance" not in self.sums:
            self.sums["mass"][..., rows] += shares.sum(-1)
            return
        place = torch.arange(rows.start, rows.stop, device=shares.device) + (s.keys - s.queries)
        column = torch.arange(columns.start, columns.stop, device=shares.device)
        first, last = rows.start + s.keys - s.queries, rows.stop - 1 + s.keys - s.queries
        before, after = columns.stop - 1 <= first, columns.start >= last
        if not before and not after:
            gap = (place[:, None] - column).abs().to(shares.dtype)
            self.sums["distance"][..., rows] += (shares * gap).sum(-1)
            if "mass" in self.sums:
                self.sums["mass"][..., rows] += shares.sum(-1)
            return
        inner = (columns.stop - 1 - column) if before else (column - columns.start)
        outer = (place - (columns.stop - 1)) if before else (columns.start - place)
        basis = torch.stack([torch.ones_like(inner), inner], -1).to(shares.dtype)
        both = shares @ basis
        self.sums["distance"][..., rows] += both[..., 0] * outer.to(shares.dtype) + both[..., 1]
        if "mass" in self.sums:
            self.sums["mass"][..., rows] += both[..., 0]

    def join(self, other: RowSums, rows: slice) -> None:
        """Add what another one found of other columns of some rows."""
        mine, theirs = ({name: x[..., rows] for name, x in part.sums.items()} for part in (self, other))
        if "unit" in mine:
            unit = torch.maximum(mine["unit"], theirs["unit"].to(mine["unit"].dtype))
            self._rescale(rows, unit)
            other._rescale(rows, unit.to(theirs["unit"].dtype))
        for name in mine.keys() - {"unit"}:
            mine[name] += theirs[name]
        if self.largest is not None and other.largest is not None:
            part = self.largest[..., rows]
            torch.maximum(part, other.largest[..., rows], out=part)

    def result(self) -> dict[str, Tensor]:
        return finish_rows(dict(self.sums), self.largest)


def finish_rows(found: dict[str, Tensor], largest: Tensor | None) -> dict[str, Tensor]:
    """Row statistics from sums over shares w, of w log w (`entropy`), of w |i - j| (`distance`).

    If shares need not sum to 1 their sum is `mass`, and they are divided by it.
    """
    mass = found.pop("mass", None)
    found.pop("unit", None)
    if mass is not None:
        some = mass.clamp_min(torch.finfo(mass.dtype).tiny)
    if "distance" in found and mass is not None:
        found["distance"] = torch.where(mass > 0, found["distance"] / some, 0.0)
    if "entropy" in found:
        # Entropy of the shares divided by their sum: log(sum) - (sum of w log w) / sum.
        spread = -found["entropy"]
        if mass is not None:
            spread = torch.where(mass > 0, some.log() + spread / some, 0.0)
        found["entropy"] = spread.clamp_min(0.0)
    if largest is not None:
        found["max_score"] = largest
    return found


def _largest_score(tile: Seen) -> Tensor:
    if tile.scores is not None:
        return tile.scores.amax(-1)
    assert tile.log is not None
    assert tile.level is not None
    found = tile.log.amax(-1)
    return torch.where(found <= -1e29, -torch.inf, found + tile.level[..., 0])


class Received(Accumulator):
    """Per key: the sum over queries, each with its weight if there are any."""

    def __init__(self, call: Call, weights: Tensor | None) -> None:
        s = call.sizes
        self.by_query = weights
        self.total = torch.zeros(*s.batch, s.heads, s.keys, dtype=call.compute_dtype, device=call.device)

    def add(self, tile: Seen) -> None:
        if self.by_query is None:
            self.total[..., tile.columns] += tile.weights.sum(-2)
        else:
            self.total[..., tile.columns] += (self.by_query[..., None, tile.rows] @ tile.weights).squeeze(-2)

    def result(self) -> Tensor:
        return self.total


class Strongest(Accumulator):
    """Per row: the n largest weights and their keys; of equal weights the lower key comes first."""

    def __init__(self, call: Call, n: int) -> None:
        s = call.sizes
        self.n = n
        shape = (*s.batch, s.heads, s.queries, n)
        self.weights = torch.full(shape, -1.0, dtype=call.compute_dtype, device=call.device)
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=call.device)

    def add(self, tile: Seen) -> None:
        weights = tile.weights if tile.visible is None else tile.weights.masked_fill(~tile.visible, -1.0)
        mine, keys = self.weights[..., tile.rows, :], self.keys[..., tile.rows, :]
        n = min(self.n, weights.shape[-1])
        values, places = weights.topk(n, -1)
        if n < weights.shape[-1] and bool((weights >= values[..., -1:]).sum(-1).gt(n).any()):
            # More equal weights than places: topk does not say which it takes, a stable sort does.
            values, places = (t[..., :n] for t in weights.sort(dim=-1, descending=True, stable=True))
        places, order = places.sort(-1)
        values = values.gather(-1, order)
        # What was found before has lower keys and stands first, so a stable sort keeps the order among equals.
        all_values = torch.cat([mine, values], -1)
        all_keys = torch.cat([keys, places + tile.columns.start], -1)
        best, order = all_values.sort(dim=-1, descending=True, stable=True)
        self.weights[..., tile.rows, :] = best[..., : self.n]
        self.keys[..., tile.rows, :] = all_keys.gather(-1, order)[..., : self.n]

    def result(self) -> tuple[Tensor, Tensor]:
        absent = self.weights < 0
        return self.keys.masked_fill(absent, -1), self.weights.masked_fill(absent, 0.0)


class Pixels(Accumulator):
    """The sums or maxima of the cells of every pixel."""

    def __init__(self, call: Call, vertical: Axis, horizontal: Axis, largest: bool) -> None:
        s = call.sizes
        self.vertical, self.horizontal, self.largest = vertical, horizontal, largest
        self.grid = torch.zeros(
            *s.batch, s.heads, vertical.bins, horizontal.bins, dtype=call.compute_dtype, device=call.device
        )

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
        top, weights = _pool(weights, -2, rows, self.vertical, self.largest)
        left, weights = _pool(weights, -1, columns, self.horizontal, self.largest)
        part = self.grid[..., top : top + weights.shape[-2], left : left + weights.shape[-1]]
        if self.largest:
            torch.maximum(part, weights, out=part)
        else:
            part += weights

    def result(self) -> Tensor:
        return self.grid


def _overlap(span: slice, axis: Axis) -> slice | None:
    start, stop = max(span.start, axis.start), min(span.stop, axis.stop)
    return slice(start, stop) if start < stop else None


def _pool(x: Tensor, dim: int, span: slice, axis: Axis, largest: bool) -> tuple[int, Tensor]:
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


def _times_log(weights: Tensor, log: Tensor | None) -> Tensor:
    """The sum over a row of w log w, with 0 log 0 = 0."""
    if log is None:
        return torch.special.entr(weights).sum(-1).neg()
    return (weights * log).sum(-1)
