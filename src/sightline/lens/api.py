"""`sl.observe` and `sl.look`: attention with an account of it, and the account alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sightline.backends.call import make_call
from sightline.lens.requests import parse
from sightline.lens.rows import output_and_rows, rows_only
from sightline.lens.sight import Sight
from sightline.lens.unchanged import that_counts

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.backends.call import BiasLike, Call, MaskLike


def observe(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    stats: Any = (),
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    backend: str = "auto",
) -> tuple[Float[Tensor, "*batch heads queries value_dim"], Sight]:
    """The output of `sl.attention` for the same arguments, and the sight of it.

    `stats` are computed in the same go, in one pass; anything else is computed when first asked for. The sight
    shows the weights before dropout, and carries no gradient.

    >>> import sightline as sl
    >>> q = torch.randn(1, 8, 100, 64)
    >>> out, sight = sl.observe(q, q, q, mask=sl.causal(), stats=("entropy", "received", sl.Top(8)))
    >>> out.shape, sight.entropy.shape
    (torch.Size([1, 8, 100, 64]), torch.Size([1, 8, 100]))
    """
    requests = parse(stats)
    call = make_call(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        normalizer=normalizer,
        dropout=dropout,
    )
    out, row = output_and_rows(call, backend)
    sight = Sight(_detached(call), row, flat=q.dim() == 2)
    sight.prepare(*requests)
    return out[0] if q.dim() == 2 else out, sight


def look(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    *,
    stats: Any = (),
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    normalizer: str = "softmax",
    backend: str = "auto",
) -> Sight:
    """The sight of q and k alone: what they would attend to.

    >>> import sightline as sl
    >>> sl.look(torch.randn(5, 8), torch.randn(7, 8)).shape
    (5, 7)
    """
    requests = parse(stats)
    call = make_call(q, k, k, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, normalizer=normalizer)
    call = _detached(call)
    sight = Sight(call, rows_only(call, backend), flat=q.dim() == 2)
    return sight.prepare(*requests)


def _detached(call: Call) -> Call:
    bias = call.bias.detach() if isinstance(call.bias, torch.Tensor) else call.bias
    sinks = None if call.sinks is None else call.sinks.detach()
    q, k = call.q.detach(), call.k.detach()
    return that_counts(call.replace(q=q, k=k, v=k, bias=bias, sinks=sinks, dropout=0.0))
