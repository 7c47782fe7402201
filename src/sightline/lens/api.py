"""`sl.observe` and `sl.look`: attention with an account of it, and the account alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sightline.backends.call import make_call
from sightline.lens.readings import Extra, check_grad, check_known, extra_of
from sightline.lens.requests import of_what, parse
from sightline.lens.rows import output_and_rows, rows_only
from sightline.lens.sight import Sight
from sightline.lens.unchanged import that_counts

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.backends.call import BiasLike, Call, MaskLike
    from sightline.lens.requests import Request


def observe(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    stats: Any = (),
    grad: Float[Tensor, "*batch heads queries value_dim"] | None = None,
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
    shows the weights before dropout, and carries no gradient. With `grad`, the gradient of some number y by the output,
    every cell has an influence on y too: `sight.top(8, of="influence")`.

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
    flat = q.dim() == 2
    grad = check_grad(grad, call, call.v, flat)
    _check_requests(requests, call, call.v, grad)
    out, row = output_and_rows(call, backend)
    sight = Sight(_detached(call), row, flat, extra_of(call, call.v, grad, out))
    sight.prepare(*requests)
    return out[0] if flat else out, sight


def look(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"] | None = None,
    *,
    stats: Any = (),
    grad: Float[Tensor, "*batch heads queries value_dim"] | None = None,
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    normalizer: str = "softmax",
    backend: str = "auto",
) -> Sight:
    """The sight of q and k alone: what they would attend to.

    With v there are also readings of what was carried (`of="norms"`), and with v and `grad`, the gradient of some
    number y by the output, of what mattered for y (`of="influence"`, `of="pull"`).

    >>> import sightline as sl
    >>> sl.look(torch.randn(5, 8), torch.randn(7, 8)).shape
    (5, 7)
    """
    requests = parse(stats)
    call = make_call(
        q,
        k,
        k if v is None else v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        normalizer=normalizer,
    )
    values, flat = None if v is None else call.v, q.dim() == 2
    grad = check_grad(grad, call, values, flat)
    _check_requests(requests, call, values, grad)
    extra = extra_of(call, values, grad)
    call = _detached(call)
    return Sight(call, rows_only(call, backend), flat, extra).prepare(*requests)


def _check_requests(requests: list[Request], call: Call, v: Tensor | None, grad: Tensor | None) -> None:
    """Refuse readings that cannot be made before anything is computed."""
    for of in {of_what(request) for request in requests} - {"weights"}:
        check_known(of, call, Extra(v=v, grad=grad))


def _detached(call: Call) -> Call:
    bias = call.bias.detach() if isinstance(call.bias, torch.Tensor) else call.bias
    sinks = None if call.sinks is None else call.sinks.detach()
    q, k = call.q.detach(), call.k.detach()
    return that_counts(call.replace(q=q, k=k, v=k, bias=bias, sinks=sinks, dropout=0.0))
