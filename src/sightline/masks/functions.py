"""Masks and biases that are given as functions of single cells, or by parts: what other people's code hands over.

FlexAttention and transformers describe masks by functions `(b, h, i, j) -> bool`. They are called on the cells of a
tile, so that a queries x keys table never exists.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from sightline.biases import Bias
from sightline.errors import InputError, InputTypeError
from sightline.masks import EMPTY, FULL, MIXED, Mask
from sightline.masks.rule import MaskMod

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def cells(
    batch: int, heads: int, rows: slice, columns: slice, device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The indices of all cells of a tile, each with four axes, so that any function of them broadcasts."""
    count = torch.arange
    return (
        count(batch, device=device).view(-1, 1, 1, 1),
        count(heads, device=device).view(1, -1, 1, 1),
        count(rows.start, rows.stop, device=device).view(1, 1, -1, 1),
        count(columns.start, columns.stop, device=device).view(1, 1, 1, -1),
    )


class _OfFunction:
    """Something given as a function. A copy of a function is the function, as everywhere in Python."""

    function: MaskMod
    batch: int
    heads: int
    device: torch.device

    def _selected(self, member: tuple[int, ...] | None, heads: Sequence[int] | None) -> tuple[MaskMod, int, int]:
        """The function for one member of the batch and for some heads, and how many of both there are then."""
        function, batch, count = self.function, self.batch, self.heads
        if heads is not None and count > 1:
            numbers, whole = torch.tensor(list(heads), device=self.device), function
            function, count = (lambda b, h, i, j: whole(b, numbers[h], i, j)), len(heads)
        if member and batch > 1:
            place, every = member[-1], function
            function, batch = (lambda b, h, i, j: every(b + place, h, i, j)), 1
        return function, batch, count

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise InputTypeError(
                "a mask or bias that is a function cannot be pickled",
                expected="a function of a module, which is found again by its name",
                got=getattr(self.function, "__qualname__", type(self.function).__name__),
                hint="seen.save(folder), which writes it out, and sl.load(folder)",
            ) from None
        return self.__dict__


class ModMask(_OfFunction, Mask):
    """A mask given as a function `(b, h, i, j) -> bool` of tensors of indices.

    `blocks` may say of blocks of the map whether they are empty, mixed or full; without it every tile is looked at.
    """

    saved_as = None
    follows_order = False

    def __init__(
        self,
        function: MaskMod,
        batch: int,
        heads: int = 1,
        blocks: tuple[np.ndarray, tuple[int, int]] | None = None,
        name: str = "function",
        device: torch.device | str = "cpu",
    ) -> None:
        self.function, self.batch, self.heads, self.blocks, self.name = function, batch, heads, blocks, name
        self.device = torch.device(device)  # where the tensors are that the function reads

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "*any"]:
        shape = (self.batch, self.heads, rows.stop - rows.start, columns.stop - columns.start)
        found = self.function(*cells(self.batch, self.heads, rows, columns, self.device))
        return torch.as_tensor(found).to(device).expand(shape)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        shape = (len(row_edges) - 1, len(column_edges) - 1)
        if self.blocks is None:
            return np.full(shape, MIXED, dtype=np.int8)
        table, (height, width) = self.blocks
        if not table.size or not all(shape):
            return np.full(shape, MIXED, dtype=np.int8)
        # Least and greatest kind of all blocks that a tile touches.
        least, most = (
            _over_blocks(reduce, table, row_edges, column_edges, height, width) for reduce in (np.min, np.max)
        )
        return np.where(least == most, least, MIXED).astype(np.int8)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        if device == self.device:
            return self.function
        return lambda *index: self.function(*(i.to(self.device) for i in index)).to(device)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        if int(np.prod(batch)) not in (self.batch, 1) and self.batch != 1:
            raise InputError(
                "the mask function is for another batch",
                expected=f"a batch of {self.batch}",
                got=batch,
                hint="one mask function serves one call",
            )

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> ModMask:
        function, batch, count = self._selected(member, heads)
        if function is self.function:
            return self
        return ModMask(function, batch, count, None if heads is not None else self.blocks, self.name, self.device)

    def flattened(self, batch: tuple[int, ...]) -> ModMask:
        return self  # its batch is one number

    def __repr__(self) -> str:
        return f"mask_mod({self.name})"


def _over_blocks(
    reduce: Callable[[np.ndarray], Any],
    table: np.ndarray,
    row_edges: np.ndarray,
    column_edges: np.ndarray,
    height: int,
    width: int,
) -> np.ndarray:
    def spans(edges: np.ndarray, size: int, blocks: int) -> list[tuple[int, int]]:
        first = np.minimum(edges[:-1] // size, blocks - 1)
        last = np.minimum((edges[1:] - 1) // size, blocks - 1)
        return [(int(a), int(max(a, b)) + 1) for a, b in zip(first, last)]

    rows, columns = spans(row_edges, height, table.shape[0]), spans(column_edges, width, table.shape[1])
    return np.array([[reduce(table[a:b, c:d]) for c, d in columns] for a, b in rows])


class ModBias(_OfFunction, Bias):
    """A bias given as a function `(b, h, i, j) -> number` of tensors of indices."""

    saved_as = None
    compiles = False

    def __init__(self, function: MaskMod, batch: int, heads: int, device: torch.device | str = "cpu") -> None:
        self.function, self.batch, self.heads, self.device = function, batch, heads, torch.device(device)

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "batch heads rows columns"]:
        shape = (self.batch, self.heads, rows.stop - rows.start, columns.stop - columns.start)
        found = self.function(*cells(self.batch, self.heads, rows, columns, self.device))
        return found.to(device or self.device, dtype).expand(shape)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        """A function fits any size."""

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> MaskMod:
        return lambda *index: self.function(*(i.to(self.device) for i in index)).to(device, dtype)

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> ModBias:
        function, batch, count = self._selected(member, heads)
        return ModBias(function, batch, count, self.device)

    def flattened(self, batch: tuple[int, ...]) -> ModBias:
        return self  # its batch is one number


class Stacked(Mask):
    """Masks of successive parts of one run, one below the other: part p has its own queries and the keys of its time.

    Keys that came later are hidden from earlier rows.
    """

    saved_as = None
    follows_order = False

    def __init__(self, pieces: Sequence[tuple[Mask | None, int, int, int]]) -> None:
        """Pieces of (mask, queries, first key, end of keys)."""
        self.pieces = list(pieces)
        self.starts = np.cumsum([0, *(queries for _, queries, _, _ in self.pieces)])

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        bands = []
        for (mask, count, first, end), start in zip(self.pieces, self.starts):
            a, b = max(rows.start, int(start)), min(rows.stop, int(start) + count)
            if a >= b:
                continue
            c, d = max(columns.start, first), min(columns.stop, end)
            piece = torch.zeros(b - a, columns.stop - columns.start, dtype=torch.bool, device=device)
            if c < d:
                inner = torch.ones((), dtype=torch.bool, device=device)
                if mask is not None:
                    own = slice(a - int(start), b - int(start))
                    inner = mask.tile(own, slice(c - first, d - first), count, end - first, device)
                inner = inner.expand(*inner.shape[:-2], b - a, d - c)
                piece = piece.expand(*inner.shape[:-2], *piece.shape).clone()
                piece[..., c - columns.start : d - columns.start] = inner
            bands.append(piece)
        leading = torch.broadcast_shapes(*(piece.shape[:-2] for piece in bands))
        return torch.cat([piece.expand(*leading, *piece.shape[-2:]) for piece in bands], -2)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        out = np.full((len(row_edges) - 1, len(column_edges) - 1), MIXED, dtype=np.int8)
        for i, (a, b) in enumerate(pairwise(row_edges.tolist())):
            inside = np.flatnonzero((self.starts[:-1] <= a) & (b <= self.starts[1:]))
            if len(inside):
                mask, _, first, end = self.pieces[int(inside[0])]
                hidden = (column_edges[:-1] >= end) | (column_edges[1:] <= first)
                whole = (column_edges[:-1] >= first) & (column_edges[1:] <= end)
                out[i] = np.where(hidden, EMPTY, np.where(whole & (mask is None), FULL, MIXED))
        return out

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        inner = [
            None if mask is None else mask.mod(batch, count, end - first, device)
            for mask, count, first, end in self.pieces
        ]

        def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            found = torch.zeros_like(i + j, dtype=torch.bool)
            for rule, (_, count, first, end), start in zip(inner, self.pieces, self.starts):
                here = (i >= int(start)) & (i < int(start) + count) & (j >= first) & (j < end)
                if rule is not None:
                    row = (i - int(start)).clamp(0, max(count - 1, 0))
                    here = here & rule(b, h, row, (j - first).clamp(0, max(end - first - 1, 0)))
                found = found | here
            return found

        return mod

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """Each piece was checked in the call it is from."""

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Stacked:
        return self.rebuilt(lambda x: x.select(member, heads))

    def flattened(self, batch: tuple[int, ...]) -> Stacked:
        return self.rebuilt(lambda x: x.flattened(batch))

    def __repr__(self) -> str:
        return f"stacked({len(self.pieces)} parts)"


def read_score_mod(
    mod: ScoreMod, batch: int, heads: int, queries: int, keys: int, device: torch.device
) -> tuple[float | None, ModBias]:
    """A FlexAttention score_mod as a soft-cap and a bias; a ValueError says that it is neither.

    It is tried on a few cells and scores: `score + bias(cell)`, or `cap tanh(score / cap) + bias(cell)`.
    """
    rows = torch.linspace(0, max(queries - 1, 0), min(queries, 5), device=device).long().view(1, 1, -1, 1)
    columns = torch.linspace(0, max(keys - 1, 0), min(keys, 5), device=device).long().view(1, 1, 1, -1)
    b, h = (torch.arange(n, device=device) for n in (batch, heads))
    b, h = b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1)
    shape = (batch, heads, rows.shape[2], columns.shape[3])

    def at(score: float) -> Tensor:
        return mod(torch.full(shape, score, dtype=torch.float64, device=device), b, h, rows, columns).double()

    base = at(0.0)
    seen = base > -torch.inf
    scores = (-7.0, -0.5, 0.75, 3.0, 40.0)
    shifts = {score: (at(score) - base)[seen] for score in scores}
    cap: float | None = None
    if not all(torch.allclose(shift, torch.full_like(shift, s), atol=1e-4) for s, shift in shifts.items()):
        far = (at(1e9) - base)[seen]
        cap = float(far.flatten()[0]) if far.numel() else 1.0
        for s, shift in shifts.items():
            if not 0 < cap < 1e8 or not torch.allclose(
                shift, cap * torch.tanh(torch.full_like(shift, s / cap)), atol=1e-3
            ):
                raise ValueError("the score_mod neither adds a bias nor caps the score")

    def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mod(torch.zeros_like(b + h + i + j, dtype=torch.float32), b, h, i, j)

    return cap, ModBias(bias, batch, heads, device)
