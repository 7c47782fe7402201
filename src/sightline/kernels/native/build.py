"""Where the kernel in C (`tile.c`) comes from: compiled on the machine it runs on, once, or brought along by the wheel.

A C compiler makes it for this very processor. Where there is none, a wheel for Linux on x86-64 has it inside, made for
three kinds of processors. Where neither is there, torch's operations do its work; `SIGHTLINE_COMPILE=0` wishes that.
It does as many numbers at once as the processor's registers hold; `SIGHTLINE_LANES` (4, 8, 16) says otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sightline.errors import InputError
from sightline.folders import cache_folder

SOURCE = Path(__file__).with_name("tile.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-Wno-psabi")
LANES = (4, 8, 16)
# What a wheel brings along: a library for each number of lanes, and the instructions that each needs.
BROUGHT = Path(__file__).with_name("brought")
NEEDS = {
    4: frozenset[str](),
    8: frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
    16: frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
_SECONDS = 60

T = TypeVar("T")


def build(load: Callable[[Path], T | None]) -> tuple[T | None, str]:
    """What `load` makes of the library, and where that is from; None and the reason where there is none.

    `load` gives None for a library that computes something else.
    """
    if os.environ.get("SIGHTLINE_COMPILE") == "0":
        return None, "SIGHTLINE_COMPILE=0 leaves it to torch's operations"
    count = lanes()
    found, said = _compiled_here(load, count)
    if found is not None:
        return found, said
    brought = _brought(load, count)
    if brought is not None:
        return brought[0], f"from the wheel, {brought[1]} numbers at once ({said})"
    return None, said


def lanes() -> int:
    """How many numbers the kernel does at once."""
    asked = os.environ.get("SIGHTLINE_LANES")
    if asked:
        if asked not in map(str, LANES):
            raise InputError(
                "SIGHTLINE_LANES is how many numbers are done at once",
                expected="4, 8 or 16",
                got=asked,
                hint="leave it out: the processor's own width is taken",
            )
        return int(asked)
    has = instructions()
    return 16 if "avx512f" in has else 8 if "avx2" in has else 4


def instructions() -> frozenset[str]:
    """The instructions that the processor says it has."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.split())
    return frozenset()


def brought_name(count: int) -> str:
    """What the library for so many numbers at once is called in a wheel.

    >>> brought_name(8)
    'tile-x86_64-8.so'
    """
    return f"tile-x86_64-{count}.so"


def _brought(load: Callable[[Path], T | None], count: int) -> tuple[T, int] | None:
    """The widest library of the wheel that this processor can run and that computes rightly."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    has, needed = instructions(), frozenset[str]()
    able = []
    for wide in LANES:
        needed |= NEEDS[wide]
        if wide <= count and needed <= has:
            able.append(wide)
    for wide in reversed(able):
        path = BROUGHT / brought_name(wide)
        with contextlib.suppress(OSError, AttributeError):
            if path.is_file() and (found := load(path)) is not None:
                return found, wide
    return None


def _compiled_here(load: Callable[[Path], T | None], count: int) -> tuple[T | None, str]:
    compiler = _compiler()
    if compiler is None:
        return None, "there is no C compiler"
    flags = (*FLAGS, f"-DLANES={count}")
    said = f"compiled here by {Path(compiler).name}, {count} numbers at once"
    try:
        folder = cache_folder() / f"compiled-{_user()}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(folder):
            return None, f"others may write into {folder}"
        path = folder / f"cpu_tile-{_sum(compiler, flags)}.so"
        found = _kept(load, path)
        if found is None:
            found = _compiled(load, compiler, flags, path)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return None, f"{Path(compiler).name} failed: {lines[0] if lines else f'exit code {error.returncode}'}"
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        # A home that cannot be found, a folder that cannot be written to, a compiler that hangs.
        return None, f"it could not be compiled: {error}"
    return (found, said) if found is not None else (None, f"what {Path(compiler).name} made computes wrongly")


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


def _kept(load: Callable[[Path], T | None], path: Path) -> T | None:
    """What was compiled before, if it is there and whole."""
    with contextlib.suppress(OSError, AttributeError):
        if _is_ours(path):
            return load(path)
    return None


def _compiled(load: Callable[[Path], T | None], compiler: str, flags: tuple[str, ...], path: Path) -> T | None:
    """Compiled and tried beside its place first, so that others never see half of it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *flags, "-o", str(made), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        made.chmod(0o700)
        found = load(made)
        if found is not None:
            made.replace(path)
        return found
