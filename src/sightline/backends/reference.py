"""The definition of attention, twice: one query at a time, and as matrix products.

Both are for reading and for testing: they hold the whole map, run in any precision up to float64, and every
backend must give what they give. Scores and sums are held in float32 at least. The arguments mean what they mean in
`sl.attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sightline.backends.nonfinite import finite, unreadable
from sightline.masks import as_mask
from sightline.normalizers import normalize
from sightline.shapes import default_scale, sizes_of

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.backends.call import BiasLike, MaskLike


def vector_view(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Float[Tensor, "queries value_dim"]:
    """Plain attention of one head, one query at a time: scores, normalisation, weighted sum of values (S3.1).

    >>> q, k, v = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6, 3)
    >>> vector_view(q, k, v).shape
    torch.Size([4, 3])
    """
    scale = default_scale(q.shape[-1]) if scale is None else scale
    dtype, (q, k, v) = q.dtype, (_wide(t) for t in (q, k, v))
    rows = []
    for query in q:
        scores = [scale * torch.dot(query, key) for key in k]
        largest = max(scores)
        shares = [torch.exp(score - largest) for score in scores]
        total = sum(shares)
        rows.append(sum(share / total * value for share, value in zip(shares, v, strict=True)))
    return torch.stack(rows).to(dtype)


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
    if q.dim() == 2:
        options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        return matrix_view(q[None], k[None], v[None], normalizer=normalizer, **options)[0]  # type: ignore[arg-type]
    visible = _visible(mask, q, k)
    strange = mask is not None and not (unreadable(q) or finite(q, k, v))
    seen = visible if strange else None
    weight = _weights(_scores(q, k, bias, scale, softcap, seen), visible, sinks, normalizer)
    return _product(weight, _wide(_per_query_head(v, q)), seen).to(q.dtype)


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
    score = scores(q, k, bias=bias, scale=scale, softcap=softcap)
    return _weights(score, _visible(mask, q, k), sinks, normalizer).to(q.dtype)


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
    return _scores(q, k, bias, scale, softcap, None)


def _scores(
    q: Tensor, k: Tensor, bias: BiasLike, scale: float | None, softcap: float | None, seen: Tensor | None
) -> Tensor:
    sizes_of(q, k, k)
    scale = default_scale(q.shape[-1]) if scale is None else scale
    q, k = _wide(q), _wide(_per_query_head(k, q))
    if seen is None:
        score = scale * (q @ k.mT)
    else:  # every row reads the keys it may see and no others
        score = scale * (_each(k, seen) @ q[..., None])[..., 0].masked_fill(~seen, 0.0)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        if not isinstance(bias, torch.Tensor):
            queries, keys = q.shape[-2], k.shape[-2]
            bias = bias.tile(slice(0, queries), slice(0, keys), queries, keys, q.device, score.dtype)
        score = score + bias.to(score.dtype)
    return score


def _weights(score: Tensor, visible: Tensor, sinks: Tensor | None, normalizer: str) -> Tensor:
    sink = None if sinks is None else sinks[..., None].expand(score.shape[:-1])
    return normalize(score, visible.expand_as(score), normalizer, sink)


def _visible(mask: MaskLike, q: Tensor, k: Tensor) -> Tensor:
    """Which query may see which key, written out."""
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is None:
        return torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    return as_mask(mask).to_dense(queries, keys, q.device)


def _product(weight: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """The map times the values. Where not all is finite, every row reads the values it may see and no others."""
    return weight @ v if seen is None else (weight[..., None, :] @ _each(v, seen))[..., 0, :]


def _each(x: Tensor, seen: Tensor) -> Float[Tensor, "*batch heads queries keys any"]:
    """Keys or values for each query by itself, 0 where they are hidden from it: 0 * NaN would be NaN."""
    return x[..., None, :, :].masked_fill(~seen[..., None], 0.0)


def _wide(x: Tensor) -> Tensor:
    """In float32 at least: in float16 a score overflows at 65,504."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _per_query_head(x: Tensor, q: Tensor) -> Tensor:
    """Key heads repeated so that query head `h` finds its key head at `h`."""
    return x if x.dim() < 3 else x.repeat_interleave(q.shape[-3] // max(x.shape[-3], 1), -3)
