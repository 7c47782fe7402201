"""Calls on tensors that have a shape and no values: the meta device, and FakeTensorMode.

What a call would give is known: its shape, dtype and device. Nothing is computed, and no mask is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from sightline.backends.nonfinite import recording

if TYPE_CHECKING:
    from sightline.backends.call import Call


def valueless(x: Tensor) -> bool:
    """Whether a tensor has no values, and nobody writes down what is done with it.

    >>> valueless(torch.empty(2, device="meta")), valueless(torch.empty(2))
    (True, False)
    """
    # Such tensors also stand for others while a graph is made: there every operation counts.
    return (x.is_meta or isinstance(x, FakeTensor)) and not torch.compiler.is_compiling() and not recording()


def blank(call: Call) -> Tensor:
    """An output without values, of the shape, dtype and device that the call gives, and with gradients likewise."""
    s = call.sizes
    bias = call.bias if isinstance(call.bias, Tensor) else None
    shape = (*s.batch, s.heads, s.queries, s.value_dim)
    out: Tensor = _Blank.apply(shape, call.q, call.k, call.v, bias, call.sinks)
    return out


class _Blank(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(shape: tuple[int, ...], q: Tensor, *rest: Tensor | None) -> Tensor:
        return q.new_empty(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, *(None if t is None else torch.empty_like(t) for t in ctx.saved_tensors)
