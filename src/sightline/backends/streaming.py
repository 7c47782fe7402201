"""The streaming backend: any call, forward and backward, on any device, in memory linear in the context.

It walks over tiles of the map, band by band, skips the tiles a mask leaves empty, and keeps of each row only a
running maximum, a running sum and the output. The backward pass walks over the same tiles again. Where torch's
fused kernel can do a band, it does (`cpu_bands`); else the tiles are plain torch operations (`passes`). In a graph that
torch compiles or exports, all of it is one operator (`operator`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends import cpu_bands, operator, passes
from sightline.backends.derivatives import no_forward, no_second
from sightline.backends.nonfinite import recording
from sightline.backends.nonfinite import transformed as transformed
from sightline.backends.operator import batched

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call


class Recipe(NamedTuple):
    """All of a call but its tensors, and how to walk it: what the backward pass must repeat."""

    call: Call
    seed: int
    use_fused: bool


def refuses(call: Call) -> str | None:
    """Why this backend cannot do a call: there is no such call."""
    return None


def run(call: Call, careful: bool = False) -> Float[Tensor, "*batch heads queries value_dim"]:
    """Attention by bands of the fused kernel where it can, else by tiles; `careful`: by tiles, which spread no NaN."""
    return run_with_rows(call, careful)[0]


def run_with_rows(call: Call, careful: bool = False) -> tuple[Tensor, Float[Tensor, "*batch heads queries"]]:
    """The output, and the one number per row that its weights need: the lse, or the visible keys."""
    if torch.compiler.is_compiling() or (recording() and not transformed()):
        differentiated = operator.differentiated()
        both = None if differentiated else operator.run_with_rows(call)
        if both is not None:
            return both
        if torch.compiler.is_dynamo_compiling():
            return torch_func_runs_uncompiled(call) if differentiated else functions_run_uncompiled(call)
    return _by_function(call, careful)


def _by_function(call: Call, careful: bool = False) -> tuple[Tensor, Tensor]:
    seed = int(torch.randint(2**62, ())) if call.dropout else 0
    bias = call.bias if isinstance(call.bias, Tensor) else None
    recipe = Recipe(_without_tensors(call), seed, cpu_bands.can(call) and not careful)
    with torch.autocast(call.device.type, enabled=False):
        out, row = _Stream.apply(call.q, call.k, call.v, bias, call.sinks, recipe)
    return out, row


def functions_run_uncompiled(call: Call) -> tuple[Tensor, Tensor]:
    """Where a graph ends, since it cannot hold the mask or the bias."""
    both: tuple[Tensor, Tensor] = torch.compiler.disable(_by_function)(call)
    return both


def torch_func_runs_uncompiled(call: Call) -> tuple[Tensor, Tensor]:
    """Where a graph ends, since it cannot hold the derivative."""
    both: tuple[Tensor, Tensor] = torch.compiler.disable(_by_function)(call)
    return both


# What is said where there must be one graph. `torch.compiler.disable` would set these too, and load the compiler.
_ENDS = {
    functions_run_uncompiled: (
        "sl.attention: a mask or bias that holds a function, or another object that is no tensor, number, text, mask "
        "or bias, cannot stand in a graph. Give it values as attributes, or write it out: "
        "sl.dense(mask.to_dense(queries, keys)), bias.to_dense(queries, keys)"
    ),
    torch_func_runs_uncompiled: (
        "sl.attention: in a compiled graph the streaming backend has a derivative by torch.autograd, not torch.func"
    ),
}
for _end, _why in _ENDS.items():
    vars(_end).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=_why)


def _without_tensors(call: Call) -> Call:
    bias = None if isinstance(call.bias, Tensor) else call.bias
    return call.replace(q=None, k=None, v=None, bias=bias, sinks=None)


def _with_tensors(call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None) -> Call:
    sizes = call.sizes._replace(batch=tuple(q.shape[:-3]))
    return call.replace(q=q, k=k, v=v, sizes=sizes, bias=call.bias if bias is None else bias, sinks=sinks)


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, recipe: Recipe) -> Any:
        return passes.forward(_with_tensors(recipe.call, q, k, v, bias, sinks), recipe.seed, recipe.use_fused)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        q, k, v, bias, sinks, recipe = inputs
        ctx.recipe = recipe
        ctx.save_for_backward(q, k, v, bias, sinks, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple:
        return (*_StreamBackward.apply(grad, *ctx.saved_tensors, ctx.recipe, ctx.needs_input_grad[3]), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        no_forward("the streaming backend")

    @staticmethod
    def vmap(info: Any, dims: tuple, *args: Any) -> tuple:
        return _Stream.apply(*batched(info.batch_size, dims[:5], args[:5]), *args[5:]), (0, 0)


class _StreamBackward(torch.autograd.Function):
    """The backward pass as a function of its own, so that it works under torch.func.vmap too."""

    @staticmethod
    def forward(
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        out: Tensor,
        row: Tensor,
        recipe: Recipe,
        wants_bias: bool,
    ) -> tuple:
        call = _with_tensors(recipe.call, q, k, v, bias, sinks)
        return passes.backward(call, recipe.seed, recipe.use_fused, grad, out, row, wants_bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        no_second("the streaming backend")

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        no_forward("the streaming backend")

    @staticmethod
    def vmap(info: Any, dims: tuple, *args: Any) -> tuple:
        result = _StreamBackward.apply(*batched(info.batch_size, dims[:8], args[:8]), *args[8:])
        return result, tuple(None if r is None else 0 for r in result)
