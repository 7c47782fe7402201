"""Whether the steps of a generation belong together: they do while the cached keys stay where they were.

Beam search moves sequences to other rows between steps, assisted decoding takes tokens back. The rows that were seen
are then of other sequences, or of tokens that are no more. Nothing of the model is asked: each key that was seen is
remembered by one number, and compared when it comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.watch.where import inside

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# What transformers calls its ways to generate that move or take back what is in the cache.
BEAMS = "beam search"
_SEARCHES = {"_beam_search": BEAMS, "_assisted_decoding": "assisted decoding"}

MOVED = "its cache was reordered or changed between two steps"
CROPPED = "its cache was cropped between two steps"
APART = "its steps do not join"
BATCH = "the number of sequences changed between two steps"


def search() -> str | None:
    """The search of transformers that is under way, if it does more than add tokens."""
    return next((what for name, what in _SEARCHES.items() if inside(name, "transformers")), None)


@torch.no_grad()
def marks(k: Float[Tensor, "batch heads keys dim"]) -> Int[Tensor, "batch keys"]:
    """One number for each key, of all its bits: the same key has the same, whatever stands around it.

    >>> k = torch.randn(2, 3, 5, 8)
    >>> torch.equal(marks(k)[:, :4], marks(k[:, :, :4].clone()))
    True
    >>> torch.equal(marks(k), marks(k.flip(0)))
    False
    """
    size = k.element_size()
    # Several numbers are added up as one where they fill 8 bytes: their sums lie side by side.
    together = 8 // size if k.shape[-1] * size % 8 == 0 else 1
    if k.stride(-1) != 1 or any(step % together for step in (*k.stride()[:-1], k.storage_offset())):
        k = k.contiguous()
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size * together]
    return k.view(whole).sum((1, 3), dtype=torch.int64)


class Follow:
    """The marks of each layer's keys, and whether some have changed in this pass."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, Tensor]] = {}  # of each layer: its first key, and the marks from there on
        self.changed: list[Tensor] = []

    def step(self, name: str, k: Tensor, first_key: int, cross: bool) -> None:
        """Take in the keys of a call; what was there before is compared, and the answer is left for `moved`."""
        new = marks(k)
        if name in self.known:
            first, old = self.known[name]
            start = max(first, first_key)  # a window has let the first keys go
            old, again = old[:, start - first :], new[:, start - first_key :]
            if again.shape[1] < old.shape[1] or (cross and again.shape != old.shape):
                self.changed.append(torch.ones((), dtype=torch.bool))
            else:
                self.changed.append((again[:, : old.shape[1]] != old).any())
        self.known[name] = first_key, new

    def moved(self) -> bool:
        """Whether keys changed since this was asked last; on a GPU it waits for the pass."""
        changed, self.changed = self.changed, []
        return bool(torch.stack([x.cpu() for x in changed]).any()) if changed else False

    def restart(self) -> None:
        self.known, self.changed = {}, []
