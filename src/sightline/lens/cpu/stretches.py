"""Which keys every row sees, where that is one stretch of keys, perhaps with holes that are the same for all rows.

Most masks are of that kind: causal, windows, prefixes, padding, documents in order, and all of these together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from sightline.backends.call import Call


class Stretches(NamedTuple):
    """The first key of each row and the end, `[batch or 1, queries]`; neither ever falls from row to row."""

    first: np.ndarray
    stop: np.ndarray
    holes: Tensor | None  # [batch or 1, keys], True where a key between first and stop is hidden from all rows

    def clip(self, columns: slice) -> Stretches:
        """The part of every stretch that lies in some columns."""
        first, stop = (x.clip(columns.start, columns.stop) for x in (self.first, self.stop))
        return Stretches(first, stop, self.holes)


def stretches(call: Call) -> Stretches | None:
    """The stretches of a call's rows, or None if a row may see more than one."""
    s, device = call.sizes, torch.device("cpu")
    found = Stretches(np.zeros((1, s.queries), np.int64), np.full((1, s.queries), s.keys, np.int64), None)
    for rule in [] if call.mask is None else call.mask.conjuncts():
        both = rule.intervals(s.queries, s.keys, device)
        if both is not None:
            first, stop = (_per_batch(x, call).numpy() for x in both)
            part = Stretches(first, stop, None)
        else:
            real = rule.key_row(s.keys, device)
            if real is None:
                return None
            part = _of_padding(real, call)
        holes = part.holes if found.holes is None else found.holes
        if part.holes is not None and found.holes is not None:
            holes = found.holes | part.holes
        found = Stretches(np.maximum(found.first, part.first), np.minimum(found.stop, part.stop), holes)
    return found


def _of_padding(real: Tensor, call: Call) -> Stretches:
    """Padding at either end only shortens the stretches; what is between is holes."""
    real = _per_batch(real, call)
    keys = real.shape[-1]
    some = real.any(-1)
    first = torch.where(some, real.int().argmax(-1), 0)
    stop = torch.where(some, keys - real.flip(-1).int().argmax(-1), 0)
    between = torch.arange(keys, device="cpu")
    holes = ~real & (between >= first[:, None]) & (between < stop[:, None])
    rows = [x[:, None].expand(-1, call.sizes.queries).numpy() for x in (first, stop)]
    return Stretches(rows[0], rows[1], holes if bool(holes.any()) else None)


def _per_batch(x: Tensor, call: Call) -> Tensor:
    """`[*batch, any]` as `[batch or 1, any]`."""
    batch, length = call.sizes.batch, x.shape[-1]
    if all(size == 1 for size in x.shape[:-1]):
        return x.reshape(1, length)
    return x.expand(*batch, length).reshape(math.prod(batch), length)
