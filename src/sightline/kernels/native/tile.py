"""The kernel of the pass on the CPU (`tile.c`), as Python calls it; `build.py` says where it comes from.

Torch's operations do the same without it, each with a reading of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sightline import caches
from sightline.kernels.native.build import build
from sightline.kernels.native.maps import MapKernel
from sightline.kernels.native.maps import load as load_maps

# Cells from which on a kernel is worth the second that it takes to compile it, once on each machine.
CELLS = 1 << 18
# logs, height, width, first, stop, places, result, next, strip, strip_next, each, weights, weights_next, factors: see
# the source.
Kernel = Callable[..., None]


class Found(NamedTuple):
    """The kernel, None where there is none, and where it is from, or why it is not there."""

    kernel: Kernel | None
    said: str


@caches.memo("kernels.cpu_tile")
def found() -> Found:
    """The kernel of this machine, looked for once."""
    return Found(*build(_load))


def kernel() -> Kernel | None:
    """The kernel, or None where there is none that computes rightly."""
    return found().kernel


def maps() -> MapKernel | None:
    """The kernel of whole maps in the same library."""
    return getattr(kernel(), "maps", None)


def _load(path: Path) -> Kernel | None:
    """The kernel in a library, if it computes rightly."""
    library = ctypes.CDLL(str(path))
    tile = library.sightline_tile
    pointer, number = ctypes.c_void_p, ctypes.c_long
    tile.argtypes = [pointer, number, number, *[pointer] * 4, number, pointer, *[number] * 2, pointer, number, pointer]
    tile.restype = None
    tile.maps = load_maps(library)  # type: ignore[attr-defined]
    return tile if tile.maps is not None and _is_right(tile) else None  # type: ignore[attr-defined]


def _is_right(tile: Kernel) -> bool:
    """Whether it gives what numpy gives, of a small tile."""
    height, width, each = 6, 21, 3
    logs = np.random.default_rng(0).uniform(-30, 0, (height, width)).astype(np.float32)
    places = np.arange(height, dtype=np.float32) * 4
    result, strip = np.zeros((4, height), np.float32), np.empty((height // each, width), np.float32)
    result[0] = -np.inf
    weights = np.empty((height, width + 2), np.float32)
    factors = np.linspace(0.5, 1.0, height, dtype=np.float32)
    first, stop = np.arange(height, dtype=np.int32), np.full(height, width - 2, np.int32)
    tile(
        logs.ctypes.data, height, width, first.ctypes.data, stop.ctypes.data, places.ctypes.data,
        result.ctypes.data, height, strip.ctypes.data, width, each, weights.ctypes.data, width + 2, factors.ctypes.data,
    )  # fmt: skip
    column = np.arange(width)
    seen = (column >= first[:, None]) & (column < stop[:, None])
    exact = np.where(seen, np.exp2(logs.astype(np.float64)), 0.0)
    far = np.abs(places[:, None] - column)
    sums = [np.where(seen, logs, -np.inf).max(-1), *((exact * x).sum(-1) for x in (logs, far, 1.0))]
    left = exact * factors[:, None]
    pixels = left.reshape(-1, each, width).sum(1)
    pairs = [(weights[:, :width], left), (strip, pixels), *zip(result, sums, strict=True)]
    return all(np.allclose(got, want, rtol=1e-5, atol=1e-30) for got, want in pairs)
