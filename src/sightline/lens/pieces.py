"""Pieces of a map for those who gather it bit by bit, in any order: rectangles in bins, and rows here and there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sightline.lens.geometry import axis
from sightline.lens.levels import level_of
from sightline.lens.pictures import visible_cells
from sightline.lens.tiles.accumulators import Accumulator, Pixels, Received, RowSums
from sightline.lens.tiles.walk import walk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from sightline.lens.sight import Sight


class Piece(NamedTuple):
    """A rectangle of a map in bins, and what it adds to its rows and to its keys, if that was asked for."""

    rows: slice
    columns: slice
    sums: Float[Tensor, "*batch heads height width"]
    maxima: Float[Tensor, "*batch heads height width"]
    by_row: RowSums | None
    by_key: Received | None


@torch.no_grad()
def piece_of(sight: Sight, rows: slice, columns: slice, cell: tuple[int, int], stats: Sequence[str] = ()) -> Piece:
    """A rectangle in bins of `cell`, computed from q and k; with names of row statistics also what `Tracks` adds up.

    >>> import sightline as sl
    >>> sight = sl.look(torch.eye(4)[None], torch.eye(4)[None], mask=sl.causal(), scale=0.0)
    >>> piece_of(sight, slice(0, 2), slice(0, 4), (2, 2)).sums
    tensor([[[2., 0.]]])
    """
    call = sight._readable("a piece of the map")
    vertical, horizontal = axis(rows, None, cell[0]), axis(columns, None, cell[1])
    sums, maxima = (Pixels(call, vertical, horizontal, largest=largest) for largest in (False, True))
    by_row, by_key = (RowSums(call, stats), Received(call, None)) if stats else (None, None)
    parts: list[Accumulator] = [part for part in (sums, maxima, by_row, by_key) if part is not None]
    walk(sight._levels, parts, rows, columns, align=cell)
    return Piece(rows, columns, sums.grid, maxima.grid, by_row, by_key)


class Tracks:
    """Row statistics and what each key received, out of pieces that cover the map, in double precision.

    >>> import sightline as sl
    >>> sight = sl.look(torch.randn(2, 5, 8), torch.randn(2, 6, 8), mask=sl.causal())
    >>> tracks = Tracks(sight, ["entropy"])
    >>> for columns in (slice(0, 4), slice(4, 6)):
    ...     tracks.add(piece_of(sight, slice(0, 5), columns, (1, 1), ["entropy"]))
    >>> (tracks.rows()["entropy"] - sight.entropy).abs().max() < 1e-5
    tensor(True)
    """

    def __init__(self, sight: Sight, stats: Sequence[str]) -> None:
        call, s = sight.call, sight.call.sizes
        self._rows = RowSums(call, stats, dtype=torch.float64)
        self.received = torch.zeros(*s.batch, s.heads, s.keys, dtype=torch.float64, device=call.device)

    def add(self, piece: Piece) -> None:
        """Add what a piece knows of its rows and keys."""
        if piece.by_row is not None and piece.by_key is not None:
            self._rows.join(piece.by_row, piece.rows)
            self.received[..., piece.columns] += piece.by_key.total[..., piece.columns]

    def rows(self) -> dict[str, Float[Tensor, "*batch heads queries"]]:
        """The statistics of all rows, once every piece was added."""
        return self._rows.result()


@torch.no_grad()
def rows_at(
    sight: Sight, queries: Int[Tensor, " rows"], columns: slice, visible: Bool[Tensor, "rows columns"] | None
) -> Float[Tensor, "*batch heads rows columns"]:
    """The weights of queries that need not lie side by side, of a call without a bias.

    `visible` says which of their cells are not hidden; None: all. The weights come from the number of each row as it
    is: where that is large, `tile` is more exact.
    """
    call = sight._readable("rows of the map")
    assert call.bias is None
    dtype, groups = call.compute_dtype, call.sizes.groups
    k = call.k[..., columns, :].to(dtype)
    scores = (call.q[..., queries, :].to(dtype) * call.scale) @ (
        k if groups == 1 else k.repeat_interleave(groups, -3)
    ).mT
    if call.softcap is not None:
        scores = (scores / call.softcap).tanh_() * call.softcap
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    number = sight.row[..., queries, None]
    if not call.normalizer.is_softmax:
        return call.normalizer.weights(scores, number, visible)
    taken = sight._levels.taken
    level = level_of(number) if taken is None else level_of(number) + taken[..., queries, None]
    return scores.sub_(level).exp_()


def visible_in(sight: Sight, rows: slice, columns: slice, cell: tuple[int, int]) -> Int[Tensor, "*any height width"]:
    """How many cells of each bin may be attended to, broadcastable to `[*batch, heads, height, width]`."""
    # Without q the call does not know its device; counting needs only the mask.
    call = sight.call if sight.has_qk else sight.call.replace(q=sight.row)
    return visible_cells(call, axis(rows, None, cell[0]), axis(columns, None, cell[1]))
