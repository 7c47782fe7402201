"""The marks that tensors get on their way through attention written by hand; nothing is left on the tensors."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from sightline.watching.intercept.ways import Product, Way

# Softmaxes whose scores are held at a time, until their weights are used.
SOFT = 2


class Mark(NamedTuple):
    """What a tensor is on the way through attention, and the module that a softmax ran in."""

    # "parameter" or "buffer"; "product", or "features" if one side is a buffer; "weights" (a softmax of these) or
    # "soft" (of anything else); "sampled" (values at points) or "around" (values of neighbours)
    kind: str
    module: nn.Module | None = None
    way: Way | None = None  # of a product or of weights that can be followed
    soft: Soft | None = None  # of weights: what their softmax was given


class Soft:
    """What a softmax was given, until a product takes its weights: no longer, because it is queries x keys."""

    def __init__(self, scores: Tensor, product: Product, swapped: bool) -> None:
        self.scores: Tensor | None = scores
        self.q, self.k = (product.k, product.q) if swapped else (product.q, product.k)
        self.version = -1 if scores.is_inference() else scores._version
        self.pure = True  # nothing but dropout and precision has changed the weights since

    def take(self) -> Tensor | None:
        """The scores, once; None if they are gone or were written into."""
        scores, self.scores = self.scores, None
        if scores is None or (self.version >= 0 and scores._version != self.version):
            return None
        return scores


class Weighing(NamedTuple):
    """A product that weights go into."""

    weights: Tensor
    values: Tensor
    result: Tensor


class Trace:
    """The marks of the tensors that are alive; one for each watch.

    What is made of parameters and buffers alone is marked apart: while nothing else is, there is nothing to follow.
    """

    def __init__(self, buffers: Iterable[Tensor] = ()) -> None:
        self.marks: dict[int, tuple[weakref.ref, Mark]] = {}
        self.fixed: dict[int, tuple[weakref.ref, Mark]] = {}
        self.shape: torch.Size | None = None  # of the last product
        self.soft: deque[weakref.ref[Soft]] = deque(maxlen=SOFT)  # those that may hold scores
        # Makes the account: of what a softmax was given, of weights that were changed since, of the product that they
        # go into and of the module of the softmax. Gives what takes the place of the product's result.
        self.hear: Callable[[Soft, Tensor | None, Weighing, nn.Module], Tensor] | None = None
        mark_buffers(self, buffers)

    def get(self, x: Any) -> Mark | None:
        if type(x) is Parameter:
            return PARAMETER
        found = self.marks.get(id(x)) or self.fixed.get(id(x))
        return found[1] if found is not None and found[0]() is x else None

    def put(self, result: Any, mark: Mark) -> None:
        marks = self.fixed if mark in (PARAMETER, BUFFER) else self.marks
        for x in tensors((result,)):
            marks[id(x)] = (weakref.ref(x, partial(_gone, marks, id(x))), mark)

    def forget(self, x: Any) -> None:
        self.marks.pop(id(x), None)
        self.fixed.pop(id(x), None)


PARAMETER, BUFFER = Mark("parameter"), Mark("buffer")


def mark_buffers(trace: Trace, buffers: Iterable[Tensor]) -> None:
    """Of one more model."""
    for buffer in buffers:
        trace.put(buffer, BUFFER)


def _gone(marks: dict, key: int, ref: weakref.ref) -> None:
    if key in marks and marks[key][0] is ref:
        del marks[key]


def tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among some values, and in lists of these."""
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from tensors(x)
