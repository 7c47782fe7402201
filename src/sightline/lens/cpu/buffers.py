"""Memory to work in and for results, kept from one pass to the next; what is worked in has large pages if possible.

A tile fills some hundred pages of the usual size. In a virtual machine, where finding a page takes two searches
instead of one, a pass over tiles is a tenth faster in pages of 2 MiB. But it takes the system longer to give pages than
they save in one pass, and a picture's pages a tenth of the pass that fills them: so some are not given back. Where
memory has been in use for a while, large pages have to be made by moving others away, which takes five times as long
as filling small ones: results, which are filled once and stay, have those.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref

import numpy as np
import torch
from torch import Tensor

from sightline import caches

_PAGE = 1 << 21
# Pieces of memory that are kept of each kind, at most, and their largest size.
_MOST, _LARGEST = 8, 8 * _PAGE

# Bytes from which on zeros have memory of their own.
_OWN = 1 << 20

# Memory to work in, and memory of results, which come in other sizes.
_kept: list[mmap.mmap] = caches.held("lens.buffers", [], _MOST)
_kept_results: list[mmap.mmap] = caches.held("lens.results", [], _MOST)


def zeros(*shape: int, dtype: torch.dtype, cleared: bool = True) -> Tensor:
    """Zeros, or anything if not `cleared`. New memory is touched only where it is written to.

    Large ones have memory of their own. Results that stay, made between what a model makes and frees, would leave holes
    in the heap that nothing else fits into: a tenth of a small model's memory. When they are gone, others get it.

    >>> zeros(2, 2, dtype=torch.float32)
    tensor([[0., 0.],
            [0., 0.]])
    """
    count, number = math.prod(shape), np.float64 if dtype == torch.float64 else np.float32
    if count * dtype.itemsize < _OWN:
        return torch.from_numpy(np.zeros(shape, number))
    memory, fresh = _take(count * dtype.itemsize, _kept_results, large=False)
    numbers = np.frombuffer(memory, number, count)
    # The tensor holds this array, and the array the memory: when the last view of the tensor is gone, so is the array.
    weakref.finalize(numbers, _keep, memory, _kept_results).atexit = False
    tensor = torch.from_numpy(numbers).view(shape)
    return tensor if fresh or not cleared else tensor.zero_()


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
    """Give back the memory of results that are gone, and pages in holes of the heap, if the C library knows how."""
    _kept_results.clear()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # other systems, other C libraries
        ctypes.CDLL(None).malloc_trim(0)


class Block:
    """Some numbers, of any value at first. Nothing may look at them after `free`."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self._memory, _ = _take(-(-count * dtype.itemsize // _PAGE) * _PAGE, _kept, large=True)
        self.numbers: Tensor = torch.frombuffer(self._memory, dtype=dtype, count=count)

    def free(self) -> None:
        """Keep the memory for the next block."""
        _keep(self._memory, _kept)


def _take(size: int, kept: list[mmap.mmap], large: bool) -> tuple[mmap.mmap, bool]:
    """Memory that was kept, the smallest that is large enough and not much larger; or else new, which is zeros."""
    most = max(1.25 * size, -(-size // _PAGE) * _PAGE)
    fitting = [memory for memory in kept if size <= len(memory) <= most]
    for memory in sorted(fitting, key=len):
        with contextlib.suppress(ValueError):  # another thread was faster
            kept.remove(memory)
            return memory, False
    return _new(size, large), True


def _keep(memory: mmap.mmap, kept: list[mmap.mmap]) -> None:
    """Keep memory that nobody uses any more, and of all that is kept what was used last."""
    if len(memory) <= _LARGEST:
        kept.append(memory)
        while len(kept) > _MOST:
            with contextlib.suppress(IndexError):
                kept.pop(0)


def _new(size: int, large: bool) -> mmap.mmap:
    """Zeros, in large pages or in small ones. What is never touched takes no memory."""
    # Only whole large pages begin where one can be.
    memory = _anonymous(-(-size // _PAGE) * _PAGE)
    if large:
        with contextlib.suppress(OSError, AttributeError):  # a system without large pages
            memory.madvise(mmap.MADV_HUGEPAGE, 0, size // _PAGE * _PAGE)
    return memory


def _anonymous(size: int) -> mmap.mmap:
    """Memory straight from the system, of this process alone: a fork must not write into it."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
