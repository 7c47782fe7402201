"""Rows of a table that see no key: their output is 0, which not every kernel of a GPU gives by itself.

Whether a table has such rows is asked once, without waiting for the GPU: until the answer is here, and wherever it
could become wrong, they are set to 0 in every call.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.masks.base import may_keep


class _Asked(NamedTuple):
    table: weakref.ref[Tensor]
    version: int
    rows: Tensor
    some: Tensor  # one boolean, on its way to the CPU
    there: torch.cuda.Event | None


_asked: dict[int, _Asked] = {}
# Tables that are remembered.
_MOST = 16


def blind_rows(table: Tensor) -> Tensor | None:
    """Which rows of a table (booleans, or what is added to the scores) see no key; None if there surely are none.

    >>> blind_rows(torch.tensor([[True, False], [False, False]]))
    tensor([False,  True])
    >>> blind_rows(torch.ones(2, 2, dtype=torch.bool)) is None
    True
    """
    if not may_keep() or table.is_inference() or _capturing(table):
        return find(table)
    known = _asked.get(id(table))
    if known is None or known.table() is not table or known.version != table._version:
        known = _ask(table)
    if known.there is not None and not known.there.query():
        return known.rows
    return known.rows if known.some else None


def find(table: Tensor) -> Tensor:
    """Rows without a visible key."""
    return ~(table if table.dtype == torch.bool else table > -torch.inf).any(-1)


def _ask(table: Tensor) -> _Asked:
    with torch.inference_mode(False), torch.no_grad():
        rows = find(table)
        some, there = rows.any(), None
        if table.is_cuda:
            some = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(some, non_blocking=True)
            there = torch.cuda.Event()
            there.record(torch.cuda.current_stream(table.device))
    while len(_asked) >= _MOST:
        _asked.pop(next(iter(_asked)), None)
    _asked[id(table)] = known = _Asked(weakref.ref(table), table._version, rows, some, there)
    return known


def _capturing(table: Tensor) -> bool:
    """Whether the call is being recorded, and the table may be another one when it is played."""
    return table.is_cuda and torch.cuda.is_current_stream_capturing()
