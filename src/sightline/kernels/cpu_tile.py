"""The kernel of the pass on the CPU (`cpu_tile.c`): compiled on the machine it runs on, once, if that has a C compiler.

Torch's operations do the same without it, each with a reading of its own. `SIGHTLINE_COMPILE=0` leaves it to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sightline.folders import cache_folder

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
_SECONDS = 60

# logs, height, width, first, stop, places, result, next, strip, strip_next, each, weights: see the source.
Kernel = Callable[..., None]


@functools.cache
def kernel() -> Kernel | None:
    """The kernel, or None where there is no compiler, or none that makes something that computes rightly."""
    if os.environ.get("SIGHTLINE_COMPILE") == "0":
        return None
    compiler = _compiler()
    if compiler is None or not SOURCE.exists():
        return None
    path = cache_folder() / "compiled" / f"cpu_tile-{_sum(compiler)}.so"
    for fresh in (False, True):
        with contextlib.suppress(OSError, AttributeError, subprocess.SubprocessError):
            if fresh or not path.exists():
                _compile(compiler, path)
            found = _load(path)
            if _is_right(found):
                return found
    return None


def _compiler() -> str | None:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _sum(compiler: str) -> str:
    """Another source, compiler or processor gets another file: a folder may be shared by several machines."""
    parts = [SOURCE.read_bytes(), repr((compiler, FLAGS, platform.machine(), platform.processor())).encode()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts.append("".join(sorted({line for line in lines if line.startswith(("model name", "flags"))})).encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _compile(compiler: str, path: Path) -> None:
    """Beside its place first, so that others never see half of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *FLAGS, "-o", str(made), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        made.replace(path)


def _load(path: Path) -> Kernel:
    found = ctypes.CDLL(str(path)).sightline_tile
    pointer, number = ctypes.c_void_p, ctypes.c_long
    found.argtypes = [pointer, number, number, *[pointer] * 4, number, pointer, number, number, pointer]
    found.restype = None
    return found


def _is_right(found: Kernel) -> bool:
    """Whether it gives what numpy gives, of a small tile."""
    height, width, each = 6, 21, 3
    logs = np.random.default_rng(0).uniform(-30, 0, (height, width)).astype(np.float32)
    places = np.arange(height, dtype=np.float32) * 4
    result, strip = np.zeros((4, height), np.float32), np.empty((height // each, width), np.float32)
    result[0] = -np.inf
    weights = np.empty_like(logs)
    first, stop = np.arange(height, dtype=np.int32), np.full(height, width - 2, np.int32)
    found(
        logs.ctypes.data, height, width, first.ctypes.data, stop.ctypes.data, places.ctypes.data,
        result.ctypes.data, height, strip.ctypes.data, width, each, weights.ctypes.data,
    )  # fmt: skip
    column = np.arange(width)
    seen = (column >= first[:, None]) & (column < stop[:, None])
    exact = np.where(seen, np.exp2(logs.astype(np.float64)), 0.0)
    far = np.abs(places[:, None] - column)
    sums = [np.where(seen, logs, -np.inf).max(-1), *((exact * x).sum(-1) for x in (logs, far, 1.0))]
    pixels = exact.reshape(-1, each, width).sum(1)
    pairs = [(weights, exact), (strip, pixels), *zip(result, sums, strict=True)]
    return all(np.allclose(got, want, rtol=1e-5, atol=1e-30) for got, want in pairs)
