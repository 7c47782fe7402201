"""Hiding cells of a tile by arithmetic, which runs at the speed of the memory; filling by a mask is ten times slower.

A cell is hidden where its column lies beyond its row's limit. Their difference, times a large number, is hugely
negative there and hugely positive elsewhere: the smaller of it and a logarithm is what the logarithm should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sightline.lens.cpu.stretches import Stretches

# Logarithms of hidden cells are half of this or less: in sums of w log w 0 times a large number, not 0 times -inf.
LEAST = -1e30


class Shade(NamedTuple):
    """Some columns of a tile, in which cells are hidden where `ahead - behind`, `[rows, columns]`, is negative."""

    columns: slice
    ahead: Tensor
    behind: Tensor

    def hide(self, logs: Tensor, spare: Tensor, finite: bool) -> None:
        """Hidden cells of a tile of logarithms become hugely negative; `spare` is memory of its size."""
        part = logs[:, self.columns]
        if finite:
            torch.minimum(part, self._margin(part, spare), out=part)
        else:
            # The smaller of NaN and anything is NaN.
            part.masked_fill_(self.ahead < self.behind, LEAST)

    def mark(self, weights: Tensor, spare: Tensor) -> None:
        """Hidden cells of a tile of weights, which are 0, become hugely negative."""
        part = weights[:, self.columns]
        part += self._margin(part, spare).clamp_max_(0.0)

    def _margin(self, part: Tensor, spare: Tensor) -> Tensor:
        margin = spare.view(-1)[: part.numel()].view(part.shape)
        return torch.sub(self.ahead, self.behind, out=margin)


class Limits(NamedTuple):
    """The limits of all rows, `[batch or 1, queries, 1]`, and positions of keys, both times a large number."""

    first: Tensor
    stop: Tensor
    keys: Tensor
    holes: Tensor | None  # negative where a key is hidden from all rows, [batch or 1, keys]

    @staticmethod
    def of(seen: Stretches, keys: int, dtype: torch.dtype) -> Limits:
        # A limit lies between two keys.
        first, stop = ((torch.from_numpy(x).to(dtype) - 0.5).mul_(-LEAST)[..., None] for x in seen[:2])
        holes = None if seen.holes is None else (0.5 - seen.holes.to(dtype)).mul_(-LEAST)
        return Limits(first, stop, torch.arange(keys, dtype=dtype, device="cpu").mul_(-LEAST), holes)
