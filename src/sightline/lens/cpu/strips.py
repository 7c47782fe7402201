"""From strips of pixel rows to pixels: sums or maxima over the columns of every pixel, once per band of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sightline.lens.cpu.bands import RowPool
from sightline.lens.geometry import Axis

# Columns of a pixel up to which a product with ones is faster than torch's sum over the last axis.
_FEW = 24


class ColumnPool:
    """The pixels of a picture along its columns. A strip has a column for each cell, and zeros that fill up pixels."""

    def __init__(self, axis: Axis, largest: bool, dtype: torch.dtype, unit: float = 1.0) -> None:
        """Sums are multiplied by the unit."""
        self.axis, self.largest, self.unit = axis, largest, unit
        self.cell, self.start, self.stop = axis.regular, axis.start, axis.stop
        if self.cell:
            self.width = axis.bins * self.cell
            self.ones = torch.full((self.cell,), unit, dtype=dtype, device="cpu")
        else:
            # Pixels differ by a cell: the shorter ones take a zero from the end of the strip.
            widths = np.diff(axis.edges)
            self.width = self.stop - self.start + 1
            picks = axis.edges[:-1] - self.start + np.arange(int(widths.max()))[:, None]
            self.picks = torch.from_numpy(np.where(picks < axis.edges[1:] - self.start, picks, self.width - 1))

    def clear(self, memory: Tensor) -> None:
        """Make the zero that short pixels take."""
        if not self.cell:
            memory.view(-1, self.width)[:, -1] = 0.0

    def touches(self, left: int, right: int) -> bool:
        """Whether a stretch of columns of the map is in the picture."""
        return max(left, self.start) < min(right, self.stop)

    def bins(self, left: int, right: int) -> tuple[int, int]:
        """The pixels that a stretch of the picture's columns touches."""
        if self.cell:
            return (left - self.start) // self.cell, -((self.start - right) // self.cell)
        edges = self.axis.edges
        return (
            int(np.searchsorted(edges, left, side="right")) - 1,
            int(np.searchsorted(edges, right, side="left")),
        )

    def pixels(self, strip: Tensor, first: int, stop: int) -> Tensor:
        """The sums or maxima of the pixels from `first` to `stop`, which are all of the strip if they are regular."""
        rows, pixels = strip.shape[0], stop - first
        if 1 < self.cell <= _FEW and not self.largest:
            return torch.mv(strip.view(-1, self.cell), self.ones).view(rows, pixels)
        found = self._found(strip, rows, first, stop)
        return found if self.unit == 1.0 else found * self.unit

    def _found(self, strip: Tensor, rows: int, first: int, stop: int) -> Tensor:
        pixels = stop - first
        if not self.cell:
            picked = strip.index_select(1, self.picks[:, first:stop].reshape(-1)).view(rows, -1, pixels)
            return picked.amax(1) if self.largest else picked.sum(1)
        if self.cell == 1:
            return strip
        if self.largest:
            return strip.view(rows, pixels, self.cell).amax(-1)
        return strip.view(rows, pixels, self.cell).sum(-1)


class Sums:
    """Sums over the rows of a band, some rows at a time, so that not many numbers are added one to the other."""

    each = 32

    def __init__(self, memory: Tensor, height: int, left: int, right: int) -> None:
        """In some memory, for columns from `left` to `right`."""
        self.left, self.right = left, right
        self.cells = memory[: -(-height // self.each) * (right - left)].view(-1, right - left)

    def part(self, left: int, width: int) -> Tensor:
        """Some of the columns."""
        return self.cells[:, left - self.left : left - self.left + width]

    def add_rows(self, total: np.ndarray) -> None:
        """Add the sum of all rows to something that has an entry for each column of the map."""
        total[self.left : self.right] += self.cells.sum(0).numpy()


class Strip:
    """The columns of a picture that a band of rows sees, one for each cell: a row for each row of pixels."""

    def __init__(self, columns: ColumnPool, rows: RowPool, memory: Tensor, cuts: list[tuple[int, int]]) -> None:
        """In some memory, for tiles that follow each other."""
        self.columns, self.rows, self.top, self.count = columns, rows, rows.top, rows.count
        self.edges = [min(max(x, columns.start), columns.stop) for x in (cuts[0][0], *(right for _, right in cuts))]
        self.left, self.right = self.edges[0], self.edges[-1]
        self.first, self.stop = columns.bins(self.left, self.right)
        if columns.cell:
            # As wide as what is seen, so that it is one piece of memory.
            base, width = columns.start + self.first * columns.cell, (self.stop - self.first) * columns.cell
            self.cells = memory[: self.count * width].view(self.count, width)
            start, stop = 0, width
        else:
            base, self.cells = columns.start, memory.view(-1, columns.width)[: self.count]
            start, stop = (int(columns.axis.edges[i]) - base for i in (self.first, self.stop))
        # What earlier bands left beside the stretch, in its first and its last pixel.
        beside = (start, self.left - base), (self.right - base, stop)
        self.beside = [self.cells[:, a:b] for a, b in beside if a < b]
        self.seen = self.cells[:, self.left - base : self.right - base]
        self.parts = self.seen.split([b - a for a, b in pairwise(self.edges)], 1)

    def is_regular(self, n: int, left: int, width: int) -> bool:
        """Whether the n-th tile, `width` columns from `left` on, is all in a picture of sums, with equal pixels."""
        inside = self.edges[n] == left and self.edges[n + 1] == left + width
        return inside and self.rows.each > 0 and self.rows.extra is None and not self.columns.largest

    def steps(self, n: int, left: int, weights: Tensor) -> list[Callable[[], object]]:
        """What is to be done with the n-th tile, whose first column is `left`."""
        start, stop = self.edges[n : n + 2]
        if start == stop:
            return []
        return [self.rows.step(weights[:, start - left : stop - left], self.parts[n], self.columns.largest)]

    def finish(self, grid: np.ndarray, top: int) -> None:
        """Add the pixels to a grid, `[rows, pixels]`, which begins with some row of the picture."""
        for part in self.beside:
            part.zero_()
        found = self.columns.pixels(self.cells, self.first, self.stop).numpy()
        pixels = grid[self.top - top : self.top - top + self.count, self.first : self.stop]
        (np.maximum if self.columns.largest else np.add)(pixels, found, out=pixels)

    def add_rows(self, total: np.ndarray) -> None:
        """Add the sum of all rows to something that has an entry for each column of the map."""
        total[self.left : self.right] += self.seen.sum(0).numpy()
