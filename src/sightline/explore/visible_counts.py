"""How many cells of each bin may be attended to: for masks of one stretch of keys a row, without looking at cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sightline.lens.geometry import axis
from sightline.lens.pieces import visible_in

if TYPE_CHECKING:
    from sightline.lens import Sight


class VisibleCounts:
    """Counts the visible cells of the bins of one head's map.

    Where every query sees one stretch of keys, and neither end ever falls from row to row, the cells of a bin are a
    difference of sums of min(end, edge) over its rows, and those come from running sums.

    >>> import sightline as sl, torch
    >>> sight = sl.look(torch.randn(1, 6, 4), torch.randn(1, 6, 4), mask=sl.causal())
    >>> VisibleCounts(sight)(slice(0, 6), slice(0, 6), (2, 3))
    array([[3, 0],
           [6, 1],
           [6, 5]])
    """

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.queries, self.keys = sight.shape[-2:]
        self._ends: list[tuple[np.ndarray, np.ndarray]] | None = None
        mask = sight.mask
        found = None if mask is None else mask.intervals(self.queries, self.keys, sight.device)
        if found is not None and found[0].dim() == 1:
            first, stop = (t.to("cpu").numpy().astype(np.int64) for t in found)
            stop = np.maximum(first, stop)
            if (np.diff(first) >= 0).all() and (np.diff(stop) >= 0).all():
                self._ends = [(end, np.concatenate([[0], np.cumsum(end)])) for end in (first, stop)]

    def ends(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The first visible key of some rows and the end, where every row has one stretch of keys."""
        return None if self._ends is None else (self._ends[0][0][rows], self._ends[1][0][rows])

    def __call__(self, rows: slice, columns: slice, cell: tuple[int, int]) -> np.ndarray:
        """The visible cells of every bin of a rectangle, `[height, width]`; the last bins may be ragged."""
        vertical, horizontal = axis(rows, None, cell[0]), axis(columns, None, cell[1])
        mask, shape = self.sight.mask, (vertical.bins, horizontal.bins)
        if mask is None:
            return np.diff(vertical.edges)[:, None] * np.diff(horizontal.edges)
        if self._ends is not None:
            first, stop = (_below(*end, vertical.edges, horizontal.edges) for end in self._ends)
            return np.diff(np.diff(stop - first, axis=0), axis=1)
        if cell == (1, 1):
            seen = mask.tile(rows, columns, self.queries, self.keys, self.sight.device)
            return seen.expand(1, *shape)[0].cpu().numpy()
        return visible_in(self.sight, rows, columns, cell).expand(1, *shape)[0].cpu().numpy()


def _below(ends: np.ndarray, sums: np.ndarray, row_edges: np.ndarray, column_edges: np.ndarray) -> np.ndarray:
    """The sum of min(end, edge) over the rows before each row edge, for each column edge."""
    reached = np.searchsorted(ends, column_edges)  # rows before this end before the edge
    rows = row_edges[:, None]
    inside = np.minimum(rows, reached)
    return sums[inside] + (rows - inside) * column_edges
