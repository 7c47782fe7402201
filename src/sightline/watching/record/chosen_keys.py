"""The weights of one chosen key per query, without the map: previous token, first token, the token itself.

Each needs one product q.k per query and the row's log-sum-exp: linear in the context, cheap at any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.levels import level_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sightline.backends.call import Call
    from sightline.lens.levels import Levels

# Bytes of queries in compute precision that are held at a time.
_BYTES = 64 << 20


@torch.no_grad()
def weights_at(levels: Levels, keys: Int[Tensor, "batch queries"] | int) -> Float[Tensor, "batch heads queries"]:
    """The weight of one key for every query; 0 where the key is negative, beyond the last, or hidden.

    `keys` are the keys themselves (of size 1 if all queries look at the same), or a number n: query i then looks at
    key i + n.

    >>> from sightline.lens import look
    >>> sight = look(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    >>> found = weights_at(sight._levels, 0)
    >>> torch.allclose(found, sight.tile(slice(0, 5), slice(0, 5)).diagonal(dim1=-2, dim2=-1))
    True
    """
    call, s = levels.call, levels.call.sizes
    batch = s.batch[0]
    out = torch.zeros(batch, s.heads, s.queries, dtype=call.compute_dtype, device=call.device)
    if not s.keys or not s.queries:
        return out
    step = max(1, _BYTES // max(1, batch * s.heads * s.dim * out.element_size()))
    whole = _by_kernel(call, keys) if gpu_plan.for_kernels(call) else None
    if whole is not None:
        step = s.queries
    rows = slice(0, s.queries)
    if isinstance(keys, int):
        # Only queries whose key is there.
        rows = slice(min(max(-keys, 0), s.queries), max(min(s.queries, s.keys - keys), 0))
    else:
        keys = keys.to(call.device).expand(batch, keys.shape[-1])
    rule = None if call.mask is None else call.mask.mod(s.batch, s.queries, s.keys, call.device)
    b = torch.arange(batch, device=call.device).view(-1, 1, 1)
    h = torch.arange(s.heads, device=call.device).view(1, -1, 1)
    with torch.autocast(call.device.type, enabled=False):
        for start in range(rows.start, rows.stop, step):
            part = slice(start, min(start + step, rows.stop))
            i = torch.arange(part.start, part.stop, device=call.device).view(1, 1, -1)
            seen: Tensor | None = None
            if isinstance(keys, int):
                j = i + keys
            else:
                at = keys[:, None, part if keys.shape[-1] > 1 else slice(None)]
                seen = (at >= 0) & (at < s.keys)
                j = at.clamp(0, s.keys - 1)
            scores = _scores(call, part, j if isinstance(keys, Tensor) else keys) if whole is None else whole[..., part]
            if call.softcap is not None:
                scores = (scores / call.softcap).tanh() * call.softcap
            if call.bias is not None:
                scores = scores + _bias(call, b, h, i, j)
            if rule is not None:
                visible = rule(b, h, i, j)
                seen = visible if seen is None else seen & visible
            if seen is not None:
                seen = seen.expand_as(scores)
                scores = scores.masked_fill(~seen, -torch.inf)
                seen = seen[..., None]
            out[..., part] = _weights(levels, scores, part, seen)
    return out


def _weights(levels: Levels, scores: Tensor, rows: slice, seen: Tensor | None) -> Tensor:
    """The weights of one key for some queries, from their scores; `seen` `[batch, heads, rows, 1]`."""
    call, number = levels.call, levels.row[..., rows]
    if not call.normalizer.is_softmax:
        return call.normalizer.weights(scores[..., None], number[..., None], seen)[..., 0]
    log = scores - level_of(number)
    if gpu_plan.takes(levels):
        log -= gpu_plan.rest(levels)[..., rows]
    elif levels.any(rows):
        log -= levels.rest(rows)
    if levels.taken is not None:
        log -= levels.taken[..., rows]
    return log.exp()


def _by_kernel(call: Call, keys: Tensor | int) -> Tensor:
    from sightline.kernels.chosen_keys import scores_at

    return scores_at(call.q, call.k, keys, call.scale)


def _scores(call: Call, rows: slice, at: Tensor | int) -> Tensor:
    """scale * q.k of one key for every query of a band, `[batch, heads, rows]`."""
    s, dtype = call.sizes, call.compute_dtype
    if isinstance(at, int):
        keys = call.k[:, :, rows.start + at : rows.stop + at]
    else:
        keys = call.k.gather(2, at[:, :, :, None].expand(-1, s.kv_heads, -1, s.dim))
    q, keys = call.q[:, :, rows], keys.to(dtype)
    if keys.shape[2] == 1:
        # One key for all queries: a product of a matrix and a vector.
        grouped = q.reshape(*q.shape[:1], s.kv_heads, -1, s.dim).to(dtype)
        return (grouped @ keys.mT).view(q.shape[:-1]) * call.scale
    if s.groups > 1:
        q = q.unflatten(1, (s.kv_heads, s.groups))
        return (q * keys[:, :, None]).sum(-1).flatten(1, 2) * call.scale
    return (q * keys).sum(-1) * call.scale


def _bias(call: Call, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    bias, s = call.bias, call.sizes
    if isinstance(bias, Tensor):
        full = bias.expand(*s.batch, s.heads, s.queries, s.keys)
        return full[b, h, i, j].to(call.compute_dtype)
    assert bias is not None
    return bias.mod(s.batch, s.queries, s.keys, call.device, call.compute_dtype)(b, h, i, j)


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
