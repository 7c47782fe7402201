"""Which part of a sequence lies on which rank, and what a mask or bias of the whole says of two such parts.

Of three ranks, each with its part of a sequence of six chunks:

```
contiguous    0 0 1 1 2 2
head-tail     0 1 2 2 1 0     under a causal mask every rank has as much to do as the others
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from sightline.backends.tiles import bias_index
from sightline.biases import Bias
from sightline.errors import InputError
from sightline.masks import EMPTY, FULL, Mask
from sightline.portable import at_cells

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.backends.call import BiasLike, Call
    from sightline.biases import BiasMod
    from sightline.masks.rule import MaskMod

BALANCES = ("contiguous", "head-tail")


class Piece(NamedTuple):
    """A stretch of a rank's part: where it lies there, and where it begins in the whole."""

    local: slice
    start: int

    @property
    def length(self) -> int:
        return self.local.stop - self.local.start


def pieces(lengths: list[int], balance: str) -> list[list[Piece]]:
    """For every rank the pieces of its part, from the lengths of all parts.

    >>> pieces([3, 2], "contiguous")[1]
    [Piece(local=slice(0, 2, None), start=3)]
    >>> [piece.start for piece in pieces([3, 2], "head-tail")[0]]
    [0, 4]
    """
    if balance == "contiguous":
        starts = np.cumsum([0, *lengths]).tolist()
        return [[Piece(slice(0, n), start)] for n, start in zip(lengths, starts, strict=False)]
    heads = [n - n // 2 for n in lengths]
    starts = np.cumsum([0, *heads]).tolist()
    ends = sum(lengths) - np.cumsum([n // 2 for n in lengths])
    return [
        [Piece(slice(0, heads[r]), starts[r]), Piece(slice(heads[r], n), int(ends[r]))] for r, n in enumerate(lengths)
    ]


def check_balance(balance: object) -> str:
    """One of the two ways in which a sequence is cut, or an error."""
    if balance not in BALANCES:
        raise InputError(
            "unknown balance", expected=" or ".join(BALANCES), got=repr(balance), hint='balance="head-tail"'
        )
    return str(balance)


class Whole(NamedTuple):
    """The whole map: how many queries and keys all ranks hold, and what is hidden and added there."""

    queries: int
    keys: int
    mask: Mask | None
    bias: BiasLike


def block(call: Call, whole: Whole, k: Tensor, v: Tensor, rows: Piece, columns: Piece) -> Call | None:
    """The call of some local queries and some keys; None if they see none of them."""
    q, k, v = call.q[..., rows.local, :], k[..., columns.local, :], v[..., columns.local, :]
    mask, bias, counts = whole.mask, whole.bias, not call.normalizer.is_softmax
    sizes = call.sizes._replace(queries=rows.length, keys=columns.length)
    if not rows.length or not columns.length:
        return None
    # Where the first query stands among these keys, and where it would stand if it were all there is.
    shift = rows.start + whole.keys - whole.queries - columns.start
    as_if_alone = shift == columns.length - rows.length
    if mask is not None:
        down, across = (np.array([piece.start, piece.start + piece.length]) for piece in (rows, columns))
        kind = mask.kinds(down, across, whole.queries, whole.keys)[0, 0]
        if kind == EMPTY:
            return None
        alone = as_if_alone if mask.band is None or mask.band.align == "end" else rows.start == columns.start
        if kind == FULL and not counts:
            mask = None
        elif mask.band is None or not alone or counts:
            mask = Elsewhere(mask, rows.start, columns.start, whole.queries, whole.keys, counts)
    if isinstance(bias, torch.Tensor):
        span = slice(columns.start, columns.start + columns.length)
        bias = bias[bias_index(bias, slice(rows.start, rows.start + rows.length), span)]
    elif bias is not None and not as_if_alone:
        bias = BiasElsewhere(bias, rows.start, columns.start, whole.queries, whole.keys)
    if counts and mask is None:
        mask = Elsewhere(None, rows.start, columns.start, whole.queries, whole.keys, counts)
    return call.replace(q=q, k=k, v=v, sizes=sizes, mask=mask, bias=bias)


def place(rows: Piece, columns: Piece, whole: Whole) -> int:
    """Where the first query stands among the keys of a piece."""
    return rows.start + whole.keys - whole.queries - columns.start


def _moved(span: slice, by: int) -> slice:
    return slice(span.start + by, span.stop + by)


class Elsewhere(Mask):
    """A rectangle of a larger mask as a mask of its own. With `counts`, its rows count their keys in the larger one."""

    saved_as = None
    holds = ("mask", "row", "column", "queries", "keys", "counts")

    def __init__(self, mask: Mask | None, row: int, column: int, queries: int, keys: int, counts: bool = False) -> None:
        self.mask, self.row, self.column, self.queries, self.keys = mask, row, column, queries, keys
        self.counts = counts

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        pass  # the larger one was checked

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        rows, columns = _moved(rows, self.row), _moved(columns, self.column)
        if self.mask is None:
            return torch.ones(rows.stop - rows.start, columns.stop - columns.start, dtype=torch.bool, device=device)
        return self.mask.tile(rows, columns, self.queries, self.keys, device)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        if self.mask is None:
            return np.full((len(row_edges) - 1, len(column_edges) - 1), FULL, dtype=np.int8)
        return self.mask.kinds(row_edges + self.row, column_edges + self.column, self.queries, self.keys)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        if self.mask is None:
            return lambda b, h, i, j: (i >= 0) & (j >= 0)
        inner, row, column = self.mask.mod(batch, self.queries, self.keys, device), self.row, self.column
        return lambda b, h, i, j: inner(b, h, i + row, j + column)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        found = None if self.mask is None else self.mask.intervals(self.queries, self.keys, device)
        if found is None:
            return None
        first, stop = ((t[..., self.row : self.row + queries] - self.column).clamp(0, keys) for t in found)
        return first, stop

    def key_row(self, keys: int, device: torch.device) -> Tensor | None:
        row = None if self.mask is None else self.mask.key_row(self.keys, device)
        return None if row is None else row[..., self.column : self.column + keys]

    def visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        if not self.counts:
            return super().visible(queries, keys, device)
        if self.mask is None:
            return torch.full((queries,), self.keys, dtype=torch.int64, device=device)
        return Elsewhere(self.mask, self.row, 0, self.queries, self.keys).visible(queries, self.keys, device)

    def __repr__(self) -> str:
        return repr(self.mask)


class BiasElsewhere(Bias):
    """A rectangle of a larger bias as a bias of its own."""

    saved_as = None
    holds = ("bias", "row", "column", "queries", "keys")

    def __init__(self, bias: Bias, row: int, column: int, queries: int, keys: int) -> None:
        self.bias, self.row, self.column, self.queries, self.keys = bias, row, column, queries, keys

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        pass  # the larger one was checked

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        rows, columns = _moved(rows, self.row), _moved(columns, self.column)
        return self.bias.tile(rows, columns, self.queries, self.keys, device, dtype)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> BiasMod:
        if not self.bias.compiles:
            return lambda b, h, i, j: at_cells(
                lambda rows, columns: self.tile(rows, columns, queries, keys, device, dtype), batch, b, h, i, j
            ).to(dtype)
        inner, row, column = self.bias.mod(batch, self.queries, self.keys, device, dtype), self.row, self.column
        return lambda b, h, i, j: inner(b, h, i + row, j + column)

    @property
    def compiles(self) -> bool:
        return self.bias.compiles

    def __repr__(self) -> str:
        return repr(self.bias)
