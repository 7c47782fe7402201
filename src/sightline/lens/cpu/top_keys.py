"""The strongest keys of every row, tile by tile, without sorting the tile.

Columns are dealt into groups, and each group is known by its largest weight: the n strongest keys of a row lie in its
n strongest groups. So of 2,048 columns in 128 groups, 128 maxima and the 16 columns of each of n groups are looked at.
The n largest of some numbers are those that are not below the n-th, which numpy's partition finds much faster than
torch's topk finds the numbers.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class Best:
    """The n strongest keys so far of some rows; tiles are added from left to right.

    Of equal weights the lower key is the stronger. What is absent has a weight below 0. Of signed cells the weights are
    their sizes, and what is found are the cells.
    """

    def __init__(self, rows: int, n: int, dtype: torch.dtype, signed: bool = False) -> None:
        self.n = n
        # All different, so that what is absent is never taken for equal weights.
        self.weights = -torch.arange(1, n + 1, dtype=dtype, device="cpu").repeat(rows, 1)
        self.keys = torch.full((rows, n), -1, device="cpu")
        self.cells = torch.zeros_like(self.weights) if signed else None

    def add(self, weights: Tensor, first: int, cells: Tensor | None = None) -> None:
        """A tile `[rows, columns]` of weights, below 0 where hidden, whose first column is key `first`."""
        if not self._by_groups(weights, first, cells):
            n = min(self.n, weights.shape[1])
            # A stable sort says which of equal weights it puts first, others do not.
            values, places = (t[:, :n] for t in weights.sort(dim=1, descending=True, stable=True))
            values, keys = torch.cat([self.weights, values], 1), torch.cat([self.keys, places + first], 1)
            signed = None
            if cells is not None and self.cells is not None:
                signed = torch.cat([self.cells, cells.gather(1, places)], 1)
            self.weights, self.keys, self.cells = _ranked(values, keys, self.n, signed)

    def result(self) -> tuple[Tensor, Tensor]:
        """Keys and weights, strongest first; -1 and 0 where a row sees fewer keys."""
        weights, keys, cells = _ranked(self.weights, self.keys, self.n, self.cells)
        absent = weights < 0
        return keys.masked_fill_(absent, -1), (weights if cells is None else cells).masked_fill_(absent, 0.0)

    def _by_groups(self, weights: Tensor, first: int, cells: Tensor | None = None) -> bool:
        """Add a tile by way of its groups; False if it is too small for that, or has equal weights where it matters."""
        n, columns = self.n, weights.shape[1]
        # Then groups, and columns of n groups, are fewest together.
        each = math.isqrt(columns // n)
        if each < 4:
            return False
        groups = columns // each
        largest = weights[:, : groups * each].view(-1, each, groups).amax(1)
        rest = weights[:, groups * each :]
        rows = self._concerned(largest, rest)
        if not rows.shape[0]:
            return True
        everyone = rows.shape[0] == weights.shape[0]
        group = _largest(largest if everyone else largest[rows], n)
        if group is None:
            return False
        place = (torch.arange(each, device="cpu")[:, None] * groups + group[:, None]).flatten(1)
        if rest.shape[1]:
            place = torch.cat([place, torch.arange(groups * each, columns, device="cpu").expand(rows.shape[0], -1)], 1)
        at = place + rows[:, None] * columns
        values = torch.cat([weights.take(at), self.weights[rows]], 1)
        chosen = _largest(values, n)
        if chosen is None:
            return False
        keys = torch.cat([place + first, self.keys[rows]], 1)
        self.weights[rows], self.keys[rows] = values.gather(1, chosen), keys.gather(1, chosen)
        if cells is not None and self.cells is not None:
            self.cells[rows] = torch.cat([cells.take(at), self.cells[rows]], 1).gather(1, chosen)
        return True

    def _concerned(self, largest: Tensor, rest: Tensor) -> Tensor:
        """The rows in which a weight of the tile is as strong as one of the n strongest so far."""
        strongest = largest.amax(1)
        if rest.shape[1]:
            strongest = torch.maximum(strongest, rest.amax(1))
        return torch.from_numpy(np.flatnonzero((strongest >= self.weights.amin(1)).numpy()))


def _largest(values: Tensor, n: int) -> Tensor | None:
    """Where the n largest of each row are, from left to right, or None if there are equal ones to choose from."""
    x = values.numpy()
    rows, length = x.shape
    least = np.partition(x, length - n, axis=1)[:, length - n]
    found = np.flatnonzero(x >= least[:, None])
    return torch.from_numpy(found.reshape(rows, n) % length) if len(found) == rows * n else None


def _ranked(weights: Tensor, keys: Tensor, n: int, cells: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The n strongest, strongest first, of equal ones the lower key first."""
    keys, order = keys.sort(1)
    weights, by_weight = weights.gather(1, order).sort(dim=1, descending=True, stable=True)
    if cells is not None:
        cells = cells.gather(1, order).gather(1, by_weight)[:, :n]
    return weights[:, :n], keys.gather(1, by_weight)[:, :n], cells
