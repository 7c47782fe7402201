"""FlexAttention's calls: its mask_mod becomes a mask, its score_mod a soft-cap and a bias, if it is no more."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline import caches
from sightline.backends.flex import code_of
from sightline.errors import InputError
from sightline.masks import EMPTY, FULL, MIXED, Mask
from sightline.masks.functions import ModMask, read_score_mod
from sightline.watching.intercept import active
from sightline.watching.intercept.changed import change, tell
from sightline.watching.intercept.heads import Heads, check, heads_first
from sightline.watching.intercept.torch_calls import look, position

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience


# Kinds of calls whose compiled code is kept.
_MOST = 256
_NAMES = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options")


def flex(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """The operator beneath `torch.nn.attention.flex_attention.flex_attention`."""
    given = dict(zip(_NAMES, args)) | kwargs
    q, k, v = given["query"], given["key"], given["value"]
    batch, heads, queries, _ = q.shape
    mask = read_block_mask(given["block_mask"], batch, heads, q.device)
    causal = None if mask is not None else False
    first = position(who, queries, k.shape[-2], causal, None)
    if not who.wanting:
        who.note(first, k.shape[-2])
        return _run(func, args, kwargs, q.is_cuda)
    check(who, 0.0)
    cap, bias = None, None
    mod = given["score_mod"]
    if mod is not None and getattr(mod, "__name__", "") != "_identity":
        try:
            cap, bias = read_score_mod(mod, batch, heads, queries, k.shape[-2], q.device)
        except (ValueError, RuntimeError, TypeError, IndexError) as error:
            if who.lenient:
                who.miss(
                    f"a score_mod that is no bias and no soft-cap: {str(error).splitlines()[0]}", first, k.shape[-2]
                )
                return _run(func, args, kwargs, q.is_cuda)
            raise InputError(
                f"{who.name} cannot be watched",
                expected="a score_mod that adds a bias, or caps the score, or both",
                got=str(error).splitlines()[0],
                hint="leave it out: sl.watch(model, layers=lambda name: …)",
            ) from error
    out = _run(func, args, kwargs, q.is_cuda)
    edited = None
    if who.editing:
        edited = change(who, q, k, v, out[0], mask, bias, given["scale"], first, softcap=cap)
        out = (edited.out, *out[1:])
    if who.deep and torch.is_grad_enabled() and not out[0].requires_grad and out[0]._is_view():
        out = (out[0].clone(), *out[1:])  # torch 2.8 gives a view that may get no place in a graph
    heads = Heads(out[0], v, heads_first) if who.deep else None
    if not tell(who, edited, first, 0, heads):
        who.record(look(q, k, v, mask, bias, given["scale"], first, heads=heads, softcap=cap))
    return out


def _run(func: Any, args: tuple, kwargs: dict, on_gpu: bool) -> Any:
    """The call itself: compiled on a GPU, as the model would have it; written out on the CPU, as torch does there."""
    with active.quiet(compiled=True):
        if not on_gpu or not active.UNCOMPILED.on:
            return func(*args, **kwargs)
        # Behind its seven arguments the operator has places for buffers, which the compiler fills itself.
        given = dict(zip(_NAMES, args)) | {name: value for name, value in kwargs.items() if name in _NAMES}
        # Heads and their size are constants to the compiler, and it compiles one piece of code only so often.
        kind = tuple((x.dtype, x.device, x.shape[-3], x.shape[-1], x.requires_grad) for x in list(given.values())[:3])
        found = _compiled(func, (*kind, *_functions(given.values())))(*given.values())
        return tuple(found[0].new_empty(0) if part is None else part for part in found)


def _functions(given: Iterable[Any]) -> Iterator[Hashable]:
    """What the functions among some arguments do."""
    for thing in given:
        if isinstance(thing, tuple):
            yield from _functions(thing)
        elif hasattr(thing, "__code__"):
            yield code_of(thing)


@caches.memo("watching.flex_compiled", _MOST)
def _compiled(func: Any, kind: Hashable) -> Callable[..., Any]:
    """The compiled call of one kind: each has code of its own, because torch compiles a piece of code only so often."""

    def call(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Any:
        for x in (q, k, v):
            torch._dynamo.mark_static(x, -3)
            torch._dynamo.mark_static(x, -1)
        found = func(q, k, v, *more)
        # A compiled kernel has only those statistics that were asked for: nobody may touch the others.
        options = more[-1]
        lse = found[1] if options.get("OUTPUT_LOGSUMEXP", True) else None
        if len(found) == 2:
            return found[0], lse  # the operator of torch 2.6 knows no largest scores
        largest = found[2] if options.get("OUTPUT_MAX", True) else None
        return found[0], lse, largest

    own = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
    return torch.compile(own, fullgraph=True)


def read_block_mask(parts: tuple, batch: int, heads: int, device: torch.device) -> Mask | None:
    """The mask of a BlockMask's parts (`as_tuple`): blocks that are empty, full, or to be asked cell by cell."""
    function, height, width = parts[-1], int(parts[-3]), int(parts[-2])
    plain = getattr(function, "__name__", "") == "noop_mask"
    table = _kinds(parts[2], parts[3], parts[4], parts[5])
    if plain and (device.type == "cpu" or table.numel() == 1):
        return None  # on the CPU torch asks the function alone
    lowest, highest = (t.numpy(force=True) for t in (table.amin((0, 1)), table.amax((0, 1))))
    blocks = np.where(lowest == highest, lowest, MIXED)
    table = table.to(device)

    def by_block(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = (i // height).clamp_max(table.shape[2] - 1)
        column = (j // width).clamp_max(table.shape[3] - 1)
        kind = table[b.clamp_max(table.shape[0] - 1), h.clamp_max(table.shape[1] - 1), row, column]
        return (kind == FULL) | ((kind == MIXED) & function(b, h, i, j))

    if device.type == "cpu":
        return ModMask(function, batch, heads, None, getattr(function, "__name__", "function"), device)
    return ModMask(by_block, batch, heads, (blocks, (height, width)), getattr(function, "__name__", "function"), device)


def _kinds(count: Tensor, indices: Tensor, full_count: Tensor | None, full_indices: Tensor | None) -> Tensor:
    """The kind of every block, `[batch, heads, row blocks, column blocks]`."""
    kinds = torch.full(indices.shape, EMPTY, dtype=torch.int8, device=indices.device)
    for number, which, kind in ((count, indices, MIXED), (full_count, full_indices, FULL)):
        if number is not None and which is not None:
            valid = torch.arange(which.shape[-1], device=which.device) < number[..., None]
            marks = torch.zeros_like(kinds).scatter_reduce(
                -1, which.long(), valid.to(torch.int8), "amax", include_self=True
            )
            kinds = torch.where(marks.bool(), kind, kinds).to(torch.int8)
    return kinds
