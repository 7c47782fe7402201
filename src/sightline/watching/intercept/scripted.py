"""Modules that torch.jit has scripted or traced: they take no hooks, and nobody sees into their graphs.

What they are made of can be read, though: one that attends is named in `seen.unseen` as soon as it runs. A function of
that kind between scores and their softmax is known by the code that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sightline.watching.intercept.caller import callers

SCRIPTED = "scripted or traced by torch.jit, into whose code nobody sees"
_WHOLE = ("scaled_dot_product", "multi_head_attention", "_transformer_encoder_layer_fwd")
_PRODUCTS = {f"aten::{name}" for name in ("matmul", "bmm", "mm", "baddbmm", "einsum", "__matmul__")}


def is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def outermost(modules: list[nn.Module]) -> list[nn.Module]:
    """The scripted modules of a model that are in no other one."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in modules:
        if is_scripted(module) and id(module) not in inside:
            found.append(module)
            inside.update(map(id, module.modules()))
    return found


def listen(stack: ExitStack, modules: list[nn.Module], tell: Callable[[nn.Module], None]) -> None:
    """Have it told when one of them that attends runs; nothing is installed where there is none."""
    attending = {id(module): module for module in outermost(modules) if attends(module)}
    if attending:

        def runs(module: nn.Module, args: Any) -> None:
            if id(module) in attending:
                tell(module)

        stack.callback(register_module_forward_pre_hook(runs).remove)


def attends(module: nn.Module) -> bool:
    """Whether its code has one of torch's attention functions, or a softmax between two matrix products."""
    before = softmax = False
    for kind in _kinds(module.inlined_graph):
        if any(name in kind for name in _WHOLE):
            return True
        if kind in _PRODUCTS:
            if softmax:
                return True
            before = True
        elif kind == "aten::softmax":
            softmax = before
    return False


def stands_between() -> bool:
    """Whether the code that is running, up to its module, calls a function that torch.jit made: marks end in there."""
    for frame, first in callers(1):
        names = frame.f_code.co_names
        if any(isinstance(frame.f_globals.get(name), torch.jit.ScriptFunction) for name in names):
            return True
        if isinstance(first, nn.Module):
            return False
    return False


def _kinds(block: Any) -> Iterator[str]:
    """The operators of a graph in their order, branches and loops included."""
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)
