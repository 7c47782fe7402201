"""Which backend does a call, and why.

| backend     | what it is                           | where              | what it can do                             |
| ----------- | ------------------------------------ | ------------------ | ------------------------------------------ |
| `sdpa`      | torch's scaled_dot_product_attention | anywhere           | softmax; no mask, causal, padding, tables, |
|             |                                      |                    | one query with a window; on CUDA short     |
|             |                                      |                    | sequences with any mask                    |
| `flex`      | torch's FlexAttention, compiled      | CUDA               | softmax; every mask, bias, soft-cap, sinks |
| `streaming` | our own walk over tiles              | anywhere           | everything                                 |
| `reference` | the definition, with the whole map   | anywhere, all held | everything but dropout                     |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from sightline.backends import flex, reference, sdpa, streaming
from sightline.errors import BackendError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.backends.call import Call


T = TypeVar("T")


class Choice(NamedTuple):
    """The backend that does a call, and the reason.

    >>> Choice("sdpa", "torch's own kernel can express this call").backend
    'sdpa'
    """

    backend: str
    reason: str


class Backend(NamedTuple):
    """`refuses(call)` says why it cannot do a call (None: it can), `run(call)` does it."""

    refuses: Callable[[Call], str | None]
    run: Callable[[Call], Tensor]


def _reference(call: Call) -> Tensor:
    return reference.matrix_view(
        call.q,
        call.k,
        call.v,
        mask=call.mask,
        bias=call.bias,
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks,
        normalizer=call.normalizer.name,
    )


BACKENDS: dict[str, Backend] = {
    "sdpa": Backend(sdpa.refuses, sdpa.run),
    "flex": Backend(flex.refuses, flex.run),
    "streaming": Backend(streaming.refuses, streaming.run),
    "reference": Backend(lambda call: "the definition has no dropout" if call.dropout else None, _reference),
}

# Cells of the map above which torch's unfused kernel (dropout on the CPU) is not chosen: it holds the whole map.
_UNFUSED_CELLS = 1 << 20
# Compiling for FlexAttention pays only on maps of some size.
_FLEX_CELLS = 1 << 18


def choose(call: Call, backend: str = "auto") -> Choice:
    """The backend for a call: the one that was named, if it can do it, or the fastest that can."""
    if backend == "auto":
        return _auto(call)
    if backend not in BACKENDS:
        raise InputError(
            "unknown backend", expected=f"auto, {', '.join(BACKENDS)}", got=repr(backend), hint='backend="auto"'
        )
    reason = BACKENDS[backend].refuses(call)
    if reason is not None:
        raise BackendError(
            f"the backend {backend} cannot do this call",
            expected="a call it can express",
            got=reason,
            hint=f'backend="auto", which would choose {_auto(call).backend}',
        )
    return Choice(backend, "asked for by name")


def done(call: Call, backend: str, run: Callable[[str], T]) -> T:
    """What a call gives by the backend for it; where that turns out unable and nobody asked for it, by the next one."""
    try:
        return run(choose(call, backend).backend)
    except flex.NotCompiled:
        if backend != "auto":
            raise
    return run(choose(call, backend).backend)


def _auto(call: Call) -> Choice:
    cells = call.sizes.queries * call.sizes.keys
    on_cuda = call.device.type == "cuda"
    why_not = sdpa.refuses(call)
    if why_not is None and call.dropout and not on_cuda and cells > _UNFUSED_CELLS:
        why_not = "SDPA would hold the whole map for dropout on the CPU"
    if why_not is None and not on_cuda and streaming.transformed() and _under_vmap():
        why_not = "SDPA has no batching rule on the CPU under torch.func.vmap"
    if why_not is None:
        return Choice("sdpa", "torch's own kernel can express this call")
    if on_cuda and cells >= _FLEX_CELLS and flex.refuses(call) is None:
        return Choice("flex", f"{why_not}; FlexAttention can")
    return Choice("streaming", why_not)


def _under_vmap() -> bool:
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in stack)
