"""The streaming backend as one operator of torch's: what stands in a graph that torch compiles, exports or writes down.

A graph holds tensors, numbers and texts. So a mask, or a bias that is never written out, goes in as a text with its
tensors and whole numbers beside it (`spelled`), and is put together again where the graph runs. There its tiles are
looked at as in any other call: what a graph does depends on no length and on no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline import normalizers
from sightline.backends import cpu_bands, passes
from sightline.backends.call import Call
from sightline.backends.derivatives import no_second
from sightline.backends.spelled import spell, unspell
from sightline.errors import SightlineError
from sightline.shapes import sizes_of

if TYPE_CHECKING:
    from jaxtyping import Float

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sinks"
# All else of a call: a dense bias and the sinks are trained, what a mask holds is not.
_REST = (
    "Tensor? seed, Tensor[] tensors, SymInt[] numbers, str rule, float scale, float? softcap, str normalizer, "
    "float dropout, bool use_fused"
)
_STREAM = f"({_TENSORS}, {_REST}) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad, {_TENSORS}, Tensor out, Tensor row, {_REST}, bool wants_bias) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def run_with_rows(call: Call) -> tuple[Tensor, Float[Tensor, "*batch heads queries"]] | None:
    """The output and the one number per row of a call, by the operator; None if a graph cannot hold the mask or bias.

    Not for a call that must be `careful`: that is found out from values, which a graph does not look at.
    """
    tensors: list[Tensor] = []
    numbers: list[int] = []
    bias = call.bias if isinstance(call.bias, Tensor) else None
    rule = spell((call.mask, call.bias if bias is None else None), tensors, numbers)
    if not rule:
        return None
    # A number that is drawn when the graph runs.
    seed = torch.randint(2**62, (), device="cpu") if call.dropout else None
    learned = bias is not None and bias.requires_grad
    out, row = stream(
        call.q,
        call.k,
        call.v,
        bias,
        call.sinks,
        seed,
        tensors,
        numbers,
        rule,
        call.scale,
        call.softcap,
        call.normalizer.name,
        call.dropout,
        not learned,
    )
    return out, row


def differentiated() -> bool:
    """Whether this runs under a derivative of torch.func's, for which torch's operators of one's own have no rule."""
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in stack)


# Asked while a graph is made, as `torch.compiler.assume_constant_result` would have it, which loads the compiler.
vars(differentiated).update(_dynamo_marked_constant=True)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    tensors: Sequence[Tensor],
    numbers: Sequence[int],
    rule: str,
    scale: float,
    softcap: float | None,
    normalizer: str,
    dropout: float,
    use_fused: bool,
) -> tuple[Call, int, bool]:
    """The call again, the seed of its dropout, and whether torch's fused kernel does its bands."""
    mask, lazy = unspell(rule, tensors, numbers)
    call = Call(
        q,
        k,
        v,
        sizes_of(q, k, v),
        mask,
        lazy if bias is None else bias,
        scale,
        softcap,
        sinks,
        normalizers.get(normalizer),
        dropout,
    )
    return call, 0 if seed is None else int(seed), use_fused and cpu_bands.can(call)


@torch.library.custom_op("sightline::stream", mutates_args=(), schema=_STREAM)
def stream(*args: Any) -> tuple[Tensor, Tensor]:
    with torch.autocast(args[0].device.type, enabled=False):
        out, row = passes.forward(*_call(*args))
    return out.contiguous(), row.contiguous()


@torch.library.custom_op("sightline::stream_backward", mutates_args=(), schema=_BACKWARD)
def stream_backward(grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
    tensors, (out, row), rest, wants_bias = args[:5], args[5:7], args[7:-1], args[-1]
    with torch.autocast(grad.device.type, enabled=False):
        grads = passes.backward(*_call(*tensors, *rest), grad, out, row, wants_bias)
    return tuple(grad.new_empty(0) if g is None else g.contiguous() for g in grads)


@stream.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=dtype)


@stream_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    given = (q, k, v, bias if rest[-1] else None, rest[0])
    return tuple(grad.new_empty(0) if t is None else t.new_empty(t.shape) for t in given)


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    seed, tensors, *plain = inputs[5:]
    ctx.save_for_backward(*inputs[:5], *output, seed, *tensors)
    ctx.plain = plain
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple:
    *saved, seed = ctx.saved_tensors[:8]
    tensors, wants_bias = list(ctx.saved_tensors[8:]), ctx.needs_input_grad[3]
    *grads, grad_bias, grad_sinks = stream_backward(grad, *saved, seed, tensors, *ctx.plain, wants_bias)
    numbers, *others = ctx.plain
    # To torch a list without anything in it is a list of tensors, which has gradients.
    nothing = (None, [None] * len(tensors), None if numbers else [], *(None for _ in others))
    return *grads, grad_bias if wants_bias else None, None if saved[4] is None else grad_sinks, *nothing


def _no_second(ctx: Any, *grads: Tensor) -> Any:
    no_second("the streaming backend")


stream.register_autograd(_gradients, setup_context=_setup)
stream_backward.register_autograd(_no_second)


@stream.register_vmap
def _(info: Any, dims: tuple, *args: Any) -> tuple:
    _check_shared(dims[5:7])
    return stream(*batched(info.batch_size, dims[:5], args[:5]), *args[5:]), (0, 0)


@stream_backward.register_vmap
def _(info: Any, dims: tuple, *args: Any) -> tuple:
    _check_shared(dims[8:10])
    grads = stream_backward(*batched(info.batch_size, dims[:8], args[:8]), *args[8:])
    return grads, (0, 0, 0, 0 if args[-1] else None, None if args[5] is None else 0)


def _check_shared(dims: tuple) -> None:
    """Raise if a seed, or a tensor of a mask, is another one for each call under vmap."""
    seed, tensors = dims
    if seed is not None or any(dim is not None for dim in tensors or ()):
        raise SightlineError(
            "under vmap a compiled call has one mask, and one draw of dropout, for all",
            expected="tensors of a mask that are not mapped over",
            got="a mask made of tensors that are",
            hint="a batch axis instead of vmap: masks have one",
        )


def batched(size: int, dims: tuple, tensors: tuple) -> Iterator[Tensor | None]:
    """Tensors under vmap as tensors with one more batch axis in front; bias and sinks are spelled out to fit it."""
    axes = tensors[0].dim() - (dims[0] is not None)
    # Both functions end (q, k, v, bias, sinks, ...): from the back for five tensors, after the gradient for eight.
    bias_at, sinks_at = (3, 4) if len(tensors) == 5 else (4, 5)
    for place, (tensor, dim) in enumerate(zip(tensors, dims, strict=True)):
        if tensor is None:
            yield None
            continue
        x = tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
        inner = x.dim() - 1
        wanted = {bias_at: axes, sinks_at: axes - 2}.get(place, inner)
        yield x.reshape(size, *[1] * (wanted - inner), *x.shape[1:])
