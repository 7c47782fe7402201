"""Masks that depend only on where query and key stand: causal, window, prefix.

Four queries over six keys (1 = may attend); the last query stands at the last key, as a cache needs it:

```
causal()        causal(align="start")   window(1)       window(1, 1)    prefix(2)
1 1 1 0 0 0     1 0 0 0 0 0             0 1 1 0 0 0     0 1 1 1 0 0     1 1 1 0 0 0
1 1 1 1 0 0     1 1 0 0 0 0             0 0 1 1 0 0     0 0 1 1 1 0     1 1 1 1 0 0
1 1 1 1 1 0     1 1 1 0 0 0             0 0 0 1 1 0     0 0 0 1 1 1     1 1 1 1 1 0
1 1 1 1 1 1     1 1 1 1 0 0             0 0 0 0 1 1     0 0 0 0 1 1     1 1 1 1 1 1
```

With more queries than keys the first rows of `causal()` see nothing; they give 0.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from sightline.errors import InputError, InputTypeError
from sightline.masks.base import Mask
from sightline.masks.rule import EMPTY, FULL, MIXED, MaskMod
from sightline.portable import Reading, Writing
from sightline.shapes import as_whole

if TYPE_CHECKING:
    from torch import Tensor


class _Positional(Mask):
    """A mask that depends on nothing but positions: a plain value, which fits every call."""

    saved_as: ClassVar[str | None] = None
    is_positional = True

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        pass

    def state(self) -> Mask:
        return self


class Band(_Positional):
    """Keys from `left` before the query's position to `right` after it; None means without limit."""

    saved_as = "band"
    holds = ("left", "right", "align")
    saved_fields = ("left", "right", "align")

    def __init__(self, left: int | None, right: int | None, align: str = "end") -> None:
        self.left, self.right, self.align = left, right, align

    def offset(self, queries: int, keys: int) -> int:
        """Query `i` stands at key `i + offset`."""
        return keys - queries if self.align == "end" else 0

    def limits(self, queries: int, keys: int) -> tuple[int | None, int | None]:
        """Left and right within the sizes of a call: what is larger changes nothing, and would overflow int64."""
        most = queries + keys
        left, right = (None if n is None else max(-most, min(n, most)) for n in (self.left, self.right))
        return left, right

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        place = torch.arange(rows.start, rows.stop, device=device)[:, None] + self.offset(queries, keys)
        column = torch.arange(columns.start, columns.stop, device=device)
        return _allows(place, column, *self.limits(queries, keys))

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        first, last = (
            row_edges[:-1, None] + self.offset(queries, keys),
            row_edges[1:, None] - 1 + self.offset(queries, keys),
        )
        start, stop = column_edges[None, :-1], column_edges[None, 1:] - 1
        left, right = self.limits(queries, keys)
        shape = (len(row_edges) - 1, len(column_edges) - 1)
        empty, full = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
        if right is not None:
            empty |= start > last + right
            full &= stop <= first + right
        if left is not None:
            empty |= stop < first - left
            full &= start >= last - left
        return np.where(empty, EMPTY, np.where(full, FULL, MIXED)).astype(np.int8)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        offset = self.offset(queries, keys)
        left, right = self.limits(queries, keys)
        return lambda b, h, i, j: _allows(i + offset, j, left, right)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
        place = torch.arange(queries, device=device) + self.offset(queries, keys)
        left, right = self.limits(queries, keys)
        first = torch.zeros_like(place) if left is None else (place - left).clamp(0, keys)
        stop = torch.full_like(place, keys) if right is None else (place + right + 1).clamp(0, keys)
        return first, stop

    def visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        first, stop = self.intervals(queries, keys, device)
        return (stop - first).clamp_min(0)

    @property
    def band(self) -> Band:
        return self

    @property
    def sees_first_key(self) -> bool:
        return self.left is None

    def to_file(self, file: Writing) -> dict[str, Any]:
        return {"left": _near(self.left), "right": _near(self.right), "align": self.align}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        left, right = (
            None if file.value(side) is None else file.whole(side, -sys.maxsize, sys.maxsize)
            for side in ("left", "right")
        )
        return cls(left, right, file.one_of("align", ("end", "start")))

    def __and__(self, other: Mask) -> Mask:
        # Two bands with the same alignment are one band.
        if isinstance(other, Band) and other.align == self.align:
            return Band(_narrower(self.left, other.left), _narrower(self.right, other.right), self.align)
        return super().__and__(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Band) and (self.left, self.right, self.align) == (other.left, other.right, other.align)

    def __hash__(self) -> int:
        return hash((self.left, self.right, self.align))

    def __repr__(self) -> str:
        if (self.left, self.right) == (None, 0):
            return "causal()" if self.align == "end" else f"causal(align={self.align!r})"
        return (
            f"window({self.left}, {self.right})" if self.align == "end" else f"Band({self.left}, {self.right}, 'start')"
        )


def _allows(place: Tensor, column: Tensor, left: int | None, right: int | None) -> Tensor:
    allowed = torch.ones_like(place - column, dtype=torch.bool) if left is right is None else None
    if left is not None:
        allowed = column >= place - left
    if right is not None:
        near = column <= place + right
        allowed = near if allowed is None else allowed & near
    assert allowed is not None
    return allowed


class Prefix(_Positional):
    """Causal, and everyone sees the first `n` keys."""

    saved_as = "prefix"
    holds = ("n",)
    saved_fields = ("n",)
    sees_first_key = True

    def __init__(self, n: int) -> None:
        self.n = n

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        column = torch.arange(columns.start, columns.stop, device=device)
        return _CAUSAL.tile(rows, columns, queries, keys, device) | (column < min(self.n, keys))

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        start, stop = column_edges[None, :-1], column_edges[None, 1:]
        n = min(self.n, keys)
        prefix = np.where(stop <= n, FULL, np.where(start < n, MIXED, EMPTY))
        return np.maximum(_CAUSAL.kinds(row_edges, column_edges, queries, keys), prefix).astype(np.int8)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        offset, n = keys - queries, min(self.n, keys)
        return lambda b, h, i, j: (j <= i + offset) | (j < n)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
        first, stop = _CAUSAL.intervals(queries, keys, device)
        return first, stop.clamp_min(min(self.n, keys))

    def visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return self.intervals(queries, keys, device)[1]

    def to_file(self, file: Writing) -> dict[str, Any]:
        return {"n": _near(self.n)}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        return cls(file.whole("n", 0, sys.maxsize))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prefix) and self.n == other.n

    def __hash__(self) -> int:
        return hash(("prefix", self.n))

    def __repr__(self) -> str:
        return f"prefix({self.n})"


_CAUSAL = Band(None, 0)


def causal(align: str = "end") -> Band:
    """Every query sees its own position and the past.

    `align="end"` puts the last query at the last key, which is what a cache needs; `align="start"` puts the
    first query at the first key, which is torch's `is_causal`. They differ only for unequal lengths.

    >>> causal().to_dense(2, 3).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    >>> causal(align="start").to_dense(2, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """
    if align not in ("end", "start"):
        raise InputError(
            "unknown alignment", expected="'end' or 'start'", got=repr(align), hint="causal() is aligned at the end"
        )
    return _CAUSAL if align == "end" else Band(None, 0, "start")


def window(left: int | None, right: int | None = 0) -> Band:
    """Every query sees its own position, `left` keys before it and `right` after it (None: no limit).

    `right=0` is the usual sliding window of a causal model.

    >>> window(1).to_dense(3, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    hint = "window(left, right) counts keys before and after the position itself"
    return Band(
        None if left is None else _whole("the window's left", left, hint),
        None if right is None else _whole("the window's right", right, hint),
    )


def prefix(n: int) -> Prefix:
    """Causal, and everyone sees the first `n` keys.

    >>> prefix(2).to_dense(3, 3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return Prefix(_whole("the prefix", n, "prefix(n) is the number of keys that everyone sees"))


def _whole(what: str, value: object, hint: str) -> int:
    number = as_whole(value)
    if number is None:
        raise InputTypeError(f"{what} must be a whole number", expected="int", got=type(value).__name__, hint=hint)
    if number < 0:
        raise InputError(f"{what} must not be negative", expected="0 or more", got=number, hint=hint)
    return number


def _narrower(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _near(number: int | None) -> int | None:
    """For a file: beyond the largest index there is nothing to tell apart."""
    return None if number is None else max(-sys.maxsize, min(int(number), sys.maxsize))
