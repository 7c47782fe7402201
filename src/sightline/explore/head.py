"""One head of a sight as a sight of its own, so that a tile of it costs one head and not all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.lens import Sight
from sightline.masks import Band, Mask, Prefix

if TYPE_CHECKING:
    import numpy as np

    from sightline.attention.call import Bias, Call


class PickedMask(Mask):
    """What one head of one batch member sees of a mask that may differ between them."""

    def __init__(self, mask: Mask, index: tuple[int, ...]) -> None:
        self.mask, self.index = mask, index

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return _pick(self.mask.tile(rows, columns, queries, keys, device), self.index)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return self.mask.kinds(row_edges, column_edges, queries, keys)

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        found = self.mask.intervals(queries, keys, device)
        # Intervals have no axis of heads.
        return (
            None if found is None else (_pick_to(found[0], self.index[:-1], 1), _pick_to(found[1], self.index[:-1], 1))
        )

    def __repr__(self) -> str:
        return repr(self.mask)


class PickedBias:
    """One head's part of a bias that is never written out."""

    def __init__(self, bias: Bias, index: tuple[int, ...]) -> None:
        self.bias, self.index = bias, index

    def tile(
        self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        return _pick(self.bias.tile(rows, columns, queries, keys, device, dtype), self.index)

    def to_dense(self, queries: int, keys: int) -> Tensor:
        return _pick(self.bias.to_dense(queries, keys), self.index)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        """It was checked when the sight was made."""


def one_head(sight: Sight, batch: int, head: int) -> Sight:
    """The sight of one head of one batch member, `[1, queries, keys]`; whatever was computed comes along.

    >>> import sightline as sl
    >>> q, k = torch.randn(2, 8, 5, 16), torch.randn(2, 4, 7, 16)
    >>> sight = sl.look(q, k, mask=sl.causal())
    >>> one = one_head(sight, 1, 3)
    >>> torch.equal(one.tile(slice(0, 5), slice(0, 7))[0], sight.tile(slice(0, 5), slice(0, 7))[1, 3])
    True
    """
    call, s = sight._call, sight._call.sizes
    member = _unravel(batch, s.batch)
    index = (*member, head)
    group = (*member, head // s.groups)
    part = call.replace(
        q=None if call.q is None else call.q[index][None],
        k=None if call.k is None else call.k[group][None],
        v=None if call.k is None else call.k[group][None],
        sizes=s._replace(batch=(), heads=1, kv_heads=1),
        mask=_one_mask(call, index),
        bias=_one_bias(call, index),
        sinks=None if call.sinks is None else _pick_to(call.sinks, index, 0)[None],
    )
    one = Sight(part, sight._row[index][None])
    one._kept = {request: _one_kept(value, index) for request, value in sight._kept.items()}
    return one


def _one_kept(value: Any, index: tuple[int, ...]) -> Any:
    if isinstance(value, tuple):
        return tuple(_one_kept(part, index) for part in value)
    return value[index][None]


def _one_mask(call: Call, index: tuple[int, ...]) -> Mask | None:
    # Masks of positions alone are the same for every head, and are quicker without a wrapper.
    return call.mask if call.mask is None or isinstance(call.mask, Band | Prefix) else PickedMask(call.mask, index)


def _one_bias(call: Call, index: tuple[int, ...]) -> Any:
    if call.bias is None:
        return None
    return _pick(call.bias, index) if isinstance(call.bias, Tensor) else PickedBias(call.bias, index)


def _pick(x: Tensor, index: tuple[int, ...]) -> Tensor:
    """A head's `[rows, columns]` of a tensor that broadcasts to `[*batch, heads, rows, columns]`."""
    return _pick_to(x, index, 2)


def _pick_to(x: Tensor, index: tuple[int, ...], rest: int) -> Tensor:
    """The part of a broadcastable tensor at `index`, leaving its last `rest` axes."""
    leading = max(x.dim() - rest, 0)
    places = index[len(index) - leading :]
    return x[tuple(place if size > 1 else 0 for place, size in zip(places, x.shape[:leading], strict=True))]


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    places: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        places.append(place)
    return tuple(reversed(places))
