"""What is made from a mask is kept: all layers of a model, and all steps of a generation, ask for the same again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

from sightline import caches
from sightline.masks import Mask
from sightline.masks.changes import may_keep

T = TypeVar("T")

# Results that are kept.
MOST = 8


class Kept(Generic[T]):
    """A function of a mask, sizes and a device, with the last few of its results.

    >>> from sightline.masks import causal
    >>> table = Kept(lambda mask, queries, keys: mask.to_dense(queries, keys))
    >>> table(causal(), 3, 3) is table(causal(), 3, 3)
    True
    """

    def __init__(self, make: Callable[..., T], most: int = MOST) -> None:
        self._make, self._most = make, most
        self._results: dict[Hashable, tuple[Mask, T]] = {}

    def __len__(self) -> int:
        return len(self._results)

    def clear(self) -> None:
        """Let all results go."""
        self._results.clear()

    def __call__(self, mask: Mask, *rest: Hashable) -> T:
        state = mask.state() if may_keep() else None
        if state is None:
            return self._make(mask, *rest)
        key = (state, *rest)
        found = self._results.get(key)
        if found is None:
            with torch.inference_mode(False):  # what is made in inference mode could not be trained with later
                made = self._make(mask, *rest)
            # With its mask, so that no other tensor gets the identity of one of the mask's.
            found = caches.put(self._results, key, (mask, made), self._most)
        return found[1]
