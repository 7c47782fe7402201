"""The weights of one map on a CPU, tile by tile, in memory that is used again and with as few readings as there can be.

The number of a row goes into the product, and logarithms have the base 2: torch's exp2 is twice as fast as its exp.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.backends.tiles import Columns, scaled_rows
from sightline.lens.levels import level_of
from sightline.lens.readings import memory_for
from sightline.lens.tiles.accumulators import Seen

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.levels import Levels

_LOG2_E = math.log2(math.e)


def is_lean(call: Call) -> bool:
    """Whether a call is one map of a plain softmax on a CPU, sinks or not."""
    return (
        call.device.type == "cpu"
        and call.q.dim() == 3
        and call.sizes.heads == 1
        and call.normalizer.is_softmax
        and call.softcap is None
        and call.bias is None
    )


class Lean:
    """Makes the weights of tiles of one map; those of a tile are written over by the next one's."""

    def __init__(self, levels: Levels) -> None:
        self.levels = levels
        self._memory: Tensor | None = None

    def band(self, rows: slice) -> None:
        """A new band of rows begins, none of which is to be measured."""
        levels = self.levels
        level = level_of(levels.row[..., rows, None])
        if levels.taken is not None:
            level = level + levels.taken[..., rows, None]
        self._rows, self._level = rows, level * -_LOG2_E
        self._q = scaled_rows(levels.call, rows) * _LOG2_E

    def see(self, columns: Columns) -> Seen:
        """The weights of one tile."""
        call, q, rows, span = self.levels.call, self._q, self._rows, columns.span
        k = call.k[..., span, :].to(q.dtype)
        self._memory, out = memory_for(self._memory, (1, q.shape[1], k.shape[1]), q)
        logs = torch.baddbmm(self._level, q, k.mT, out=out)
        visible = None
        if columns.mixed:
            assert call.mask is not None
            visible = call.mask.tile(rows, span, call.sizes.queries, call.sizes.keys, call.device)
            logs.masked_fill_(~visible, -torch.inf)
        return Seen(rows, span, logs.exp2_(), visible)
