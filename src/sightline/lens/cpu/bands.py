"""Bands of rows, taken in an order in which the rows of every pixel are easy to sum.

Sums over blocks of equally many rows run at the speed of the memory. So a band begins and ends with a pixel, and
where pixels differ by a row (1,000 rows on 512 pixels), the rows that some have more than others come last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sightline.lens.geometry import Axis


@dataclass(frozen=True)
class RowPool:
    """How the rows of a band make the rows of a picture, of which `top` is the first and `count` the number."""

    top: int
    count: int
    each: int  # the first count x each rows are `each` rows of every pixel; 0: by the table
    extra: Tensor | None  # the pixels of the rows that follow
    table: Tensor | None  # 1 where a row belongs to a pixel, [count, rows]
    picks: Tensor | None  # the rows of every pixel, some of them repeated, [count, most rows of a pixel]

    def step(self, weights: Tensor, out: Tensor, largest: bool) -> Callable[[], object]:
        """To be done later: sums or maxima over the rows of every pixel, `[rows, columns]` to `[count, columns]`."""
        if self.each and self.extra is None:
            return partial(torch.amax if largest else torch.sum, self._blocks(weights), 1, out=out)
        return partial(self.maxima if largest else self.sums, weights, out)

    def sums(self, weights: Tensor, out: Tensor) -> None:
        """The sums over the rows of every pixel: `[rows, columns]` to `[count, columns]`."""
        if not self.each:
            assert self.table is not None
            torch.mm(self.table, weights, out=out)
            return
        torch.sum(self._blocks(weights), 1, out=out)
        if self.extra is not None:
            out.index_add_(0, self.extra, weights[self.count * self.each :])

    def maxima(self, weights: Tensor, out: Tensor) -> None:
        """The same with maxima."""
        if not self.each:
            assert self.picks is not None
            torch.amax(weights[self.picks], 1, out=out)
            return
        torch.amax(self._blocks(weights), 1, out=out)
        if self.extra is not None:
            # No pixel has two rows more than another.
            rest = weights[self.count * self.each :]
            out[self.extra] = torch.maximum(out[self.extra], rest)

    def _blocks(self, weights: Tensor) -> Tensor:
        main = weights if self.extra is None else weights[: self.count * self.each]
        return main.view(self.count, self.each, weights.shape[1])


@dataclass(frozen=True)
class Band:
    """Some rows that follow each other, the order they are taken in, and how they make the rows of each picture."""

    start: int
    stop: int
    order: Tensor  # the numbers of the rows
    in_order: bool
    pools: tuple[RowPool | None, ...]

    def of(self, x: Tensor) -> Tensor:
        """The band's rows of something that has one entry for each row of the map."""
        return x.narrow(0, self.start, self.stop - self.start) if self.in_order else x[self.order]

    def put(self, x: Tensor, rows: Tensor) -> None:
        """Write the band's rows into such a thing."""
        x[self.order] = rows


def bands(rows: slice, height: int, axes: list[Axis], dtype: torch.dtype) -> list[Band]:
    """Bands of at most `height` rows; the first axis says where they begin and in which order rows are taken."""
    found = []
    for start, stop in _cuts(rows, height, axes[0] if axes else None):
        numbers = np.arange(start, stop)
        pools: list[RowPool | None] = []
        order = numbers
        if axes:
            order, lead = _leading(numbers, axes[0])
            pools.append(lead or _any(numbers, axes[0], dtype))
        for axis in axes[1:]:
            same = np.array_equal(axis.edges, axes[0].edges)
            pools.append(pools[0] if same else _any(order, axis, dtype))
        found.append(Band(start, stop, torch.from_numpy(order), order is numbers, tuple(pools)))
    return found


def _cuts(rows: slice, height: int, axis: Axis | None) -> list[tuple[int, int]]:
    """Where bands begin and end: with a pixel, unless one is taller than a band."""
    marks = np.array([rows.start, rows.stop])
    if axis is not None:
        inner = axis.edges[(axis.edges > rows.start) & (axis.edges < rows.stop)]
        marks = np.concatenate([marks[:1], inner, marks[1:]])
    found, start = [], rows.start
    while start < rows.stop:
        reach = marks[np.searchsorted(marks, start + height, side="right") - 1]
        beyond = marks[np.searchsorted(marks, start, side="right")]
        stop = int(reach) if reach > start else min(start + height, int(beyond))
        found.append((start, stop))
        start = stop
    return found


def _members(numbers: np.ndarray, axis: Axis) -> np.ndarray:
    """The pixel of each row, -1 outside of the picture."""
    pixels = np.searchsorted(axis.edges, numbers, side="right") - 1
    return np.where((numbers < axis.start) | (numbers >= axis.stop), -1, pixels)


def _leading(numbers: np.ndarray, axis: Axis) -> tuple[np.ndarray, RowPool | None]:
    """The order in which pixels have equally many rows, if none has two more than another."""
    pixels = _members(numbers, axis)
    if pixels.min() < 0:
        return numbers, None
    top = int(pixels[0])
    counts = np.bincount(pixels - top)
    each = int(counts.min())
    if counts.max() - each > 1:
        return numbers, None
    starts = np.cumsum(counts) - counts
    nth = np.arange(len(numbers)) - starts[pixels - top]
    late = nth >= each
    if not late.any():
        return numbers, RowPool(top, len(counts), each, None, None, None)
    order = np.concatenate([numbers[~late], numbers[late]])
    return order, RowPool(top, len(counts), each, torch.from_numpy(pixels[late] - top), None, None)


def _any(order: np.ndarray, axis: Axis, dtype: torch.dtype) -> RowPool | None:
    """Rows in any order, for any pixels, or None if none of them is in the picture."""
    pixels = _members(order, axis)
    inside = np.unique(pixels[pixels >= 0])
    if not len(inside):
        return None
    top, count = int(inside[0]), int(inside[-1] - inside[0]) + 1
    member = pixels - top == np.arange(count)[:, None]
    widest = int(member.sum(-1).max())
    rows = [np.flatnonzero(line) for line in member]
    picks = np.stack([np.pad(row, (0, widest - len(row)), mode="edge") for row in rows])
    return RowPool(top, count, 0, None, torch.from_numpy(member).to(dtype), torch.from_numpy(picks))
