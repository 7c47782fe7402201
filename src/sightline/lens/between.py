"""Sums between named parts of a text: which positions belong to which span, and the table of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.lens import geometry
from sightline.lens.job import Between
from sightline.lens.readings import SIGNED, check_of
from sightline.portable import broadcasts
from sightline.shapes import as_whole

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from sightline.lens.asked import Answers

REST, SINK, ALL = "rest", "sink", "all"
_REDUCTIONS = (None, "mean", "sum")


class Spans(NamedTuple):
    """What spans of queries have of spans of keys: a table for every head.

    The last columns are `"rest"`, the keys in no span, and with sinks `"sink"`.

    >>> import sightline as sl
    >>> found = sl.look(torch.zeros(4, 8), torch.zeros(4, 8)).spans({"question": slice(0, 3)})
    >>> found.queries, found.keys, found.table
    (('all',), ('question', 'rest'), tensor([[0.7500, 0.2500]]))
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    table: Float[Tensor, "*batch heads queries keys"]


def spans_of(sight: Answers, keys: Any, queries: Any, of: str, reduce: str | None) -> Spans:
    """The table of a sight between spans."""
    check_of(of)
    if reduce not in _REDUCTIONS:
        raise InputError("unknown reduction", expected='"mean", "sum" or None', got=repr(reduce), hint='reduce="sum"')
    s, device = sight.call.sizes, sight.device
    if queries is None:
        queries = {ALL: slice(0, s.queries)}
    for_keys = _members("keys", keys, s.keys, s.batch, device)
    for_queries = _members("queries", queries, s.queries, s.batch, device)
    for name in (REST, SINK):
        if name in for_keys:
            raise InputError(
                f"the name {name!r} is taken", expected="another name", got=repr(name), hint=f'"{name} of mine"'
            )
    inside = torch.stack([*for_keys.values()], -1)
    columns = torch.cat([inside, ~inside.any(-1, keepdim=True)], -1)  # [*batch, keys, spans]
    rows = torch.stack([*for_queries.values()], -2)  # [*batch, spans, queries]
    request = Between(columns.unsqueeze(-3), rows.unsqueeze(-3), of)
    table = sight.compute([request])[request]
    names = (*for_keys, REST)
    chosen, sees = rows.unsqueeze(-3).double(), sight._sees().double()
    if sight.call.sinks is not None:
        table = torch.cat([table, _sink(sight, of, chosen, None if reduce == "sum" else sees)], -1)
        names = (*names, SINK)
    if reduce == "mean" or (reduce is None and of not in SIGNED):
        table = table / (chosen @ sees[..., None]).clamp_min(1)
    return Spans(tuple(for_queries), names, sight._shaped(table.to(sight.row.dtype)))


def _sink(sight: Answers, of: str, chosen: Tensor, sees: Tensor | None) -> Float[Tensor, "*batch heads spans 1"]:
    """What the sink has: it takes weight and carries nothing, and a higher one would take from what is carried."""
    share = sight._sink().double()
    if of == "pull":
        share = -share * torch.where(sight._sees(), sight._along(), 0.0)
    elif of != "weights":
        share = torch.zeros_like(share)
    return chosen @ (share if sees is None else share * sees)[..., None]


def _members(
    what: str, spans: Any, length: int, batch: tuple[int, ...], device: torch.device
) -> dict[str, Bool[Tensor, "*batch length"]]:
    """Which positions each span has; no position in two."""
    if not isinstance(spans, Mapping) or not spans or not all(isinstance(name, str) and name for name in spans):
        raise InputTypeError(
            f"{what} are spans by name",
            expected="{name: slice or indices}, at least one",
            got=type(spans).__name__ if not isinstance(spans, Mapping) else repr(list(spans)),
            hint=f'{what}={{"question": slice(0, 40)}}',
        )
    found = {name: _positions(f"{what}[{name!r}]", span, length, batch, device) for name, span in spans.items()}
    taken = torch.full((length,), -1, device=device)
    for n, (name, inside) in enumerate(found.items()):
        twice = inside & (taken >= 0)
        if bool(twice.any()):
            place = tuple(twice.nonzero()[0].tolist())
            other = list(found)[int(taken.expand(twice.shape)[place])]
            raise InputError(
                f"two spans of {what} overlap",
                expected="every position in one span at most",
                got=f"{place[-1]} in {other!r} and in {name!r}",
                hint="two calls, one for each",
            )
        taken = torch.where(inside, n, taken)
    # All with the axes of those that differ from example to example.
    shape = torch.broadcast_shapes(*(x.shape for x in found.values()))
    return {name: x.expand(shape) for name, x in found.items()}


def _positions(what: str, span: Any, length: int, batch: tuple[int, ...], device: torch.device) -> Tensor:
    inside = torch.zeros(length, dtype=torch.bool, device=device)
    if isinstance(span, slice) or as_whole(span) is not None:
        inside[geometry.resolve(what, span, length)] = True
        return inside
    try:
        given = torch.as_tensor(span if isinstance(span, Tensor) else list(span), device=device)
    except (TypeError, ValueError, RuntimeError):
        given = None
    if given is not None and given.dtype == torch.bool:
        if given.dim() and given.shape[-1] == length and broadcasts(given.shape, (*batch, length)):
            return given if given.dim() == 1 else given.expand(*batch, length)
    elif given is not None and given.dim() == 1 and (not given.numel() or not given.is_floating_point()):
        places = given.long()
        if not bool(((places < -length) | (places >= length)).any()):
            inside[places % length if length else places] = True
            return inside
    raise InputError(
        f"{what} is not a part of the map",
        expected=f"a slice, or positions from {-length} to {length - 1}; one boolean for each, also for each example",
        got=repr(span) if given is None else f"{given.dtype} {tuple(given.shape)}",
        hint="slice(0, 40), [3, 5, 8], or a boolean tensor [*batch, length]",
    )
