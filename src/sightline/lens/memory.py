"""Memory to work in: in large pages where the system has them, and kept from one pass to the next.

A tile fills some hundred pages of the usual size. In a virtual machine, where finding a page takes two searches
instead of one, a pass over tiles is a tenth faster in pages of 2 MiB. But it takes the system longer to give such pages
than they save in one pass: so they are not given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap

import numpy as np
import torch
from torch import Tensor

_PAGE = 1 << 21
# Blocks that are kept, at most, and their largest size.
_MOST, _LARGEST = 8, 8 * _PAGE

# Bytes from which on zeros have memory of their own.
_OWN = 1 << 20

_kept: list[mmap.mmap] = []


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is touched only where it is written to.

    Large ones have memory of their own. Results that stay, made between what a model makes and frees, would leave holes
    in the heap that nothing else fits into: a tenth of a small model's memory.

    >>> zeros(2, 2, dtype=torch.float32)
    tensor([[0., 0.],
            [0., 0.]])
    """
    count = math.prod(shape)
    if count * dtype.itemsize < _OWN:
        return torch.from_numpy(np.zeros(shape, np.float64 if dtype == torch.float64 else np.float32))
    memory = _anonymous(count * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors on the CPU, of which the small ones are copied into one piece of memory of their own.

    For results that stay while a model goes on, for the same reason as `zeros`.

    >>> together({"a": torch.ones(2), "b": torch.arange(3)})
    {'a': tensor([1., 1.]), 'b': tensor([0, 1, 2])}
    """
    small = {name: t.to("cpu") for name, t in tensors.items() if 0 < t.numel() * t.element_size() < _OWN}
    sizes = [-(-t.numel() * t.element_size() // 64) * 64 for t in small.values()]
    if not small:
        return {name: tensor.to("cpu") for name, tensor in tensors.items()}
    pieces = torch.frombuffer(_anonymous(sum(sizes)), dtype=torch.uint8).split(sizes)
    for (name, tensor), piece in zip(small.items(), pieces, strict=True):
        used = piece[: tensor.numel() * tensor.element_size()]
        small[name] = used.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return {name: small.get(name, tensor).to("cpu") for name, tensor in tensors.items()}


def trim() -> None:
    """Give the pages in the holes of the heap back to the system, where the C library knows how to."""
    with contextlib.suppress(OSError, TypeError, AttributeError):  # other systems, other C libraries
        ctypes.CDLL(None).malloc_trim(0)


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
    memory = _anonymous(size)
    with contextlib.suppress(OSError, AttributeError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _anonymous(size: int) -> mmap.mmap:
    """Memory straight from the system, of this process alone: a fork must not write into it."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
