"""Launching a kernel again, without looking at all of its arguments anew.

For every launch Triton looks at each argument, to see which compiled version of the kernel fits. A kernel with many
arguments takes the host longer to launch than a short context takes the device. A launch whose arguments are like those
of an earlier one, in all that Triton could tell them apart by, gets the version that one got.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

T = TypeVar("T")

_known: dict[tuple, Callable[..., None]] = {}
# Launches that are remembered. Lengths are part of them: a generation has a new one for every token.
_MOST = 256


def launch(
    kernel: Any, grid: tuple[int, int, int], tensors: tuple, numbers: tuple, settings: tuple, options: tuple = ()
) -> None:
    """Launch a kernel whose arguments are tensors, then numbers, then constexprs; the options are the compiler's."""
    key = (kernel, grid, tensors[0].get_device(), numbers, settings, options, *map(_traits, tensors))
    again = _known.get(key)
    if again is not None:
        again(*tensors, *numbers, *settings)
        return
    compiled = kernel[grid](*tensors, *numbers, *settings, **dict(options))
    if isinstance(compiled, CompiledKernel):  # the interpreter gives none
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = compiled[grid]


def on_its_device(function: Callable[..., T]) -> Callable[..., T]:
    """A function that runs on the device of its first tensor.

    Triton launches on the current device, wherever the arguments lie; of a model over several GPUs all layers but the
    first lie elsewhere.
    """

    @functools.wraps(function)
    def run(first: Tensor, *rest: Any, **options: Any) -> T:
        if not first.is_cuda or first.get_device() == torch.cuda.current_device():
            return function(first, *rest, **options)
        with torch.cuda.device(first.device):
            return function(first, *rest, **options)

    return run


def _traits(given: Any) -> tuple:
    """All that a version of a kernel may depend on: of memory its kind and place, of a descriptor its tiles too."""
    if isinstance(given, Tensor):
        return given.dtype, given.data_ptr() % 256
    return given.base.dtype, *given.shape, *given.strides, *given.block_shape
