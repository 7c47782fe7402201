"""Which module of a model is running: found on the call stack, so that no module is touched.

A frame whose first argument is a module of the model is a method of it. The innermost one is where attention is
called from. Nothing is installed in the model, and other threads have other stacks.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

from torch import nn


def names_of(model: nn.Module, every: list[tuple[str, nn.Module]] | None = None) -> dict[int, str]:
    """The path of every module by its identity; a module with several paths has its first.

    `every` is what `every_module` gave of it, if that is known.

    >>> sorted(names_of(nn.Sequential(nn.Linear(2, 2))).values())
    ['0', 'Sequential']
    """
    # The parts that torch.compile and data parallelism wrap around a model are no part of its paths.
    found: dict[int, str] = {}
    for path, module in every_module(model) if every is None else every:
        if "_orig_mod" in path:
            path = ".".join(step for step in path.split(".") if step != "_orig_mod")
        found[id(module)] = path
    for key, path in found.items():
        if not path:
            found[key] = type(inner(model)).__name__
    return found


def every_module(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What `named_modules` gives, each module once, several times as fast: a watch of a short text begins with it.

    >>> [path for path, _ in every_module(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())))]
    ['', '0', '1', '1.0']
    """
    found: dict[int, tuple[str, nn.Module]] = {}

    def visit(module: nn.Module, path: str) -> None:
        if id(module) in found:
            return
        found[id(module)] = (path, module)
        for name, part in module._modules.items():
            if part is not None:
                visit(part, f"{path}.{name}" if path else name)

    visit(model, "")
    return list(found.values())


def inner(model: nn.Module) -> nn.Module:
    """The model inside what torch.compile wraps around it."""
    while "_orig_mod" in model._modules:
        model = model._modules["_orig_mod"]  # type: ignore[assignment]
    return model


def callers(skip: int = 1) -> Iterator[tuple[FrameType, Any]]:
    """The frames of the stack from the inside out, each with its first argument."""
    frame: FrameType | None = sys._getframe(skip + 1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            yield frame, frame.f_locals.get(code.co_varnames[0])
        frame = frame.f_back


def running(names: dict[int, str]) -> nn.Module | None:
    """The innermost running module among those named, or None.

    What another model does is not said of one whose `generate` asked for it, nor of one that a function was given.
    """
    foreign = False
    for frame, first in callers(2):
        if not isinstance(first, nn.Module):
            continue
        if id(first) not in names:
            foreign = True
        elif not foreign or frame.f_code.co_name == "forward":
            return first
    return None


def in_compiled_function() -> bool:
    """Whether torch.compile stands around a function that the innermost running module called."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and isinstance(frame.f_locals.get(code.co_varnames[0]), nn.Module):
            return False
        # What the compiler is told to leave alone, as checkpoints are, is wrapped there too.
        if frame.f_globals.get("__name__") == "torch._dynamo.eval_frame" and "Disable" not in code.co_qualname:
            return True
        frame = frame.f_back
    return False


def common(one: str, other: str, names: dict[int, str]) -> str:
    """The path of the innermost module that holds both: of a softmax that is a module, and of what follows it.

    >>> common("layers.0.attn", "layers.0.attn.softmax", {1: "Model", 2: "layers.0.attn"})
    'layers.0.attn'
    """
    if one == other:
        return one
    shared = []
    for a, b in zip(one.split("."), other.split("."), strict=False):
        if a != b:
            break
        shared.append(a)
    return ".".join(shared) or next(iter(names.values()))


def inside(name: str, module: str) -> bool:
    """Whether a function of this name, of a module whose path begins so, is running."""
    return bool(names_inside((name,), module))


def names_inside(names: Collection[str], module: str) -> set[str]:
    """Which functions of these names, of a module whose path begins so, are running."""
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in names and str(frame.f_globals.get("__name__", "")).startswith(module):
            found.add(name)
        frame = frame.f_back
    return found
