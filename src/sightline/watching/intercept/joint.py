"""Sequences that a model puts one after the other: text and image in joint attention, and tokens around patches.

SD3 and Flux put a text and an image side by side, `torch.cat([encoder_query, query], dim=1)`, and attend over both.
Nothing in the call of attention says which is which: the names that the model's own code has for the two tensors do.
One of them is named after the text (its encoder, its context), the other is not.

Models that cut an image into patches put tokens of their own before these, behind them or between: the lengths of what
they put together say where the patches lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

# In names of tensors that are made of the text.
_TEXT = ("encoder", "context", "text", "txt", "caption", "prompt")
CATS = (torch.cat, torch.concat, torch.concatenate)
# Kinds of sequences that a pass is taken to put together; one that has more is not of an image alone.
_MOST = 64


class Joint:
    """What was put side by side."""

    def __init__(self, named: bool = True) -> None:
        self.lengths: dict[tuple[int, ...], None] = {}  # of sequences that were put together since the last image came
        self.named = named  # whether names are asked for a text
        self.found: dict[int, dict[str, tuple[int, int]]] = {}  # by the length of both together: the last one

    def cat(self, args: tuple, kwargs: dict) -> None:
        """Tensors are about to be put side by side: two are a text and an image, if their names say so."""
        both = args[0] if args else kwargs.get("tensors")
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        if not isinstance(both, list | tuple) or len(both) < 2 or not all(isinstance(x, Tensor) for x in both):
            return
        axes = both[0].dim()
        if axes < 3 or any(x.dim() != axes for x in both) or dim % axes not in (1, axes - 2):
            return
        lengths = [x.shape[dim] for x in both]
        if axes == 3 and len(self.lengths) < _MOST:
            self.lengths[tuple(lengths)] = None
        if not self.named or len(both) != 2:
            return
        is_text = [_is_text(names) for names in _names(both)]
        start = lengths[0]
        total = sum(lengths)
        if None in is_text or is_text[0] == is_text[1]:
            self.found.pop(total, None)  # of another kind, and not to be taken for what was there before
            return
        names = ("text", "image") if is_text[0] else ("image", "text")
        self.found[total] = {names[0]: (0, start), names[1]: (start, total)}

    def parts(self, queries: int, keys: int) -> dict[str, tuple[int, int]] | None:
        """Where text and image lie among so many queries and keys."""
        return self.found.get(keys) if queries == keys else None


def joint(modules: Iterable[nn.Module]) -> Joint | None:
    """Something that hears of tensors put side by side, for models that have text and image, or patches of an image."""
    every = list(modules)
    homes = {kind.__module__ for kind in set(map(type, every))}
    named = any(home.startswith("diffusers.") for home in homes) or any("add_k_proj" in one._modules for one in every)
    if named or any(_cuts(module) for module in every):
        return Joint(named)
    return None


def _cuts(module: nn.Module) -> bool:
    """Whether a module may cut an image into patches."""
    return isinstance(module, nn.Conv2d) and module.kernel_size == module.stride and max(module.stride) > 1


def _names(tensors: list[Tensor] | tuple[Tensor, ...]) -> list[list[str]]:
    """What the function that runs now calls each of these."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("sightline.", "torch.")):
        frame = frame.f_back
    named: list[tuple[str, Any]] = [] if frame is None else list(frame.f_locals.items())
    return [[name for name, value in named if value is x] for x in tensors]


def _is_text(names: list[str]) -> bool | None:
    """Whether a tensor of these names is made of the text; None if it has no name."""
    return any(word in name.lower() for name in names for word in _TEXT) if names else None
