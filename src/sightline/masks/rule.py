"""What a mask hides: a rule for any rectangle of the map, never a queries x keys table.

It answers two questions about any rectangle: of what kind it is (empty, full or mixed), so that whole tiles are skipped
or taken without looking, and, for a mixed one, which of its cells are visible. True always means "may attend".
Positions are aligned at the end: query `i` stands at key `i + keys - queries`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from sightline.errors import InputError
from sightline.portable import Portable, at_cells, broadcasts

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Int8
    from torch import Tensor

    from sightline.masks.positional import Band

EMPTY, MIXED, FULL = 0, 1, 2
KIND_NAMES = ("empty", "mixed", "full")

# Cells of one tile when a mask is counted tile by tile: a quarter of a megabyte of booleans.
_TILE = 512

MaskMod = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]


class Rule(Portable):
    """Which cells are visible, and what else can be said of them. Of `Mask` it is what has to do with the map."""

    saved_as: ClassVar[str | None] = None
    known: ClassVar[dict[str, dict[str, type[Portable]]]] = {}
    # Whether it is a value of positions alone: the same for all of the batch and heads, equal and hashed by what it
    # means. What follows from it is then kept, and shared by layers.
    is_positional: ClassVar[bool] = False

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "*any"]:
        """The visible cells of a rectangle, broadcastable to `[*batch, heads, rows, columns]`."""
        raise NotImplementedError

    def kinds(
        self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int
    ) -> Int8[np.ndarray, "row_tiles column_tiles"]:
        """EMPTY, MIXED or FULL for each tile between the edges, over all of the batch and heads at once.

        MIXED is always a safe answer; EMPTY and FULL must be true of every cell.
        """
        return np.full((len(row_edges) - 1, len(column_edges) - 1), MIXED, dtype=np.int8)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        """The rule for single cells, `mod(b, h, i, j)` with a flattened batch: what FlexAttention takes."""

        def tile(rows: slice, columns: slice) -> Tensor:
            return self.tile(rows, columns, queries, keys, device)

        return lambda b, h, i, j: at_cells(tile, batch, b, h, i, j)

    @property
    def compiles(self) -> bool:
        """Whether its `mod`, and that of its parts, is one that FlexAttention can compile."""
        return type(self).mod is not Rule.mod and all(part.compiles for part in self.parts())

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """The first visible key of each query and the end, `[*batch, queries]`, if every row is one stretch of keys.

        Both must never fall from row to row. None if that is not so, or not known. It is what a GPU kernel needs
        to visit only what is visible.
        """
        return None

    def key_row(self, keys: int, device: torch.device) -> Bool[Tensor, "*batch keys"] | None:
        """The visible keys, if these are the same for every query and head, as those of padding are; None if not."""
        return None

    @property
    def band(self) -> Band | None:
        """The same mask as a band around the diagonal, if that is all it is."""
        return None

    @property
    def sees_first_key(self) -> bool:
        """Whether every row that sees anything sees key 0, as far as is known."""
        return False

    @property
    def is_table(self) -> bool:
        """Whether it lies in memory as booleans that a kernel can read, one for each cell or each key."""
        return False

    @property
    def follows_order(self) -> bool:
        """Whether queries may stand among the keys, fewer ones at the end; False if it says nothing of order."""
        return True

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """Raise if the mask does not fit a call of these sizes."""
        for part in self.parts():
            part.check(batch, heads, queries, keys, device)
        if next(self.tensors(), None) is not None:
            self.check_tiles(batch, heads, queries, keys, device)

    def check_tiles(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """Raise if the tiles do not broadcast to a call of these sizes, from one of a single cell."""
        rows, columns = slice(0, min(1, queries)), slice(0, min(1, keys))
        cell = self.tile(rows, columns, queries, keys, device)
        if not broadcasts(cell.shape, (*batch, heads, rows.stop, columns.stop)):
            raise InputError(
                "the mask does not fit the call",
                expected=f"tiles that broadcast to {(*batch, heads)} of batch and heads",
                got=f"one of {tuple(cell.shape)} for a single cell",
                hint="a tile has the axes [*batch, heads, rows, columns]; those before rows may be missing or 1",
            )

    def state(self) -> Hashable | None:
        """A value that changes when the mask does, for keeping what was made from it; None if that cannot be told.

        It holds for as long as the mask lives. Tensors are known by their identity and the count of their changes.

        >>> import sightline as sl
        >>> sl.window(4).state() == sl.window(4).state(), sl.window(4).state() == sl.window(5).state()
        (True, False)
        """
        return None

    def kind(self, rows: slice, columns: slice, queries: int, keys: int) -> str:
        """Whether a rectangle is `"empty"`, `"full"` or `"mixed"`.

        >>> import sightline as sl
        >>> sl.causal().kind(slice(0, 4), slice(4, 8), queries=8, keys=8)
        'empty'
        """
        band, span = (np.array(s.indices(n)[:2]) for s, n in ((rows, queries), (columns, keys)))
        return KIND_NAMES[int(self.kinds(band, span, queries, keys)[0, 0])]

    def to_dense(
        self, queries: int, keys: int, device: torch.device | str = "cpu"
    ) -> Bool[Tensor, "*any queries keys"]:
        """Write the mask out as a queries x keys table (quadratic: for small sizes and for looking at).

        >>> import sightline as sl
        >>> sl.window(1).to_dense(2, 3).int()
        tensor([[1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
        """
        table = self.tile(slice(0, queries), slice(0, keys), queries, keys, torch.device(device))
        return table.expand(*table.shape[:-2], queries, keys)

    def visible(self, queries: int, keys: int, device: torch.device) -> Int[Tensor, "*any queries"]:
        """How many keys each query may attend to, broadcastable to `[*batch, heads, queries]`."""
        row_edges, column_edges = edges(queries, _TILE), edges(keys, _TILE)
        kinds = self.kinds(row_edges, column_edges, queries, keys)
        parts = []
        for i, rows in enumerate(spans(row_edges)):
            height = rows.stop - rows.start
            count = torch.zeros(height, dtype=torch.int64, device=device)
            for j, columns in enumerate(spans(column_edges)):
                if kinds[i, j] == FULL:
                    count = count + (columns.stop - columns.start)
                elif kinds[i, j] == MIXED:
                    cells = self.tile(rows, columns, queries, keys, device)
                    count = count + cells.expand(*cells.shape[:-2], height, columns.stop - columns.start).sum(-1)
            parts.append(count)
        if not parts:
            return torch.zeros(0, dtype=torch.int64, device=device)
        leading = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*leading, part.shape[-1]) for part in parts], -1)


def edges(length: int, tile: int) -> np.ndarray:
    """Where tiles of a length begin, and the end: `edges(5, 2)` is 0, 2, 4, 5.

    >>> edges(5, 2)
    array([0, 2, 4, 5])
    """
    return np.append(np.arange(0, length, tile), length) if length else np.zeros(1, dtype=np.int64)


def spans(edges: np.ndarray) -> list[slice]:
    """The slices between edges.

    >>> import numpy as np
    >>> spans(np.array([0, 2, 4, 5]))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    stops = edges.tolist()
    return [slice(a, b) for a, b in pairwise(stops)]
