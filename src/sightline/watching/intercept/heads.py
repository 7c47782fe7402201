"""What the heads of a call gave: their output as the model goes on with it, and the values it is made of.

The gradient of a target stops there. A model that is trained has that output in its graph; of one whose parameters are
frozen it is put there, in place: the model goes on with the same tensor and the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError
from sightline.nn.observe.listener import in_checkpoint

if TYPE_CHECKING:
    from sightline.shapes import Sizes
    from sightline.watching.intercept.function_mode import Audience


class Heads(NamedTuple):
    """The output of a call's heads, and the values."""

    out: Tensor  # as the model goes on with it, in its graph
    v: Tensor
    four: Callable[[Tensor, Sizes], Tensor]  # the output, or its gradient, as [batch, heads, queries, value_dim]
    projection: tuple[Tensor, str] | None = (
        None  # the weight that takes it, where the call itself says which, and words
    )
    before: Tensor | None = None  # [batch, heads, queries, value_dim]: what it was before an edit replaced or scaled it

    @property
    def place(self) -> Tensor:
        """Where the gradient of what the weights did arrives."""
        return self.out if self.before is None else self.before

    def values(self, s: Sizes) -> Tensor:
        """The values as [batch, kv_heads, keys, value_dim]: one for all heads of a group."""
        v = self.v.detach()
        if v.shape[-3] == s.heads != s.kv_heads:
            v = v[..., :: s.groups, :, :]
        v = v[..., : s.keys, :]
        if v.dim() == 4 and v.shape[0] != s.batch[0]:
            v = v.expand(*s.batch, *v.shape[1:])
        return v.reshape(*s.batch, s.kv_heads, s.keys, v.shape[-1])

    def output(self, s: Sizes) -> Tensor:
        """The output as [batch, heads, queries, value_dim], without its graph."""
        return self.four(self.out.detach(), s)


def heads_first(x: Tensor, s: Sizes) -> Tensor:
    """Of [*batch, heads, queries, dim]."""
    return x.reshape(*s.batch, s.heads, s.queries, x.shape[-1])


def time_first(x: Tensor, s: Sizes) -> Tensor:
    """Of [batch, queries, heads, dim], or with heads and dim as one axis."""
    return x.reshape(*s.batch, s.queries, s.heads, -1).transpose(1, 2)


def rows_of_batches(x: Tensor, s: Sizes) -> Tensor:
    """Of [queries x batch, heads x dim]."""
    return x.reshape(s.queries, *s.batch, s.heads, -1).permute(1, 2, 0, 3)


def check(who: Audience, dropout: float | str) -> None:
    """Refuse, before it runs, a call whose influence somebody wants and nobody could tell."""
    if not who.influence:
        return
    check_gradients()
    if dropout:
        raise InputError(
            f"there is no influence under dropout ({who.name})",
            expected="attention without dropout: what a weight did depends on which were dropped",
            got=f"dropout {dropout}",
            hint="model.eval(), or influence=False",
        )


def check_gradients() -> None:
    """Refuse what runs without gradients; a reentrant checkpoint does so at first, and runs again with them."""
    if torch.is_grad_enabled() or in_checkpoint("forward"):
        return
    mode = "torch.inference_mode" if torch.is_inference_mode_enabled() else "torch.no_grad"
    raise InputError(
        "influence needs gradients",
        expected="the model to run with gradients enabled",
        got=f"a run under {mode}",
        hint="leave it out; a text that was generated: run the finished text once, model(ids)",
    )


class _Root(torch.autograd.Function):
    """Gives a tensor a place in a graph, in place: not one of its bits changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, root: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None


def connect(out: Tensor) -> None:
    """Have an output in a graph, if gradients are enabled."""
    if torch.is_grad_enabled() and not out.requires_grad:
        _Root.apply(out, torch.empty(0, requires_grad=True, device=out.device))


def before_projection(func: Any, name: str, found: list[Heads]) -> Callable:
    """F.multi_head_attention_forward as it is, except that it says what its output projection is given.

    The function is torch's own code with another name for `linear`, which it calls for that projection alone.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        connect(x)
        found.append(Heads(x, x, rows_of_batches, (weight, f"out_proj of {name}")))
        return F.linear(x, weight, bias)

    names = {**func.__globals__, "linear": linear, "has_torch_function": lambda _: False}
    own = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    own.__kwdefaults__ = func.__kwdefaults__
    return own


def compiled_gives(name: str, what: str) -> InputError:
    """What is said of compiled code whose output holds no number that a gradient could be followed from."""
    return InputError(
        f"{name} is compiled, and no gradient can be followed from what it gives into its layers",
        expected="tensors, or tuples, lists and dictionaries of them, that depend on its attention",
        got=what,
        hint='with torch.compiler.set_stance("force_eager"): with sl.watch(model, influence=True) as seen: …',
    )
