"""One member of the batch, or some of the heads, of a call whose rows are known: a call of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.portable import one_member, some_heads
from sightline.shapes import as_whole

if TYPE_CHECKING:
    from sightline.backends.call import Call


def select(
    call: Call, row: Tensor, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None
) -> tuple[Call, Tensor]:
    """The call of one member of the batch, without batch axes, and of some heads, each with a key head of its own.

    None: all of them. With it come the numbers of its rows.
    """
    s = call.sizes
    key_heads = None if heads is None else [head // s.groups for head in heads]
    k = None if call.k is None else one_member(some_heads(call.k, key_heads, 2), member, 3)
    sinks, bias = call.sinks, call.bias
    if sinks is not None:
        sinks = one_member(some_heads(sinks.expand(*sinks.shape[:-1], s.heads), heads, 0), member, 1)
    if isinstance(bias, Tensor):
        bias = one_member(some_heads(bias, heads, 2), member, 3)
    elif bias is not None:
        bias = bias.select(member, heads)
    if heads is not None:
        s = s._replace(heads=len(heads), kv_heads=len(heads))
    lost = None if call.lost is None else one_member(some_heads(call.lost, heads, 1), member, 2)
    part = call.replace(
        q=None if call.q is None else one_member(some_heads(call.q, heads, 2), member, 3),
        k=k,
        v=k,
        sizes=s if member is None else s._replace(batch=()),
        mask=None if call.mask is None else call.mask.select(member, heads),
        bias=bias,
        sinks=sinks,
        lost=lost,
    )
    return part, one_member(some_heads(row, heads, 1), member, 2)


def select_kept(
    kept: dict[Any, Any], axes: int, member: tuple[int, ...] | None, heads: Sequence[int] | None
) -> dict[Any, Any]:
    """What was computed, `[*batch, heads, …]` with so many batch axes, for one member and some heads."""

    def one(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(one, x))
        rest = x.dim() - axes
        return one_member(some_heads(x, heads, rest - 1), member, rest)

    return {request: one(value) for request, value in kept.items()}


def check_selection(batch: object, heads: object, shape: tuple[int, ...], count: int) -> tuple[Any, Any]:
    """The place of a member in a batch of this shape, and the numbers of heads; raises if there are no such ones."""
    member = None
    if batch is not None:
        flat = _inside("batch", batch, math.prod(shape))
        places: list[int] = []
        for size in reversed(shape):
            flat, place = divmod(flat, size)
            places.append(place)
        member = tuple(reversed(places))
    if heads is None:
        return member, None
    if not isinstance(heads, Sequence) or isinstance(heads, str) or not len(heads):
        raise InputTypeError(
            "heads is a list of numbers", expected="such as [0, 3]", got=repr(heads), hint="heads=[0] for one"
        )
    return member, [_inside("heads", head, count) for head in heads]


def _inside(what: str, value: object, count: int) -> int:
    number = as_whole(value)
    if number is None:
        raise InputTypeError(
            f"{what} must be whole numbers", expected="int", got=type(value).__name__, hint=f"from 0 to {count - 1}"
        )
    if not 0 <= number < count:
        raise InputError(
            f"there is no such place in {what}", expected=f"0 to {count - 1}", got=number, hint="they count from 0"
        )
    return number
