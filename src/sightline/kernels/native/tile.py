"""The kernel of the pass on the CPU (`tile.c`): compiled on the machine it runs on, once, if that has a C compiler.

Torch's operations do the same without it, each with a reading of its own. `SIGHTLINE_COMPILE=0` leaves it to them.
It does as many numbers at once as the processor's registers hold; `SIGHTLINE_LANES` (4, 8, 16) says otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sightline import caches
from sightline.errors import InputError
from sightline.folders import cache_folder

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-Wno-psabi")
LANES = (4, 8, 16)
_SECONDS = 60

# logs, height, width, first, stop, places, result, next, strip, strip_next, each, weights, factors: see the source.
Kernel = Callable[..., None]


@caches.memo("kernels.cpu_tile")
def kernel() -> Kernel | None:
    """The kernel, or None where there is no compiler, or none that makes something that computes rightly."""
    if os.environ.get("SIGHTLINE_COMPILE") == "0":
        return None
    # A home that cannot be found, a folder that cannot be written to, a compiler that fails: torch does it then.
    with contextlib.suppress(OSError, RuntimeError, AttributeError, subprocess.SubprocessError):
        compiler = _compiler()
        if compiler is None:
            return None
        folder = cache_folder() / f"compiled-{_user()}"
        flags = (*FLAGS, f"-DLANES={lanes()}")
        path = folder / f"cpu_tile-{_sum(compiler, flags)}.so"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(folder):
            return None
        return _kept(path) or _compiled(compiler, flags, path)
    return None


def lanes() -> int:
    """How many numbers the kernel does at once."""
    asked = os.environ.get("SIGHTLINE_LANES")
    if asked:
        if asked not in map(str, LANES):
            raise InputError(
                "SIGHTLINE_LANES is how many numbers are done at once", expected="4, 8 or 16", got=asked,
                        hint="leave it out: the processor's own width is taken"
            )  # fmt: skip
        return int(asked)
    flags = _flags()
    return 16 if "avx512f" in flags else 8 if "avx2" in flags else 4


def _flags() -> frozenset[str]:
    """The instructions that the processor says it has."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.split())
    return frozenset()


def _compiler() -> str | None:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written it: what is loaded is run."""
    there = path.stat()
    return there.st_uid == _user() and not there.st_mode & 0o022


def _sum(compiler: str, flags: tuple[str, ...]) -> str:
    """Another source, compiler or processor gets another file: a folder may be shared by several machines."""
    parts = [SOURCE.read_bytes(), repr((compiler, flags, platform.machine(), platform.processor())).encode()]
    with contextlib.suppress(OSError):
        # Names and instructions of the processor, as different architectures call them, but no clock rates.
        names = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa", "uarch", "cpu\t")
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts.append("".join(sorted({line for line in lines if line.startswith(names)})).encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _kept(path: Path) -> Kernel | None:
    """The kernel that was compiled before, if it is there and whole."""
    with contextlib.suppress(OSError, AttributeError):
        if _is_ours(path):
            return _load(path)
    return None


def _compiled(compiler: str, flags: tuple[str, ...], path: Path) -> Kernel | None:
    """Compiled and tried beside its place first, so that others never see half of it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *flags, "-o", str(made), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        made.chmod(0o700)
        found = _load(made)
        if found is not None:
            made.replace(path)
        return found


def _load(path: Path) -> Kernel | None:
    """The kernel in a library, if it computes rightly."""
    found = ctypes.CDLL(str(path)).sightline_tile
    pointer, number = ctypes.c_void_p, ctypes.c_long
    found.argtypes = [pointer, number, number, *[pointer] * 4, number, pointer, number, number, pointer, pointer]
    found.restype = None
    return found if _is_right(found) else None


def _is_right(found: Kernel) -> bool:
    """Whether it gives what numpy gives, of a small tile."""
    height, width, each = 6, 21, 3
    logs = np.random.default_rng(0).uniform(-30, 0, (height, width)).astype(np.float32)
    places = np.arange(height, dtype=np.float32) * 4
    result, strip = np.zeros((4, height), np.float32), np.empty((height // each, width), np.float32)
    result[0] = -np.inf
    weights, factors = np.empty_like(logs), np.linspace(0.5, 1.0, height, dtype=np.float32)
    first, stop = np.arange(height, dtype=np.int32), np.full(height, width - 2, np.int32)
    found(
        logs.ctypes.data, height, width, first.ctypes.data, stop.ctypes.data, places.ctypes.data,
        result.ctypes.data, height, strip.ctypes.data, width, each, weights.ctypes.data, factors.ctypes.data,
    )  # fmt: skip
    column = np.arange(width)
    seen = (column >= first[:, None]) & (column < stop[:, None])
    exact = np.where(seen, np.exp2(logs.astype(np.float64)), 0.0)
    far = np.abs(places[:, None] - column)
    sums = [np.where(seen, logs, -np.inf).max(-1), *((exact * x).sum(-1) for x in (logs, far, 1.0))]
    left = exact * factors[:, None]
    pixels = left.reshape(-1, each, width).sum(1)
    pairs = [(weights, left), (strip, pixels), *zip(result, sums, strict=True)]
    return all(np.allclose(got, want, rtol=1e-5, atol=1e-30) for got, want in pairs)
