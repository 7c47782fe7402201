"""Sums over the columns of rows, tile by tile: of the logarithms, of the distances; and the largest logarithm.

The distance to a key before the first place of a band of rows is (place - first) + (first - key), and to one after
the last place (last - place) + (key - last). Both parts are positive, and the sums of weights and of weights times the
second part are one product with a matrix of two rows. Only the keys between are looked at one by one.

Products of two rows, which only numpy has without writing them down, and what is short, are left to numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# One operation on memory that is known already.
Step = Callable[[], object]


class Scales(NamedTuple):
    """Ones above distances, `[2, length]`: distances to a place on the right, and to one on the left."""

    falling: Tensor
    rising: Tensor

    @staticmethod
    def of(length: int, dtype: torch.dtype) -> Scales:
        rising = torch.arange(length, dtype=dtype, device="cpu")
        ones = torch.ones_like(rising)
        return Scales(torch.stack([ones, rising.flip(0)]), torch.stack([ones, rising]))


class Tile:
    """Logarithms and weights of some rows and columns; `turned` are the weights with columns first."""

    def __init__(self, logs: Tensor, weights: Tensor) -> None:
        self.logs, self.weights, self.turned = logs, weights, weights.T
        # The same as numpy has it, each row a matrix: their products are dot products, row by row.
        self.lying, self.standing = logs.numpy()[:, None, :], weights.numpy()[:, :, None]


class Lines(NamedTuple):
    """Memory for the sums of a band: for most a line for each tile, so that nothing has to be added until the end."""

    largest: list[Tensor]
    total: list[Tensor]
    entropy: list[np.ndarray]  # [rows, 1, 1] each, as numpy's products have it
    distances: np.ndarray  # [5, rows]: two lines before, two after, one between
    before: Tensor  # [2, rows]: sums of weights, and of weights times distances
    after: Tensor
    between: np.ndarray  # [rows, 1, 1]: what a tile adds


class RowSums:
    """Memory for the sums of one band of rows after the other. `wanted`: largest, entropy, total, distance."""

    def __init__(self, wanted: set[str], height: int, tiles: int, scales: Scales) -> None:
        """For bands of at most `height` rows and so many tiles."""
        self.wanted, self.scales = wanted, scales
        self.parts = {name: scales.rising.new_empty(tiles, height) for name in wanted - {"distance"}}
        self.six = scales.rising.new_empty(6, height)
        self.kept: dict[int, Lines] = {}
        self.gaps, self.gaps_of = np.empty(0), (b"", 0)

    def lines(self, rows: int) -> Lines:
        """Views of the memory, which are made once."""
        if rows not in self.kept:
            parts = {name: part[:, :rows] for name, part in self.parts.items()}
            largest, total = (list(parts[name]) if name in parts else [] for name in ("largest", "total"))
            entropy = list(parts["entropy"][..., None, None].numpy()) if "entropy" in parts else []
            six = self.six[:, :rows]
            distances, between = six.numpy()[:5], six.numpy()[5, :, None, None]
            self.kept[rows] = Lines(largest, total, entropy, distances, six[:2], six[2:4], between)
        return self.kept[rows]

    def table(self, places: np.ndarray, columns: int) -> np.ndarray:
        """Distances from places to the first columns, `[rows, 1, columns]`: often those that were asked for last."""
        key = (places.tobytes(), columns)
        if key != self.gaps_of:
            gaps = places[:, None] - np.arange(columns, dtype=places.dtype)
            self.gaps, self.gaps_of = np.abs(gaps, out=gaps)[:, None], key
        return self.gaps


class BandSums:
    """The sums of a band of rows at some places, of which `first` is the lowest and `last` the highest."""

    def __init__(self, memory: RowSums, places: np.ndarray, first: int, last: int) -> None:
        self.memory, self.places, self.first, self.last, self.tiles = memory, places, first, last, 0
        self.lines = memory.lines(len(places))

    def steps(self, tile: Tile, left: int, right: int) -> list[Step]:
        """What is to be done with the next tile, of columns `left` to `right`, when it has its weights."""
        lines, n = self.lines, self.tiles
        steps: list[Step] = []
        if lines.largest:
            steps.append(partial(torch.amax, tile.logs, -1, out=lines.largest[n]))
        if lines.total:
            steps.append(partial(torch.sum, tile.weights, -1, out=lines.total[n]))
        if lines.entropy:
            steps.append(partial(np.matmul, tile.lying, tile.standing, out=lines.entropy[n]))
        self.tiles += 1
        return steps + (self._distances(tile, left, right) if "distance" in self.memory.wanted else [])

    def _distances(self, tile: Tile, left: int, right: int) -> list[Step]:
        first, last, (falling, rising) = self.first, self.last, self.memory.scales
        steps: list[Step] = []
        near, far = (min(max(place + 1, left), right) for place in (first, last))
        if left < near:
            start = falling.shape[-1] - 1 - (first - left)
            scale = falling[:, start : start + near - left]
            steps.append(partial(self.lines.before.addmm_, scale, tile.turned[: near - left]))
        if near < far:
            gaps = self.memory.table(self.places - near, far - near)
            between, total = self.lines.between, self.lines.distances[4]
            steps.append(partial(np.matmul, gaps, tile.standing[:, near - left : far - left], out=between))
            steps.append(partial(np.add, total, between[:, 0, 0], out=total))
        if far < right:
            scale = rising[:, far - last : right - last]
            steps.append(partial(self.lines.after.addmm_, scale, tile.turned[far - left :]))
        return steps

    def begin(self) -> None:
        """Before the first tile."""
        self.lines.distances.fill(0.0)

    def result(self, name: str, out: np.ndarray) -> None:
        """One number for each row, after the last tile."""
        if name == "distance":
            before, more_before, after, more_after, between = self.lines.distances
            out[:] = before * (self.places - self.first) + more_before
            out += after * (self.last - self.places) + more_after
            out += between
        else:
            part = self.memory.parts[name].numpy()[: self.tiles, : len(self.places)]
            (np.maximum if name == "largest" else np.add).reduce(part, 0, out=out)
