"""From strips of pixel rows to pixels: sums or maxima over the columns of every pixel, once per band of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sightline.lens.geometry import Axis

# Columns of a pixel up to which a product with ones is faster than torch's sum over the last axis.
_FEW = 24


class ColumnPool:
    """The pixels of a picture along its columns. A strip has a column for each cell, and zeros that fill up pixels."""

    def __init__(self, axis: Axis, largest: bool, dtype: torch.dtype) -> None:
        self.axis, self.largest = axis, largest
        self.cell, self.start, self.stop = axis.regular, axis.start, axis.stop
        if self.cell:
            self.width = axis.bins * self.cell
            self.ones = torch.ones(self.cell, dtype=dtype)
        else:
            # Pixels differ by a cell: the shorter ones take a zero from the end of the strip.
            widths = np.diff(axis.edges)
            self.width = self.stop - self.start + 1
            picks = axis.edges[:-1] - self.start + np.arange(int(widths.max()))[:, None]
            self.picks = torch.from_numpy(np.where(picks < axis.edges[1:] - self.start, picks, self.width - 1))

    def part(self, left: int, right: int) -> tuple[int, int]:
        """The columns of a stretch of the map that are in the picture."""
        return max(left, self.start), min(right, self.stop)

    def fill(
        self, strip: Tensor, left: int, right: int, weights: Tensor, reduce: Callable[[Tensor, Tensor], None]
    ) -> None:
        """Reduce the rows of a tile of columns `left` to `right` into a strip."""
        start, stop = self.part(left, right)
        if start < stop:
            if stop - start < right - left:
                weights = weights[:, start - left : stop - left]
            reduce(weights, strip[:, start - self.start : stop - self.start])

    def bins(self, left: int, right: int) -> tuple[int, int]:
        """The pixels that a stretch of the picture's columns touches."""
        if self.cell:
            return (left - self.start) // self.cell, -((self.start - right) // self.cell)
        edges = self.axis.edges
        return (
            int(np.searchsorted(edges, left, side="right")) - 1,
            int(np.searchsorted(edges, right, side="left")),
        )

    def add(self, strip: Tensor, left: int, right: int, grid: Tensor) -> None:
        """Add the pixels of a stretch of columns of a strip `[rows, width]` to a grid `[rows, pixels]`."""
        left, right = self.part(left, right)
        if left >= right:
            return
        first, stop = self.bins(left, right)
        # What earlier bands left beside the stretch, in its first and its last pixel.
        edges = self.axis.edges
        strip[:, edges[first] - self.start : left - self.start] = 0.0
        strip[:, right - self.start : edges[stop] - self.start] = 0.0
        found = self._pixels(strip, first, stop)
        part = grid[:, first:stop]
        if self.largest:
            torch.maximum(part, found, out=part)
        else:
            part += found

    def _pixels(self, strip: Tensor, first: int, stop: int) -> Tensor:
        rows, pixels = strip.shape[0], stop - first
        if not self.cell:
            picked = strip.index_select(1, self.picks[:, first:stop].reshape(-1)).view(rows, -1, pixels)
            return picked.amax(1) if self.largest else picked.sum(1)
        cells = strip[:, first * self.cell : stop * self.cell]
        if self.cell == 1:
            return cells
        if self.largest:
            return cells.view(rows, pixels, self.cell).amax(-1)
        if self.cell > _FEW:
            return cells.view(rows, pixels, self.cell).sum(-1)
        if strip.is_contiguous() and strip.shape[1] % self.cell == 0:
            # All columns at once: a copy of those that are meant would take longer.
            return (strip.view(-1, self.cell) @ self.ones).view(rows, -1)[:, first:stop]
        return (cells.reshape(-1, self.cell) @ self.ones).view(rows, pixels)
