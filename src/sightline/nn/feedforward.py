"""The feed-forward part of a layer: every token for itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.nn.checks import check_name, check_sequence, share
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Up to `hidden` channels, an activation, and down again: every token for itself, with fixed weights.

    Plain, `down(act(up(x)))`, as in BERT, GPT-2 (`"gelu_tanh"`) and the first transformer (`"relu"`); or gated,
    `down(act(gate(x)) * up(x))`, as in Llama (`"silu"`) and Gemma (`"gelu_tanh"`): https://arxiv.org/abs/2002.05202.

    Args:
        width: channels of a token, in and out.
        hidden: channels in between; 4 * width if not given.
        activation: `"gelu"`, `"gelu_tanh"`, `"relu"` or `"silu"`.
        gated: multiply by a second projection of the input.
        bias: whether the linear layers have one.
        dropout: the share of hidden channels dropped in training.

    >>> import torch
    >>> from sightline import nn as slnn
    >>> slnn.FeedForward(64, 172, activation="silu", gated=True, bias=False)(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_name("activation", activation, ACTIVATIONS)
        self.width = whole("width", width)
        self.hidden = 4 * self.width if hidden is None else whole("hidden", hidden)
        self.activation = activation
        self.gate = nn.Linear(self.width, self.hidden, bias=bias) if gated else None
        self.up = nn.Linear(self.width, self.hidden, bias=bias)
        self.down = nn.Linear(self.hidden, self.width, bias=bias)
        self.dropout = nn.Dropout(share("dropout", dropout))

    def forward(self, x: Float[Tensor, "*batch time width"]) -> Float[Tensor, "*batch time width"]:
        check_sequence(self, "x", x, self.width)
        hidden = self.up_and_act(x)
        down: Tensor = self.down(self.dropout(hidden) if self.training else hidden)
        return down

    def up_and_act(self, x: Float[Tensor, "*batch time width"]) -> Float[Tensor, "*batch time hidden"]:
        """The first half: up, the activation, and the gate."""
        hidden = self._in_one(x)
        if hidden is not None:
            return hidden
        act = ACTIVATIONS[self.activation]
        return act(self.up(x)) if self.gate is None else act(self.gate(x)) * self.up(x)

    def _in_one(self, x: Tensor) -> Tensor | None:
        """Product, bias and activation in one kernel, which CUDA has for half precision; None where it is not used.

        Its GELU is the tanh form, whose difference to the exact one is far below what half precision can tell.
        """
        if not x.is_cuda or torch.is_grad_enabled() or self.activation == "silu" or self.gate is not None:
            return None
        up = self.up
        if type(up) is not nn.Linear or up._forward_hooks or up._forward_pre_hooks:
            return None
        weight, bias = up.weight, up.bias
        if bias is None or x.dtype not in (torch.float16, torch.bfloat16) or x.dtype != weight.dtype:
            return None
        if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda"):
            return None
        tokens = x.reshape(-1, self.width)
        hidden = torch._addmm_activation(bias, tokens, weight.t(), use_gelu=self.activation != "relu")
        return hidden.view(*x.shape[:-1], self.hidden)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
