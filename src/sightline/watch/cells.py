"""The weights of one chosen key per query, without the map: previous token, first token, the token itself.

Each needs one product q.k per query and the row's log-sum-exp: linear in the context, cheap at any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.positions import Alibi
from sightline.watch.mods import ModBias

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sightline.attention.call import Call

# Bytes of queries in compute precision that are held at a time.
_BYTES = 64 << 20


@torch.no_grad()
def weights_at(
    call: Call, row: Float[Tensor, "batch heads queries"], keys: Int[Tensor, "batch queries"]
) -> Float[Tensor, "batch heads queries"]:
    """The weight of one key for every query; 0 where the key is negative or hidden.

    >>> from sightline.lens import look
    >>> sight = look(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    >>> found = weights_at(sight._call, sight.lse, torch.arange(5)[None])
    >>> torch.allclose(found, sight.tile(slice(0, 5), slice(0, 5)).diagonal(dim1=-2, dim2=-1))
    True
    """
    s = call.sizes
    batch = s.batch[0]
    out = torch.zeros(batch, s.heads, s.queries, dtype=call.compute_dtype, device=call.device)
    if not s.keys or not s.queries:
        return out
    keys = keys.to(call.device).expand(batch, s.queries)
    step = max(1, _BYTES // max(1, batch * s.heads * s.dim * out.element_size()))
    rule = None if call.mask is None else call.mask.mod(s.batch, s.queries, s.keys, call.device)
    b = torch.arange(batch, device=call.device).view(-1, 1, 1)
    h = torch.arange(s.heads, device=call.device).view(1, -1, 1)
    with torch.autocast(call.device.type, enabled=False):
        for start in range(0, s.queries, step):
            part = slice(start, min(start + step, s.queries))
            at = keys[:, part]
            place = at.clamp(0, s.keys - 1)
            scores = _scores(call, part, place)
            i = torch.arange(part.start, part.stop, device=call.device).view(1, 1, -1)
            j = place[:, None, :]
            if call.softcap is not None:
                scores = (scores / call.softcap).tanh() * call.softcap
            if call.bias is not None:
                scores = scores + _bias(call, b, h, i, j)
            seen = (at >= 0)[:, None, :]
            if rule is not None:
                seen = seen & rule(b, h, i, j)
            scores = scores.masked_fill(~seen, -torch.inf)
            number = row[..., part, None]
            out[..., part] = call.normalizer.weights(scores[..., None], number, seen.expand_as(scores)[..., None])[
                ..., 0
            ]
    return out


def _scores(call: Call, rows: slice, keys: Tensor) -> Tensor:
    """scale * q.k of one key for every query of a band, `[batch, heads, rows]`."""
    s, dtype = call.sizes, call.compute_dtype
    q = call.q[:, :, rows].to(dtype)
    picked = call.k.gather(2, keys[:, None, :, None].expand(-1, s.kv_heads, -1, s.dim)).to(dtype)
    if s.groups > 1:
        q = q.unflatten(1, (s.kv_heads, s.groups))
        return (q * picked[:, :, None]).sum(-1).flatten(1, 2) * call.scale
    return (q * picked).sum(-1) * call.scale


def _bias(call: Call, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    bias, s = call.bias, call.sizes
    if isinstance(bias, Tensor):
        full = bias.expand(*s.batch, s.heads, s.queries, s.keys)
        return full[b, h, i, j].to(call.compute_dtype)
    if isinstance(bias, Alibi):
        gap = (i + s.keys - s.queries - j).abs().to(call.compute_dtype)
        return -bias.slopes.to(call.device, call.compute_dtype).view(1, -1, 1) * gap
    assert isinstance(bias, ModBias)
    return bias.function(*(x.to(bias.device) for x in (b, h, i, j))).to(call.device, call.compute_dtype)


def repeats(ids: Int[Tensor, "batch keys"]) -> Int[Tensor, "batch keys"]:
    """For each position, the one after the latest earlier position with the same token; -1 if there is none.

    It is where an induction head looks: what came next the last time.

    >>> repeats(torch.tensor([[7, 8, 9, 7, 8]])).tolist()
    [[-1, -1, -1, 1, 2]]
    """
    order = ids.sort(dim=-1, stable=True).indices
    sorted_ids = ids.gather(-1, order)
    same = torch.zeros_like(ids, dtype=torch.bool)
    same[:, 1:] = sorted_ids[:, 1:] == sorted_ids[:, :-1]
    before = order.roll(1, -1)
    found = torch.where(same, before + 1, -1)
    return torch.empty_like(ids).scatter_(-1, order, found)
