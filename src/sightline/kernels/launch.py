"""Kernels of which one version does every length, and launching them by the names of their arguments.

Triton makes a version of a kernel for every constant, and by itself also for numbers that are 1 or multiples of 16, for
numbers beyond 32 bits, and for memory that is not aligned: a text of another length would then be seconds of
compiling. A `kernel` of ours declares the type of each number, and nothing else about it counts; memory that is read
in wide pieces comes aligned (`layout.aligned`), the rest (`unaligned`) is read as it lies.

So a launch is found again by its constants and the types of its memory alone: Triton need not look at its arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel

from sightline import caches

T = TypeVar("T")

# Versions of kernels that are found without Triton.
_MOST = 4096
_known: dict[tuple, CompiledKernel] = caches.held("kernels.launches", {}, _MOST)


def kernel(unaligned: Iterable[str] = ()) -> Callable[[Callable], Any]:
    """Declare a kernel: its numbers are annotated with their types, its constants are in capitals, `tl.constexpr`.

    `unaligned` names memory that may begin anywhere.
    """

    def declare(function: Callable) -> Any:
        parameters = inspect.signature(function).parameters.values()
        numbers = [p.name for p in parameters if "int" in str(p.annotation) or "float" in str(p.annotation)]
        made = triton.jit(do_not_specialize=numbers, do_not_specialize_on_alignment=list(unaligned))(function)
        made.constants = [p.name for p in parameters if "constexpr" in str(p.annotation)]
        made.given = [p.name for p in parameters if "constexpr" not in str(p.annotation)]
        return made

    return declare


def launch(
    kernel: Any, grid: tuple[int, ...], given: dict[str, Any], constants: dict[str, Any], **options: Any
) -> None:
    """Launch a kernel on what it is given by name, tensors and numbers; the options are the compiler's.

    A tensor that is None is not read, and something else is handed over in its place.
    """
    some = next(x for x in given.values() if isinstance(x, Tensor))
    arguments = [some if given[name] is None else given[name] for name in kernel.given]
    settings = [constants[name] for name in kernel.constants]
    types = [_type(x) for x in arguments if not isinstance(x, int | float)]
    grid = (*grid, 1, 1)[:3]
    key = (kernel, some.get_device(), *settings, *options.items(), *types)
    known = _known.get(key)
    if known is not None:
        known[grid](*arguments, *settings)
        return
    compiled = kernel[grid](*arguments, *settings, **options)
    if isinstance(compiled, CompiledKernel):  # the interpreter gives none
        caches.put(_known, key, compiled, _MOST)


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


def _type(given: Any) -> Any:
    """What a version of a kernel may depend on: the dtype of memory and whether it is aligned, a descriptor's tiles."""
    if isinstance(given, Tensor):
        return given.dtype if given.data_ptr() % 16 == 0 else (given.dtype, "unaligned")
    return given.base.dtype, *given.block_shape
