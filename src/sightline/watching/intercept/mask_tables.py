"""Tensors that other people's code uses as masks, read once per tensor: which of them are causal, padding, or a bias.

torch's attention takes booleans (True = may attend) or numbers that are added to the scores. A table of 0 and -inf
(or the least number there is) is a mask; a table whose rows are all alike is padding; a lower triangle is causal. All
else stays as it came.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sightline.backends.empty_rows import find
from sightline.masks import Mask, causal, dense, padding

if TYPE_CHECKING:
    from sightline.watching.intercept.transformers_masks import Span


class Table(NamedTuple):
    """What a tensor means: a mask, or a bias, and which rows may see something (None: all)."""

    mask: Mask | None
    bias: Tensor | None
    sees: Tensor | None


class Rule(NamedTuple):
    """What a table was written from: a mask for the keys of a span; of booleans, which rows see something."""

    mask: Mask | None
    span: Span
    sees: Tensor | None


class Tables:
    """What is known of the latest tensors: layers share their masks, so each is looked at once. No tensor is held."""

    def __init__(self, most: int = 8) -> None:
        self._kept: list[tuple[weakref.ref[Tensor], int, tuple[int, ...], Table]] = []
        self._told: list[tuple[weakref.ref[Tensor], int, Rule]] = []
        self._most = most
        self.changing = False  # whether a table was copied or changed on its way to attention

    def tell(self, tensor: Tensor, mask: Mask | None, span: Span) -> None:
        """A table that was written from a rule."""
        sees = _sees(tensor[..., : span.keys]) if tensor.dtype == torch.bool else None
        rule = Rule(mask, span, sees)
        self._told = [(weakref.ref(tensor), _version(tensor), rule), *self._told][: self._most]

    def follow(self, tensor: object, copy: Tensor) -> None:
        """A copy of a table means what the table means."""
        for known, at, rule in self._told if copy is not tensor else []:
            if isinstance(tensor, Tensor) and known() is tensor and at == _version(tensor):
                self._told = [(weakref.ref(copy), _version(copy), rule), *self._told][: self._most]
                self.changing = True
                return

    def forget(self, tensor: object) -> None:
        """A tensor that was changed."""
        known = [one[0] for one in self._told] + [one[0] for one in self._kept]
        self.changing |= any(one() is tensor for one in known)
        self._told = [one for one in self._told if one[0]() is not tensor]
        self._kept = [one for one in self._kept if one[0]() is not tensor]

    def rule(self, tensor: object, q: Tensor, k: Tensor) -> Rule | None:
        """The rule of a table, if it is still the one that was told, and was made for such queries and keys."""
        for known, at, rule in self._told:
            if isinstance(tensor, Tensor) and known() is tensor and at == _version(tensor):
                sizes = (rule.span.batch, rule.span.queries, tensor.shape[-1])
                return rule if q.dim() == 4 and sizes == (q.shape[0], q.shape[-2], k.shape[-2]) else None
        return None

    def read(self, tensor: Tensor, shape: tuple[int, ...]) -> Table:
        """What a mask tensor means for a call of shape (batch, heads, queries, keys)."""
        version = _version(tensor)
        for known, at, of, table in self._kept:
            if known() is tensor and at == version and of == shape:
                return table
        table = read(tensor, shape)
        self._kept = [(weakref.ref(tensor), version, shape, table), *self._kept][: self._most]
        return table

    def clear(self) -> None:
        self._kept, self._told = [], []


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version


@torch.no_grad()
def read(tensor: Tensor, shape: tuple[int, ...]) -> Table:
    """What a mask tensor means for a call of shape (batch, heads, queries, keys)."""
    tensor = tensor.detach()
    if tensor.dtype != torch.bool:
        # The least number hides as -inf does, except in a row of nothing else: that one becomes uniform.
        hidden = tensor <= torch.finfo(tensor.dtype).min / 2
        infinite = tensor == -torch.inf
        others = bool((tensor.masked_fill(hidden, 0) != 0).any())
        if others or bool((hidden.all(-1) & ~infinite.all(-1)).any()):
            return Table(None, tensor, _seeing(tensor))
        tensor = ~hidden
    if bool(tensor.all()):
        return Table(None, None, None)
    while tensor.dim() < 4:
        tensor = tensor[None]
    *_, queries, keys = shape
    sees = _sees(tensor)
    rows = tensor.shape[-2]
    if rows == 1 or (queries > 1 and bool((tensor == tensor[..., :1, :]).all())):
        one = tensor[..., 0, :]  # [*batch, heads, keys]
        if bool((one == one[..., :1, :]).all()) and one.shape[-1] == keys:
            real = one[..., 0, :]
            return Table(padding(real if real.dim() == 2 else real.expand(*shape[:-3], keys)), None, sees)
    if rows == queries == keys and tensor.shape[-1] == keys:
        triangle = torch.ones(queries, keys, dtype=torch.bool, device=tensor.device).tril()
        if bool((tensor == triangle).all()):
            return Table(causal(), None, None)
    return Table(dense(tensor), None, sees)


def _seeing(bias: Tensor) -> Tensor | None:
    """Which rows of what is added to scores see something, as torch's kernels have it."""
    blind = find(bias)
    return ~blind if bool(blind.any()) else None


def _sees(visible: Tensor) -> Tensor | None:
    """Which rows see something, `[..., rows]`; None if all do."""
    some = visible.any(-1)
    return None if bool(some.all()) else some
