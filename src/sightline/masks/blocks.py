"""Of what kind the tiles of a map are, from the numbers that a mask holds for queries and keys."""

from __future__ import annotations

import numpy as np

from sightline.masks.rule import EMPTY, FULL, MIXED


def lowest_highest(ids: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest id of each tile, `[batch, tiles]`."""
    if len(edges) < 2:
        return ids[:, :0], ids[:, :0]
    part, starts = ids[:, edges[0] : edges[-1]], edges[:-1] - edges[0]
    return np.minimum.reduceat(part, starts, axis=1), np.maximum.reduceat(part, starts, axis=1)


def none_all(real: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each tile, whether no key is real and whether all are, `[batch, tiles]`."""
    total = np.pad(np.cumsum(real, axis=1, dtype=np.int64), ((0, 0), (1, 0)))
    count = total[:, edges[1:]] - total[:, edges[:-1]]
    return count == 0, count == np.diff(edges)


def over_batch(empty: np.ndarray, full: np.ndarray) -> np.ndarray:
    """One kind for all of the batch: empty or full only where all members are."""
    return np.where(full.all(0), FULL, np.where(empty.all(0), EMPTY, MIXED)).astype(np.int8)


def block_sums(table: np.ndarray, row_edges: np.ndarray, column_edges: np.ndarray) -> np.ndarray:
    """How many cells are True in each tile."""
    if len(row_edges) < 2 or len(column_edges) < 2:
        return np.zeros((len(row_edges) - 1, len(column_edges) - 1), dtype=np.int64)
    part = table[row_edges[0] : row_edges[-1], column_edges[0] : column_edges[-1]]
    by_row = np.add.reduceat(part, row_edges[:-1] - row_edges[0], axis=0, dtype=np.int64)
    return np.add.reduceat(by_row, column_edges[:-1] - column_edges[0], axis=1)
