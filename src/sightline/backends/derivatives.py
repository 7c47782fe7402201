"""Which derivatives there are: the first one, backwards. Any other is refused in words; the definition has them all."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from sightline.errors import SightlineError

_HINT = 'backend="reference", which torch differentiates in any way, and which holds the whole map'


def once(out: Tensor) -> Tensor:
    """The output of one of torch's fused kernels, which refuses a gradient of its gradient in our words."""
    if torch.compiler.is_compiling():
        return out  # a graph cannot say it
    node = out.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_last)
    return out


def _last(gradients: tuple, _: tuple) -> tuple | None:
    # Only where a graph of the backward pass is made can there be a second one.
    if not torch.is_grad_enabled():
        return None
    return tuple(g if g is None else _Last.apply(g) for g in gradients)


class _Last(torch.autograd.Function):
    """A gradient as it is, without one of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        no_second("torch's fused kernel")

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        no_forward("torch's fused kernel")


def no_second(who: str) -> NoReturn:
    """Refuse a gradient of a gradient."""
    raise SightlineError(
        f"{who} has no second derivative", expected="one backward pass", got="a gradient of a gradient", hint=_HINT
    )


def no_forward(who: str) -> NoReturn:
    """Refuse a derivative in forward mode."""
    raise SightlineError(
        f"{who} has no derivative in forward mode",
        expected="a backward pass: torch.func.grad, vjp or jacrev",
        got="torch.func.jvp, jacfwd or hessian, or a dual tensor",
        hint=_HINT,
    )


def beyond_torchs_kernels(*tensors: Tensor | None) -> bool:
    """Whether a derivative may be asked for that torch's fused kernels refuse in torch's words."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        kinds = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
        transforms = torch._C._functorch.TransformType
        return transforms.Jvp in kinds or kinds.count(transforms.Grad) > 1
    if forward_ad._current_level < 0:
        return False
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)
