"""An encoder layer without gradients, and with little around the arithmetic.

On a GPU a short batch takes less time than calling eleven modules and checking their inputs again. What is computed is
what the modules compute, operation by operation and to the bit; they are called themselves as soon as there is more to
them: hooks, gradients, dropout, positions, or modules of another kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from sightline.masks.changes import may_keep
from sightline.nn.feedforward import FeedForward
from sightline.nn.multihead import MultiHeadAttention

if TYPE_CHECKING:
    from sightline.backends.call import MaskLike
    from sightline.nn.layer import Layer


class Lean:
    """The lean way through one layer, and whether its modules allow it. Copies and pickles of a layer get a new one."""

    __slots__ = ("_hooks", "_kinds", "_modules", "_plain")

    def __init__(self) -> None:
        self._modules: tuple[Any, ...] = ()
        self._kinds: tuple[type, ...] = ()
        self._hooks: tuple[dict, ...] = ()
        self._plain = False

    def __reduce__(self) -> tuple[type[Lean], tuple[()]]:
        return Lean, ()

    def encode(self, layer: Layer, x: Tensor, mask: MaskLike) -> Tensor | None:
        """What the layer gives for x, or None if its modules must be asked."""
        if torch.is_grad_enabled() or layer.training or not self._allowed(layer) or not may_keep():
            return None
        attention, forward, first_norm, second_norm, query, key, value, output, down, _ = self._modules
        joined = attention._joined.of_plain(query, key, value)
        first = layer.norm_first
        h = _norm(first_norm, x) if first else x
        q, k, v = attention._project_all(h) if joined is None else attention._project_joined(h, joined)
        z = _attend(attention, q, k, v, mask)
        x = x + _linear(output, z.transpose(-3, -2).flatten(-2))
        if not first:
            x = _norm(first_norm, x)
        h = _norm(second_norm, x) if first else x
        x = x + _linear(down, forward.up_and_act(h))
        return x if first else _norm(second_norm, x)

    def _allowed(self, layer: Layer) -> bool:
        """Whether the modules are plain ones that nobody listens to: looked at anew only if one was exchanged."""
        parts = layer._modules
        attention, forward = parts["attention"], parts["feed_forward"]
        own, ups = attention._modules, forward._modules  # type: ignore[union-attr]
        modules = (
            *(attention, forward, parts["attention_norm"], parts["feed_forward_norm"]),
            *(own.get("query"), own.get("key"), own.get("value"), own.get("output"), ups.get("down"), ups.get("up")),
        )
        kinds = tuple(map(type, modules))  # a parametrization changes the kind of a module
        if modules != self._modules or kinds != self._kinds:
            self._modules, self._kinds = modules, kinds
            self._plain = _is_plain(layer, modules)
            there = [module for module in modules if isinstance(module, nn.Module)]
            self._hooks = tuple(h for m in there for h in (m._forward_hooks, m._forward_pre_hooks))
        still = self._plain and attention.positions is None  # type: ignore[union-attr]
        return still and not any(self._hooks) and not hooks_for_all()


def hooks_for_all() -> bool:
    """Whether somebody listens to every module there is."""
    if hasattr(torch_module, "_has_any_global_hook"):
        return bool(torch_module._has_any_global_hook())
    # What that function of newer versions of torch asks.
    kinds = ("backward_pre_hooks", "backward_hooks", "forward_pre_hooks", "forward_hooks")
    return any(getattr(torch_module, f"_global_{kind}") for kind in kinds)


def _is_plain(layer: Layer, modules: tuple[Any, ...]) -> bool:
    attention, forward, *norms = modules[:4]
    return (
        not layer.norm_output
        and type(attention) is MultiHeadAttention
        and type(forward) is FeedForward
        and attention.memory_width == (layer.width, layer.width)
        and all(type(norm) is nn.LayerNorm for norm in norms)
        and all(type(linear) is nn.Linear for linear in modules[4:])
    )


def _attend(attention: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike) -> Tensor:
    """Attention without a mask needs no more than torch's own function, unless someone looks."""
    usual = (
        (mask is None and attention.scale is None and attention.softcap is None and attention.sinks is None)
        and attention.normalizer == "softmax"
        and attention.backend == "auto"
        and q.shape == k.shape == v.shape
        and (q.dim() == 4 and q.numel() > 0)
        and not torch._C._len_torch_function_stack()
    )
    return F.scaled_dot_product_attention(q, k, v) if usual else attention._attend(q, k, v, mask, None)


def _linear(linear: nn.Module, x: Tensor) -> Tensor:
    own = linear._parameters
    return F.linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]


def _norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    own = norm._parameters
    return torch.layer_norm(x, norm.normalized_shape, own["weight"], own["bias"], norm.eps)
