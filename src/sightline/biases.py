"""Biases that are never written out: numbers added to the scores, given tile by tile, as ALiBi's are.

A bias of one's own is a class with a `tile`; everything else follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.portable import (
    Portable,
    at_cells,
    broadcasts,
    check_small,
    one_batch_axis,
    one_member,
    some_heads,
)

if TYPE_CHECKING:
    from jaxtyping import Float

BiasMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Bias(Portable):
    """A bias that gives any tile of itself. To make a new one, give `tile`; `mod` lets FlexAttention compile it.

    >>> class Recent(Bias):
    ...     def tile(self, rows, columns, queries, keys, device=None, dtype=torch.float32):
    ...         return torch.arange(columns.start, columns.stop, device=device, dtype=dtype) / keys
    >>> Recent().to_dense(1, 4)
    tensor([[0.0000, 0.2500, 0.5000, 0.7500]])
    """

    saved_as: ClassVar[str | None] = None
    known: ClassVar[dict[str, dict[str, type[Portable]]]] = {}
    # One number a head, if the bias is that times minus the distance, as ALiBi's is: what kernels know.
    slopes: Tensor | None = None

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "*any"]:
        """The bias of a rectangle, broadcastable to `[*batch, heads, rows, columns]`."""
        raise NotImplementedError

    def to_dense(
        self, queries: int, keys: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*any queries keys"]:
        """The whole bias, for looking at and for tests."""
        table = self.tile(slice(0, queries), slice(0, keys), queries, keys, device, dtype)
        return table.expand(*table.shape[:-2], queries, keys)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        """Raise if the bias does not fit a call of these sizes."""
        cell = self.tile(slice(0, min(1, queries)), slice(0, min(1, keys)), queries, keys)
        target = (*batch, heads, min(1, queries), min(1, keys))
        if not broadcasts(cell.shape, target):
            raise InputError(
                "the bias does not fit the call",
                expected=f"tiles that broadcast to {(*batch, heads)} of batch and heads",
                got=f"one of {tuple(cell.shape)} for a single cell",
                hint="a tile has the axes [*batch, heads, rows, columns]; those before rows may be missing or 1",
            )

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> BiasMod:
        """The bias of single cells, `mod(b, h, i, j)` with a flattened batch."""

        def tile(rows: slice, columns: slice) -> Tensor:
            return self.tile(rows, columns, queries, keys, device, dtype)

        return lambda b, h, i, j: at_cells(tile, batch, b, h, i, j).to(dtype)

    @property
    def compiles(self) -> bool:
        """Whether its `mod` is one that FlexAttention can compile."""
        return type(self).mod is not Bias.mod

    @property
    def grows(self) -> bool:
        """Whether it is the same rule for the longer sequence of the next step of a generation."""
        return False

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Bias:
        """The bias of one member of the batch, without batch axes, and of some of the heads; None: of all."""
        return SelectedBias(self, member, None if heads is None else tuple(heads))

    def flattened(self, batch: tuple[int, ...]) -> Bias:
        """The same bias for one batch axis instead of none or several."""
        return self if len(batch) < 2 else FlatBias(self, batch)

    def writable(self, queries: int, keys: int) -> Bias | Tensor:
        """The bias as a file can hold it: itself, or written out if it is small; a large one is refused."""
        if self.is_plain:
            return self
        cells = check_small("bias", self.tile(slice(0, 1), slice(0, 1), queries, keys), queries, keys)
        return self.to_dense(queries, keys).expand(*cells, queries, keys).cpu()


class SelectedBias(Bias):
    """One member's and some heads' part of a bias."""

    saved_as = "selected"
    holds = ("bias", "member", "heads")

    def __init__(self, bias: Bias, member: tuple[int, ...] | None, heads: tuple[int, ...] | None) -> None:
        self.bias, self.member, self.heads = bias, member, heads

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        found = self.bias.tile(rows, columns, queries, keys, device, dtype)
        return one_member(some_heads(found, self.heads, 2), self.member, 3)

    def __repr__(self) -> str:
        return repr(self.bias)


class FlatBias(Bias):
    """A bias whose several batch axes have become one."""

    saved_as = "flattened"
    holds = ("bias", "batch")

    def __init__(self, bias: Bias, batch: tuple[int, ...]) -> None:
        self.bias, self.batch = bias, batch

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        return one_batch_axis(self.bias.tile(rows, columns, queries, keys, device, dtype), self.batch, 3)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        if math.prod(self.batch) != math.prod(batch):
            raise InputError(
                "the bias was made for another batch", expected=self.batch, got=batch, hint="the bias of this call"
            )
        self.bias.check(self.batch, heads, queries, keys)

    def __repr__(self) -> str:
        return repr(self.bias)


class GivenBias(Bias):
    """Any object with the methods of a bias, as one."""

    saved_as = None

    def __init__(self, bias: Any) -> None:
        self.bias = bias

    @property
    def class_name(self) -> str:
        return type(self.bias).__name__

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        return self.bias.tile(rows, columns, queries, keys, torch.device(device or "cpu"), dtype)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        self.bias.check(batch, heads, queries, keys)

    def __repr__(self) -> str:
        return repr(self.bias)


def as_bias(bias: object) -> Bias | Tensor:
    """A bias or tensor as it is, or any object with a `tile` as a bias."""
    if isinstance(bias, (Bias, Tensor)):
        return bias
    if hasattr(bias, "tile"):
        return GivenBias(bias)
    raise InputTypeError(
        "this cannot be used as a bias",
        expected="a floating tensor or sl.alibi(heads)",
        got=type(bias).__name__,
        hint="torch.as_tensor(bias)",
    )
