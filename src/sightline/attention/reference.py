"""The definition of attention, twice: one query at a time, and as matrix products.

Both are for reading and for testing: they hold the whole map, run in any precision up to float64, and every
backend must give what they give. The arguments mean what they mean in `sl.attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sightline.masks import as_mask
from sightline.normalizers import normalize
from sightline.shapes import default_scale, sizes_of

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.attention.call import BiasLike, MaskLike


def vector_view(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Float[Tensor, "queries value_dim"]:
    """Plain attention of one head, one query at a time: scores, normalisation, weighted sum of values (S3.1).

    >>> q, k, v = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6, 3)
    >>> vector_view(q, k, v).shape
    torch.Size([4, 3])
    """
    scale = default_scale(q.shape[-1]) if scale is None else scale
    rows = []
    for query in q:
        scores = [scale * torch.dot(query, key) for key in k]
        largest = max(scores)
        shares = [torch.exp(score - largest) for score in scores]
        total = sum(shares)
        rows.append(sum(share / total * value for share, value in zip(shares, v, strict=True)))
    return torch.stack(rows)


def matrix_view(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    normalizer: str = "softmax",
) -> Float[Tensor, "*batch heads queries value_dim"]:
    """Attention as the product of the map and the values (S1.5, S3.2).

    >>> q, k, v = torch.randn(2, 4, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 3)
    >>> matrix_view(q, k, v).shape
    torch.Size([2, 4, 3])
    """
    weight = weights(q, k, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, normalizer=normalizer)
    return weight @ _per_query_head(v, q)


def weights(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    *,
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    normalizer: str = "softmax",
) -> Float[Tensor, "*batch heads queries keys"]:
    """The whole attention map: what every other part of Sightline never writes down.

    >>> weights(torch.randn(4, 8), torch.randn(6, 8)).sum(-1).round()
    tensor([1., 1., 1., 1.])
    """
    if q.dim() == 2:
        options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        return weights(q[None], k[None], normalizer=normalizer, **options)[0]  # type: ignore[arg-type]
    queries, keys = q.shape[-2], k.shape[-2]
    score = scores(q, k, bias=bias, scale=scale, softcap=softcap)
    visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if mask is not None:
        visible = as_mask(mask).to_dense(queries, keys, q.device)
    sink = None if sinks is None else sinks[..., None].expand(score.shape[:-1])
    return normalize(score, visible.expand_as(score), normalizer, sink)


def scores(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    *,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*batch heads queries keys"]:
    """score = scale * q.k, then the soft cap, then the bias.

    >>> scores(torch.ones(1, 4), torch.ones(2, 4))
    tensor([[2., 2.]])
    """
    sizes_of(q, k, k)
    scale = default_scale(q.shape[-1]) if scale is None else scale
    score = scale * (q @ _per_query_head(k, q).mT)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        if not isinstance(bias, torch.Tensor):
            queries, keys = q.shape[-2], k.shape[-2]
            bias = bias.tile(slice(0, queries), slice(0, keys), queries, keys, q.device, score.dtype)
        score = score + bias.to(score.dtype)
    return score


def _per_query_head(x: Tensor, q: Tensor) -> Tensor:
    """Key heads repeated so that query head `h` finds its key head at `h`."""
    return x if x.dim() < 3 else x.repeat_interleave(q.shape[-3] // max(x.shape[-3], 1), -3)
