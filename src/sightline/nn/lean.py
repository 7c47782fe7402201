"""An encoder layer without gradients, and with little around the arithmetic.

On a GPU a short sequence takes less time than calling eleven modules and checking their inputs again. What is computed
is what the modules compute, operation by operation and to the bit; they are called themselves as soon as there is more
to them: hooks, gradients, dropout, positions, or modules of another kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from sightline.nn.feedforward import FeedForward
from sightline.nn.joined import is_plain
from sightline.nn.multihead import MultiHeadAttention

if TYPE_CHECKING:
    from sightline.attention.call import MaskLike
    from sightline.nn.layer import Layer


def encode(layer: Layer, x: Tensor, mask: MaskLike) -> Tensor | None:
    """What the layer gives for x, or None if its modules must be asked."""
    if torch.is_grad_enabled() or layer.training or layer.norm_output or _watched():
        return None
    parts = layer._modules
    attention, forward = parts["attention"], parts["feed_forward"]
    norms = parts["attention_norm"], parts["feed_forward_norm"]
    if type(attention) is not MultiHeadAttention or type(forward) is not FeedForward or attention.positions is not None:
        return None
    for part in (attention, forward, *norms):
        if part._forward_hooks or part._forward_pre_hooks:  # type: ignore[union-attr]
            return None
    if type(norms[0]) is not nn.LayerNorm or type(norms[1]) is not nn.LayerNorm:
        return None
    own: dict[str, Any] = attention._modules
    query, key, value, output = own["query"], own["key"], own["value"], own["output"]
    down: Any = forward._modules["down"]
    if not (is_plain(query) and is_plain(key) and is_plain(value) and is_plain(output) and is_plain(down)):
        return None
    if attention.memory_width != (layer.width, layer.width):
        return None
    first = layer.norm_first
    h = _norm(norms[0], x) if first else x
    joined = attention._joined.of_plain(query, key, value)
    q, k, v = attention._project_all(h) if joined is None else attention._project_joined(h, joined)
    z = attention._attend(q, k, v, mask, None)
    x = x + _linear(output, z.transpose(-3, -2).flatten(-2))
    if not first:
        x = _norm(norms[0], x)
    h = _norm(norms[1], x) if first else x
    x = x + _linear(down, forward.up_and_act(h))
    return x if first else _norm(norms[1], x)


def _watched() -> bool:
    """Whether a compiler, a transformation or a hook for all modules is at work."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _has_any_global_hook()
    )


def _linear(linear: nn.Module | None, x: Tensor) -> Tensor:
    own = linear._parameters  # type: ignore[union-attr]
    return F.linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]


def _norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    assert isinstance(norm, nn.LayerNorm)
    own = norm._parameters
    return torch.layer_norm(x, norm.normalized_shape, own["weight"], own["bias"], norm.eps)
