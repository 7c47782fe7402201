"""Tiles of the attention map: which to visit, and the scores of one of them.

Shared by the streaming backend and by the lens: both walk over the map tile by tile and never hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sightline.masks import EMPTY, FULL, edges, spans

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call
    from sightline.masks import Mask
    from sightline.shapes import Sizes


class Columns(NamedTuple):
    """Some columns of a band of rows; `mixed` if some of its cells may be hidden."""

    span: slice
    mixed: bool


def visit(sizes: Sizes, mask: Mask | None, height: int, width: int) -> Iterator[tuple[slice, list[Columns]]]:
    """Bands of rows, each with the tiles of it that are not empty."""
    row_edges, column_edges = edges(sizes.queries, height), edges(sizes.keys, width)
    columns = spans(column_edges)
    everything = [Columns(span, False) for span in columns]
    kinds = None if mask is None else mask.kinds(row_edges, column_edges, sizes.queries, sizes.keys).tolist()
    for i, rows in enumerate(spans(row_edges)):
        if kinds is None:
            yield rows, everything
        else:
            yield rows, [Columns(s, kind != FULL) for s, kind in zip(columns, kinds[i], strict=True) if kind != EMPTY]


class Tile(NamedTuple):
    """The scores of one tile, -inf where hidden; `visible` is None if nothing is; `capped` are they before the bias."""

    scores: Float[Tensor, "*batch heads rows columns"]
    visible: Tensor | None
    capped: Float[Tensor, "*batch heads rows columns"] | None


def fold(x: Float[Tensor, "*batch heads rows dim"], sizes: Sizes) -> Float[Tensor, "*batch kv_heads grouped_rows dim"]:
    """The rows of all query heads that share a key head, one below the other."""
    if sizes.groups == 1:
        return x
    return x.reshape(*x.shape[:-3], sizes.kv_heads, sizes.groups * x.shape[-2], x.shape[-1])


def unfold(
    x: Float[Tensor, "*batch kv_heads grouped_rows any"], sizes: Sizes
) -> Float[Tensor, "*batch heads rows any"]:
    """The inverse of `fold`."""
    if sizes.groups == 1:
        return x
    return x.reshape(*x.shape[:-3], sizes.heads, x.shape[-2] // sizes.groups, x.shape[-1])


def scaled_rows(call: Call, rows: slice) -> Tensor:
    """A band of queries in compute precision, times the scale, folded for grouped heads."""
    return fold(call.q[..., rows, :], call.sizes).to(call.compute_dtype) * call.scale


def score_tile(call: Call, q_rows: Tensor, rows: slice, columns: Columns) -> Tile:
    """scale * q.k, then the soft-cap, then the bias, then the mask, for one tile.

    The product is made in the precision of `q_rows`, all else in that of the call.
    """
    sizes, span = call.sizes, columns.span
    scores = unfold(q_rows @ call.k[..., span, :].to(q_rows.dtype).mT, sizes).to(call.compute_dtype)
    capped = None
    if call.softcap is not None:
        scores = capped = (scores / call.softcap).tanh() * call.softcap
    if call.bias is not None:
        scores = scores + bias_tile(call, rows, span)
    visible = None
    if columns.mixed:
        assert call.mask is not None
        visible = call.mask.tile(rows, span, sizes.queries, sizes.keys, call.device)
        scores = scores.masked_fill(~visible, -torch.inf)
    return Tile(scores, visible, capped)


def bias_tile(call: Call, rows: slice, columns: slice) -> Tensor:
    """A tile of the bias, broadcastable to `[*batch, heads, rows, columns]`."""
    bias, sizes = call.bias, call.sizes
    if not isinstance(bias, Tensor):
        assert bias is not None
        return bias.tile(rows, columns, sizes.queries, sizes.keys, call.device, call.compute_dtype)
    return bias[bias_index(bias, rows, columns)].to(call.compute_dtype)


def bias_index(bias: Tensor, rows: slice, columns: slice) -> tuple:
    """Where a tile lies in a dense bias whose axes may have size 1."""
    if bias.dim() == 0:
        return (...,)
    last = columns if bias.shape[-1] > 1 else slice(None)
    if bias.dim() == 1:
        return (..., last)
    return (..., rows if bias.shape[-2] > 1 else slice(None), last)


def row_numbers(call: Call) -> Float[Tensor, "*any queries"]:
    """How many keys each row may see, in compute precision: what the normalisers other than softmax divide by."""
    sizes = call.sizes
    if call.mask is None:
        return torch.full((sizes.queries,), float(sizes.keys), dtype=call.compute_dtype, device=call.device)
    return call.mask.visible(sizes.queries, sizes.keys, call.device).to(call.compute_dtype)
