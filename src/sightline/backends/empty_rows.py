"""Rows of a table that see no key: their output is 0, which not every kernel of a GPU gives by itself.

Whether a table has such rows is asked once, without waiting for the GPU: until the answer is here, and wherever it
could become wrong, they are set to 0 in every call.
"""

from __future__ import annotations

import math
import weakref

import torch
from torch import Tensor

from sightline import caches
from sightline.masks.changes import counted, may_keep


class _Asked:
    """What is known of one table as it was."""

    __slots__ = ("rows", "some", "table", "there", "version")

    def __init__(self, table: Tensor) -> None:
        self.table, self.version = weakref.ref(table), table._version
        self.rows: Tensor | None = find(table)
        some = self.rows.any()
        self.there: torch.cuda.Event | None = None
        if table.is_cuda:
            some = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True).copy_(some, non_blocking=True)
            self.there = torch.cuda.Event()
            self.there.record(torch.cuda.current_stream(table.device))
        self.some = some  # one boolean, perhaps still on its way to the CPU
        self.look()

    def look(self) -> None:
        """Forget the rows if the answer is here, and there are none."""
        if self.there is None or self.there.query():
            self.there = None
            self.rows = self.rows if self.some else None


# Tables that are remembered.
_MOST = 16
_asked: dict[int, _Asked] = caches.held("backends.empty_rows", {}, _MOST)


def blind_rows(table: Tensor, keep: bool | None = None) -> Tensor | None:
    """Which rows of a table (booleans, or what is added to the scores) see no key; None if there surely are none.

    `keep` is what `may_keep` says, if it was asked already.

    >>> blind_rows(torch.tensor([[True, False], [False, False]]))
    tensor([False,  True])
    >>> blind_rows(torch.ones(2, 2, dtype=torch.bool)) is None
    True
    """
    if not (may_keep() if keep is None else keep) or not counted(table) or _recorded(table):
        return find(table)
    known = _asked.get(id(table))
    if known is None or known.table() is not table or known.version != table._version:
        with torch.inference_mode(False), torch.no_grad():
            known = _Asked(table)
        caches.put(_asked, id(table), known, _MOST)
    elif known.there is not None:
        known.look()
    return known.rows


def _recorded(table: Tensor) -> bool:
    """Whether the call becomes part of a CUDA graph: the table may be another one when it is played."""
    return table.is_cuda and bool(torch._C._cuda_isCurrentStreamCapturing())


# Torch's fused CUDA kernels count in logarithms of base 2, in which numbers below this are infinite: a row of nothing
# else gives 0 there.
LEAST_ON_CUDA = torch.finfo(torch.float32).min * math.log(2)


def find(table: Tensor) -> Tensor:
    """Rows without a visible key."""
    if table.dtype == torch.bool:
        return ~table.any(-1)
    least = LEAST_ON_CUDA if table.is_cuda and table.dtype != torch.float16 else -torch.inf
    return ~(table > least).any(-1)
