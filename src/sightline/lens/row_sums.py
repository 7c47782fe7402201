"""Sums over the columns of rows, tile by tile: of the logarithms, of the distances; and the largest logarithm.

The distance to a key before the first place of a band of rows is (place - first) + (first - key), and to one after
the last place (last - place) + (key - last). Both parts are positive, and the sums of weights and of weights times the
second part are one product with a matrix of two rows. Only the keys between are looked at one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Scales(NamedTuple):
    """Ones above distances, `[2, length]`: distances to a place on the right, and to one on the left."""

    falling: Tensor
    rising: Tensor

    @staticmethod
    def of(length: int, dtype: torch.dtype) -> Scales:
        rising = torch.arange(length, dtype=dtype)
        ones = torch.ones_like(rising)
        return Scales(torch.stack([ones, rising.flip(0)]), torch.stack([ones, rising]))


class Tile(NamedTuple):
    """Logarithms and weights of some rows and columns; `turned` are the weights with columns first."""

    logs: Tensor
    weights: Tensor
    turned: Tensor


class Lines(NamedTuple):
    """Memory for the sums of a band: for most a line for each tile, so that nothing has to be added until the end."""

    of_tiles: dict[str, tuple[Tensor, ...]]
    distances: Tensor  # [5, rows]: the lines of the next three
    before: Tensor  # [2, rows]: sums of weights, and of weights times distances
    after: Tensor
    between: Tensor


class RowSums:
    """Sums of one band of rows after the other. `wanted`: largest, entropy, total, distance."""

    def __init__(self, wanted: set[str], height: int, tiles: int, scales: Scales) -> None:
        """Memory for bands of at most `height` rows and so many tiles."""
        self.wanted, self.scales = wanted, scales
        like = scales.rising
        self.parts = {name: like.new_empty(tiles, height) for name in wanted - {"distance"}}
        self.five = like.new_empty(5, height)
        self.kept: dict[int, Lines] = {}

    def begin(self, places: Tensor, first: int, last: int) -> None:
        """A band of rows at some places, of which `first` is the lowest and `last` the highest."""
        self.places, self.first, self.last, self.tiles = places, first, last, 0
        rows = places.shape[0]
        if rows not in self.kept:
            of_tiles = {name: part[:, :rows].unbind(0) for name, part in self.parts.items()}
            five = self.five[:, :rows]
            self.kept[rows] = Lines(of_tiles, five, five[:2], five[2:4], five[4])
        self.lines = self.kept[rows]
        if "distance" in self.wanted:
            self.lines.distances.zero_()

    def add(self, tile: Tile, left: int, right: int) -> None:
        """A tile of columns `left` to `right`; its logarithms are overwritten."""
        logs, weights, _ = tile
        lines = self.lines.of_tiles
        if "largest" in self.wanted:
            torch.amax(logs, -1, out=lines["largest"][self.tiles])
        if "total" in self.wanted:
            torch.sum(weights, -1, out=lines["total"][self.tiles])
        if "entropy" in self.wanted:
            torch.sum(torch.mul(logs, weights, out=logs), -1, out=lines["entropy"][self.tiles])
        if "distance" in self.wanted:
            self._distances(tile, left, right)
        self.tiles += 1

    def _distances(self, tile: Tile, left: int, right: int) -> None:
        first, last, (falling, rising) = self.first, self.last, self.scales
        near, far = (min(max(place + 1, left), right) for place in (first, last))
        if left < near:
            part = tile.turned if near == right else tile.turned[: near - left]
            start = falling.shape[-1] - 1 - (first - left)
            self.lines.before.addmm_(falling[:, start : start + near - left], part)
        if near < far:
            rows = self.places.shape[0]
            gaps = tile.logs.view(-1)[: rows * (far - near)].view(rows, far - near)
            torch.sub(self.places[:, None], rising[1, near:far], out=gaps).abs_()
            self.lines.between.add_(gaps.mul_(tile.weights[:, near - left : far - left]).sum(-1))
        if far < right:
            part = tile.turned if far == left else tile.turned[far - left :]
            self.lines.after.addmm_(rising[:, far - last : right - last], part)

    def result(self, name: str) -> Tensor:
        """One number for each row of the band."""
        rows = self.places.shape[0]
        if name == "distance":
            _, _, before, after, between = self.lines
            far = before[0] * (self.places - self.first) + before[1]
            return between + far + after[0] * (self.last - self.places) + after[1]
        part = self.parts[name][: self.tiles, :rows]
        return part.amax(0) if name == "largest" else part.sum(0)
