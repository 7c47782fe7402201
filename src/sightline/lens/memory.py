"""Memory to work in: in large pages where the system has them, and kept from one pass to the next.

A tile fills some hundred pages of the usual size. In a virtual machine, where finding a page takes two searches
instead of one, a pass over tiles is a tenth faster in pages of 2 MiB. But it takes the system longer to give such pages
than they save in one pass: so they are not given back.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_PAGE = 1 << 21
# Blocks that are kept, at most, and their largest size.
_MOST, _LARGEST = 8, 8 * _PAGE

_kept: list[mmap.mmap] = []


class Block:
    """Some numbers, of any value at first. Nothing may look at them after `free`."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        size = -(-count * dtype.itemsize // _PAGE) * _PAGE
        memory = None
        if size <= _LARGEST:
            with contextlib.suppress(IndexError):  # another thread may be faster
                memory = _kept.pop()
        if memory is None or len(memory) < size:
            memory = _new(size)
        self._memory = memory
        self.numbers: Tensor = torch.frombuffer(memory, dtype=dtype, count=count)

    def free(self) -> None:
        """Keep the memory for the next block."""
        if len(_kept) < _MOST and len(self._memory) <= _LARGEST:
            _kept.append(self._memory)


def _new(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    # Private, because shared memory has other rules.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
