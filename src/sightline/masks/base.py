"""What a mask is: a rule that says which query may attend to which key, never a queries x keys table.

A mask answers two questions about any rectangle of the map: of what kind it is (empty, full or mixed), so
that whole tiles are skipped or taken without looking, and, for a mixed one, which of its cells are visible.
True always means "may attend". Positions are aligned at the end: query `i` stands at key `i + keys - queries`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from sightline.errors import InputTypeError

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Int8
    from torch import Tensor

EMPTY, MIXED, FULL = 0, 1, 2
KIND_NAMES = ("empty", "mixed", "full")

# Cells of one tile when a mask is counted tile by tile: a quarter of a megabyte of booleans.
_TILE = 512

MaskMod = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]


class Mask:
    """A rule for who may attend to whom. Combine rules with `&`, `|` and `~`.

    To make a new one, give `tile`, `kinds` and `mod`, and `check` if it can be of the wrong size.

    >>> import sightline as sl
    >>> (sl.causal() & ~sl.window(0)).to_dense(3, 3).int()
    tensor([[0, 0, 0],
            [1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "*any"]:
        """The visible cells of a rectangle, broadcastable to `[*batch, heads, rows, columns]`."""
        raise NotImplementedError

    def kinds(
        self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int
    ) -> Int8[np.ndarray, "row_tiles column_tiles"]:
        """EMPTY, MIXED or FULL for each tile between the edges, over all of the batch and heads at once.

        MIXED is always a safe answer; EMPTY and FULL must be true of every cell.
        """
        raise NotImplementedError

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        """The rule for single cells, `mod(b, h, i, j)` with a flattened batch: what FlexAttention takes."""
        raise NotImplementedError

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """The first visible key of each query and the end, `[*batch, queries]`, if every row is one stretch of keys.

        Both must never fall from row to row. None if that is not so, or not known. It is what a GPU kernel needs
        to visit only what is visible.
        """
        return None

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """Raise if the mask does not fit a call of these sizes."""

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

    def __getstate__(self) -> dict[str, object]:
        """What `copy` and `pickle` take along: not what was made from tensors whose changes are counted anew."""
        return {name: None if name == "_kept" else value for name, value in self.__dict__.items()}

    def __and__(self, other: Mask) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)


class _Pair(Mask):
    """Two masks and an operator between them."""

    sign: str

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        self.left.check(batch, heads, queries, keys, device)
        self.right.check(batch, heads, queries, keys, device)

    def state(self) -> Hashable | None:
        both = self.left.state(), self.right.state()
        return None if None in both else (self.sign, *both)

    def __repr__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


class And(_Pair):
    """Visible where both masks allow it."""

    sign = "&"

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return self.left.tile(rows, columns, queries, keys, device) & self.right.tile(
            rows, columns, queries, keys, device
        )

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return np.minimum(
            self.left.kinds(row_edges, column_edges, queries, keys),
            self.right.kinds(row_edges, column_edges, queries, keys),
        )

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        left, right = self.left.mod(batch, queries, keys, device), self.right.mod(batch, queries, keys, device)
        return lambda b, h, i, j: left(b, h, i, j) & right(b, h, i, j)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        left, right = self.left.intervals(queries, keys, device), self.right.intervals(queries, keys, device)
        if left is None or right is None:
            return None
        return torch.maximum(left[0], right[0]), torch.minimum(left[1], right[1])


class Or(_Pair):
    """Visible where either mask allows it."""

    sign = "|"

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return self.left.tile(rows, columns, queries, keys, device) | self.right.tile(
            rows, columns, queries, keys, device
        )

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return np.maximum(
            self.left.kinds(row_edges, column_edges, queries, keys),
            self.right.kinds(row_edges, column_edges, queries, keys),
        )

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        left, right = self.left.mod(batch, queries, keys, device), self.right.mod(batch, queries, keys, device)
        return lambda b, h, i, j: left(b, h, i, j) | right(b, h, i, j)


class Not(Mask):
    """Visible where the other mask forbids it."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return ~self.mask.tile(rows, columns, queries, keys, device)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return FULL - self.mask.kinds(row_edges, column_edges, queries, keys)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        inner = self.mask.mod(batch, queries, keys, device)
        return lambda b, h, i, j: ~inner(b, h, i, j)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        self.mask.check(batch, heads, queries, keys, device)

    def state(self) -> Hashable | None:
        inner = self.mask.state()
        return None if inner is None else ("~", inner)

    def __repr__(self) -> str:
        return f"~{self.mask}"


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


def state_of(name: str, *tensors: Tensor | None) -> Hashable | None:
    """The state of a mask that is made of tensors; None if one of them does not count its changes."""
    given = [t for t in tensors if t is not None]
    if not all(counted(t) for t in given):
        return None
    return (name, *((id(t), t._version) for t in given))


def counted(tensor: Tensor) -> bool:
    """Whether torch counts the changes of a tensor: not in inference mode, nor where numpy has the same memory."""
    return not tensor.is_inference() and not _shared(tensor)


def own(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if numpy has the same memory and may change it unnoticed."""
    return tensor.clone() if _shared(tensor) else tensor


def _shared(tensor: Tensor) -> bool:
    # Memory that torch did not take itself, or has handed to numpy, it may not resize.
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not tensor.untyped_storage().resizable()


def may_keep() -> bool:
    """Whether tensors made now can be kept for later: not those of a graph, a transformation or a dispatch mode."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def as_mask(mask: object) -> Mask:
    """A mask as it is, or a boolean tensor as a dense mask."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, torch.Tensor):
        from sightline.masks.content import dense

        return dense(mask)
    raise InputTypeError(
        "this cannot be used as a mask",
        expected="a sightline mask or a boolean tensor",
        got=type(mask).__name__,
        hint="sl.causal(), sl.window(…), sl.padding(…), sl.documents(…) or sl.dense(bool tensor)",
    )
