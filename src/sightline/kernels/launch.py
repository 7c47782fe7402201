"""Launching a kernel again, without looking at all of its arguments anew.

For every launch Triton looks at each argument, to see which compiled version of the kernel fits. A kernel with many
arguments takes the host longer to launch than a short context takes the device. A launch whose arguments are like those
of an earlier one, in all that Triton could tell them apart by, gets the version that one got.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

_known: dict[tuple, Callable[..., None]] = {}
# Launches that are remembered. Lengths are part of them: a generation has a new one for every token.
_MOST = 256


def launch(
    kernel: Any, grid: tuple[int, int, int], tensors: tuple, numbers: tuple, settings: tuple, options: tuple = ()
) -> None:
    """Launch a kernel whose arguments are tensors, then numbers, then constexprs; the options are the compiler's."""
    key = (kernel, grid, _device(), numbers, settings, options, *map(_traits, tensors))
    again = _known.get(key)
    if again is not None:
        again(*tensors, *numbers, *settings)
        return
    compiled = kernel[grid](*tensors, *numbers, *settings, **dict(options))
    if isinstance(compiled, CompiledKernel):  # the interpreter gives none
        while len(_known) >= _MOST:
            _known.pop(next(iter(_known)), None)
        _known[key] = compiled[grid]


def _device() -> int:
    """The device that kernels go to; -1 where there is none, for the interpreter."""
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def _traits(given: Any) -> tuple:
    """All that a version of a kernel may depend on: of memory its kind and place, of a descriptor its tiles too."""
    if isinstance(given, Tensor):
        return given.dtype, given.data_ptr() % 256
    return given.base.dtype, *given.shape, *given.strides, *given.block_shape
