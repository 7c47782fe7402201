"""A tile of millions of cells, estimated from a few rows of each bin: there at once, and it says what it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from sightline.explore.arrays import array
from sightline.explore.overview import PATCH, cells_of
from sightline.explore.visible_counts import VisibleCounts
from sightline.lens.pieces import rows_at

if TYPE_CHECKING:
    from sightline.lens import Sight

# Cells that an estimate may look at, and rows of each bin at most: a tenth of a second on one core.
CELLS = 1 << 24
MOST = 4


class Estimate:
    """The bins of a rectangle of the map, from some rows in the middle of each band of bins.

    Sums are scaled to all visible cells of a bin; maxima are those of the rows that were seen, so they are no larger
    than the true ones.
    """

    def __init__(
        self, sight: Sight, counts: VisibleCounts, levels: tuple[int, int], rows: slice, columns: slice, largest: bool
    ) -> None:
        self.sight, self.counts, self.levels, self.largest = sight, counts, levels, largest
        self.queries, self.keys = sight.shape[-2:]
        self.rows, self.columns = rows, columns
        height, width = rows.stop - rows.start, columns.stop - columns.start
        span = cells_of(columns, levels[1], self.keys)
        self.sample = int(np.clip(CELLS // max(1, height * (span.stop - span.start)), 1, min(MOST, 1 << levels[0])))
        starts = np.arange(rows.start, rows.stop) << levels[0]
        stops = np.minimum(starts + (1 << levels[0]), self.queries)
        first = np.maximum((starts + stops - self.sample) // 2, starts)
        self.places = np.minimum(first[:, None] + np.arange(self.sample), stops[:, None] - 1)
        self.grid = np.zeros((height, width), np.float64)
        self.seen = np.zeros((height, width), np.float64)

    def steps(self) -> list[Callable[[], None]]:
        """Small steps, each a stretch of columns."""
        wide = max(PATCH >> self.levels[1], 1)
        spans = [
            slice(start, min(start + wide, self.columns.stop))
            for start in range(self.columns.start, self.columns.stop, wide)
        ]
        return [partial(self._step, span) for span in spans]

    def values(self) -> np.ndarray:
        """Estimated sums of all visible cells of each bin, or maxima."""
        if self.largest:
            return self.grid
        cells = [
            cells_of(span, level, length)
            for span, level, length in zip(
                (self.rows, self.columns), self.levels, (self.queries, self.keys), strict=True
            )
        ]
        visible = self.counts(cells[0], cells[1], (1 << self.levels[0], 1 << self.levels[1]))
        return self.grid / np.maximum(self.seen, 1) * visible

    def _step(self, bins: slice) -> None:
        span = cells_of(bins, self.levels[1], self.keys)
        weights, visible = self._weights(span)
        here = slice(bins.start - self.columns.start, bins.stop - self.columns.start)
        starts = np.arange(0, span.stop - span.start, 1 << self.levels[1])
        if self.largest:
            self.grid[:, here] = np.maximum.reduceat(weights.max(1), starts, axis=1)
        else:
            self.grid[:, here] = np.add.reduceat(weights.sum(1), starts, axis=1)
            self.seen[:, here] = np.add.reduceat(visible.sum(1), starts, axis=1)

    def _weights(self, span: slice) -> tuple[np.ndarray, np.ndarray]:
        """The weights of the sampled rows, and which cells may be seen: `[bins, sample, columns]` each."""
        shape = (*self.places.shape, span.stop - span.start)
        ends = self.counts.ends(self.places.ravel())
        if self.sight.call.bias is not None or (self.sight.mask is not None and ends is None):
            return self._one_by_one(span, shape)
        visible = None
        if ends is not None:
            device = self.sight.device
            key = torch.arange(span.start, span.stop, device=device)
            first, stop = (torch.from_numpy(end)[:, None].to(device) for end in ends)
            visible = (key >= first) & (key < stop)
        weights = rows_at(self.sight, torch.from_numpy(self.places.ravel()), span, visible)[0]
        seen = np.ones(shape, np.float32) if visible is None else array(visible).reshape(shape)
        return array(weights).reshape(shape), seen

    def _one_by_one(self, span: slice, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The same for masks and biases that only know tiles."""
        weights, visible = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for i, places in enumerate(self.places):
            band = slice(int(places[0]), int(places[-1]) + 1)
            count = band.stop - band.start
            weights[i, :count] = array(self.sight.tile(band, span)[0])
            visible[i, :count] = self.counts(band, span, (1, 1))
        return weights, visible
