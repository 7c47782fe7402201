"""A call that edits change (`sl.edit`): what the model is given, and what the watches are told.

Whoever edits is among the watches of its thread (`active.watches`), with `edits = True`: the handlers understand a call
once, run it on the model's own kernel, and hand it over here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.backends.call import make_call
from sightline.portable import one_batch_axis
from sightline.watching.intercept import active
from sightline.watching.intercept.heads import Heads
from sightline.watching.intercept.looked import Attended, Edited, Looked

if TYPE_CHECKING:
    from sightline.backends.call import BiasLike, Call
    from sightline.masks import Mask
    from sightline.watching.intercept.function_mode import Audience
    from sightline.watching.intercept.heads import Heads


def change(
    who: Audience,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    mask: Mask | None,
    bias: BiasLike,
    scale: float | None,
    first_query: int,
    first_key: int = 0,
    weights: Tensor | None = None,
    row: Tensor | None = None,
    sees: Tensor | None = None,
    fresh: bool = False,
    by_hand: str = "",
    run: Callable[[], Tensor] | None = None,
    **more: Any,
) -> Edited:
    """What a call becomes, in the axes of `out`. Nobody is told of it yet.

    Without `out` the call has four axes, and `run` gives it to edits that leave something of it.
    """
    with active.quiet(compiled=q.is_cuda), torch.autocast(q.device.type, enabled=False):
        if out is not None and q.dtype != out.dtype:
            q, k, v = (t.to(out.dtype) for t in (q, k, v))  # as autocast has it
        if q.shape[:-3] != k.shape[:-3]:
            batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
            q, k, v = (t.expand(*batch, *t.shape[-3:]) for t in (q, k, v))
        call = in_four_axes(make_call(q, k, v, mask=mask, bias=bias, scale=scale, **more))
        s = call.sizes
        shape = (*s.batch, s.heads, s.queries, s.value_dim)
        if row is not None:
            row = row.reshape(shape[:-1])
            row = row if sees is None else row.masked_fill(~sees.expand(row.shape), -torch.inf)
        four = None if out is None else out.reshape(shape)
        found = who.edit(Attended(call, four, first_query, first_key, weights, row, who.watching, fresh, by_hand, run))
        return found if out is None else found._replace(out=found.out.reshape(out.shape))


def tell(who: Audience, found: Edited | None, first_query: int, first_key: int, heads: Heads | None) -> bool:
    """Tell the watches of a map that edits changed; False if none did, and they are to be told as always."""
    if found is None:
        return False
    if found.call is None or found.row is None:
        return not who.watching
    if heads is not None and found.values is not None:
        heads = heads._replace(v=found.values)
    who.record(Looked(found.call, found.row, first_query, first_key, heads=heads))
    return True


def in_four_axes(call: Call) -> Call:
    """The same call as [batch, heads, time, dim], whatever came."""
    s = call.sizes
    batch = (math.prod(s.batch),)
    if s.batch == batch:
        return call
    q, k, v = (t.reshape(*batch, *t.shape[-3:]) for t in (call.q, call.k, call.v))
    bias = call.bias
    if bias is not None:
        bias = one_batch_axis(bias, s.batch, 3) if isinstance(bias, Tensor) else bias.flattened(s.batch)
    mask = None if call.mask is None else call.mask.flattened(s.batch)
    return call.replace(q=q, k=k, v=v, sizes=s._replace(batch=batch), mask=mask, bias=bias)
