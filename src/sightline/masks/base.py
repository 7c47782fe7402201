"""What a mask is: a rule that says which query may attend to which key, and the masks that are made of others.

What it hides is in `rule`; here is how masks are combined, and the same mask for something else: a member of the batch,
some of the heads, a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from sightline.errors import InputError, InputTypeError
from sightline.masks.rule import FULL, MaskMod, Rule
from sightline.portable import Portable, Reading, Writing, check_small, one_batch_axis, one_member, some_heads

if TYPE_CHECKING:
    from torch import Tensor


class Mask(Rule):
    """A rule for who may attend to whom. Combine rules with `&`, `|` and `~`.

    To make a new one, give `tile`. With `kinds` it is fast, with `mod` FlexAttention can compile it, and `check` says
    in its own words what it fits; everything else follows from what it is made of.

    >>> import sightline as sl
    >>> (sl.causal() & ~sl.window(0)).to_dense(3, 3).int()
    tensor([[0, 0, 0],
            [1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """

    saved_as: ClassVar[str | None] = None
    by_example: ClassVar[bool] = False  # each of its tensors has an axis for the examples, in front
    known: ClassVar[dict[str, dict[str, type[Portable]]]] = {}

    def conjuncts(self) -> list[Mask]:
        """The masks that must all allow a cell: those on either side of an `&`, else this one alone."""
        return [self]

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Mask:
        """The mask of one member of the batch, without batch axes, and of some of the heads; None: of all.

        >>> import sightline as sl
        >>> sl.padding([1, 3]).select(member=(1,)).to_dense(1, 4).int()[0]
        tensor([[1, 1, 1, 0]], dtype=torch.int32)
        """
        if self.is_positional:
            return self
        return Selected(self, member, None if heads is None else tuple(heads))

    def for_examples(self, pick: Callable[[Tensor], Tensor]) -> Mask | None:
        """The mask of some examples of a batch, whose part of a tensor `pick` gives; None if it cannot be had.

        >>> import sightline as sl
        >>> sl.padding([1, 3]).for_examples(lambda x: x[1:]).to_dense(1, 4).int()[0, 0]
        tensor([[1, 1, 1, 0]], dtype=torch.int32)
        """
        if self.is_positional:
            return self
        made: Mask | None = self.rebuilt(pick) if self.by_example else None
        return made

    def flattened(self, batch: tuple[int, ...]) -> Mask:
        """The same mask for one batch axis instead of none or several."""
        return self if self.is_positional or len(batch) < 2 else Flattened(self, batch)

    @property
    def is_large(self) -> bool:
        """Whether what a file holds of it grows with queries x keys, as a table does."""
        return not self.is_plain or any(part.is_large for part in self.parts())

    def writable(self, queries: int, keys: int) -> Mask:
        """The mask as a file can hold it: functions are written out if they are small, and are refused if not."""
        if self.is_plain:
            return self
        if self.unsaved() is None:
            return self.rebuilt(lambda x: x.writable(queries, keys) if isinstance(x, Mask) else x)
        if queries and keys:
            check_small("mask", self.tile(slice(0, 1), slice(0, 1), queries, keys, torch.device("cpu")), queries, keys)
        return as_mask(self.to_dense(queries, keys).contiguous())

    def __and__(self, other: Mask) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, as_mask(other))

    def __invert__(self) -> Mask:
        return Not(self)


class _Made(Mask):
    """A mask made of others: what is true of it follows from them."""

    saved_as: ClassVar[str | None] = None

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        for part in self.parts():
            part.check(batch, heads, queries, keys, device)

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Mask:
        made: Mask = self.rebuilt(lambda part: part.select(member, heads))
        return made

    def for_examples(self, pick: Callable[[Tensor], Tensor]) -> Mask | None:
        found = [part.for_examples(pick) for part in self.parts()]
        if any(part is None for part in found):
            return None
        parts = iter(found)
        made: Mask = self.rebuilt(lambda _: next(parts))
        return made

    def flattened(self, batch: tuple[int, ...]) -> Mask:
        made: Mask = self.rebuilt(lambda part: part.flattened(batch))
        return made


class _Pair(_Made):
    """Two masks and an operator between them."""

    saved_as: ClassVar[str | None] = None
    saved_fields = ("left", "right")
    sign: str

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right

    def state(self) -> Hashable | None:
        both = self.left.state(), self.right.state()
        return None if None in both else (self.sign, *both)

    def rebuilt(self, change: Callable[[Any], Any]) -> Any:
        left, right = change(self.left), change(self.right)
        if left is self.left and right is self.right:
            return self
        return left & right if self.sign == "&" else left | right

    def to_file(self, file: Writing) -> Any:
        return {"left": file.part(self.left), "right": file.part(self.right)}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        left, right = file.part("left"), file.part("right")
        return left & right if cls.sign == "&" else left | right

    def __repr__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


class And(_Pair):
    """Visible where both masks allow it."""

    saved_as: ClassVar[str | None] = "&"
    holds = ("left", "right")
    sign = "&"

    def conjuncts(self) -> list[Mask]:
        return [*self.left.conjuncts(), *self.right.conjuncts()]

    @property
    def sees_first_key(self) -> bool:
        return self.left.sees_first_key and self.right.sees_first_key

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

    saved_as: ClassVar[str | None] = "|"
    holds = ("left", "right")
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


class Not(_Made):
    """Visible where the other mask forbids it."""

    saved_as = "~"
    holds = ("mask",)
    saved_fields = ("of",)

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return ~self.mask.tile(rows, columns, queries, keys, device)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return FULL - self.mask.kinds(row_edges, column_edges, queries, keys)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        inner = self.mask.mod(batch, queries, keys, device)
        return lambda b, h, i, j: ~inner(b, h, i, j)

    @property
    def follows_order(self) -> bool:
        return self.mask.follows_order

    def rebuilt(self, change: Callable[[Any], Any]) -> Any:
        mask = change(self.mask)
        return self if mask is self.mask else ~mask

    def to_file(self, file: Writing) -> Any:
        return {"of": file.part(self.mask)}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        return ~file.part("of")

    def state(self) -> Hashable | None:
        inner = self.mask.state()
        return None if inner is None else ("~", inner)

    def __repr__(self) -> str:
        return f"~{self.mask}"


class Selected(Mask):
    """What one member of the batch, or some of the heads, see of a mask."""

    saved_as = "selected"
    holds = ("mask", "member", "heads")

    def __init__(self, mask: Mask, member: tuple[int, ...] | None, heads: tuple[int, ...] | None) -> None:
        self.mask, self.member, self.heads = mask, member, heads

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        cells = self.mask.tile(rows, columns, queries, keys, device)
        return one_member(some_heads(cells, self.heads, 2), self.member, 3)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return self.mask.kinds(row_edges, column_edges, queries, keys)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        found = self.mask.intervals(queries, keys, device)
        return None if found is None else (one_member(found[0], self.member, 1), one_member(found[1], self.member, 1))

    def key_row(self, keys: int, device: torch.device) -> Tensor | None:
        row = self.mask.key_row(keys, device)
        return None if row is None else one_member(row, self.member, 1)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        self.check_tiles(batch, heads, queries, keys, device)  # what it was selected from fits another call

    def __repr__(self) -> str:
        return repr(self.mask)


class Flattened(Mask):
    """A mask whose several batch axes have become one."""

    saved_as = "flattened"
    holds = ("mask", "batch")

    def __init__(self, mask: Mask, batch: tuple[int, ...]) -> None:
        self.mask, self.batch = mask, batch

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return one_batch_axis(self.mask.tile(rows, columns, queries, keys, device), self.batch, 3)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return self.mask.kinds(row_edges, column_edges, queries, keys)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        return self.mask.mod(self.batch, queries, keys, device)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        found = self.mask.intervals(queries, keys, device)
        if found is None:
            return None
        return one_batch_axis(found[0], self.batch, 1), one_batch_axis(found[1], self.batch, 1)

    def key_row(self, keys: int, device: torch.device) -> Tensor | None:
        row = self.mask.key_row(keys, device)
        return None if row is None else one_batch_axis(row, self.batch, 1)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        if math.prod(self.batch) != math.prod(batch):
            raise InputError(
                "the mask was made for another batch", expected=self.batch, got=batch, hint="the mask of this call"
            )
        self.mask.check(self.batch, heads, queries, keys, device)

    def __repr__(self) -> str:
        return repr(self.mask)


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
