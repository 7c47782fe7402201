"""Which code a result was measured on: a sum over the sources that a benchmark measures, and the commit.

What is measured again after a change has the new sum; a result of another sum is older than the code, and `tables.py`
says so where it shows it. Comments and docstrings do not count, nor how lines are broken; nor does what only runs on
the other kind of machine, CPU or GPU.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from pathlib import Path

# In a wheel the benchmarks lie inside the package; in a checkout beside src/.
HERE = Path(__file__).resolve().parent
PACKAGE = next((p for p in (HERE.parent / "src" / "sightline", HERE.parent) if (p / "backends").is_dir()), HERE)

CALLS = ("masks", "biases.py", "normalizers.py", "shapes.py", "positions", "backends")
ACCOUNTS = (*CALLS, "kernels", "lens")
MODULES = (*CALLS, "nn")
WATCHING = (*ACCOUNTS, "nn/observe", "watching")
MEASURED = {
    "attention": CALLS,
    "lens": ACCOUNTS,
    "lengths": ACCOUNTS,
    "growth": ACCOUNTS,
    "native_wheel": ACCOUNTS,
    "modules": MODULES,
    "models": (*MODULES, "models"),
    "monitor": WATCHING,
    "watch": WATCHING,
    "watch_models": WATCHING,
    "first_use": WATCHING,
    "edits": (*WATCHING, "editing"),
    "explorer": (*ACCOUNTS, "explore", "web"),
    "page_size": ("explore",),
    "influence": WATCHING,
    "peers": (*WATCHING, "editing"),
}


# What does not run on such a machine.
ELSEWHERE = {"cpu": ("lens/gpu/*", "kernels/*.py"), "gpu": ("lens/cpu/*", "kernels/native/*")}


def sum_of(result: str) -> str | None:
    """The sum of the code that a benchmark measures on a CPU or a GPU; None if it is not said which that is.

    >>> sum_of("lens-cpu") == sum_of("growth-cpu"), sum_of("lens-cpu") == sum_of("lens-gpu"), sum_of("ladder-cpu")
    (True, False, None)
    """
    name, _, kind = result.rpartition("-")
    return _sum(MEASURED[name], kind) if name in MEASURED else None


@functools.cache
def _sum(parts: tuple[str, ...], kind: str) -> str:
    total = hashlib.sha256()
    left_out = {path for pattern in ELSEWHERE[kind] for path in PACKAGE.glob(pattern)}
    for part in parts:
        place = PACKAGE / part
        assert place.exists(), f"{part} is measured, and not there"
        files = [place] if place.is_file() else [p for p in sorted(place.rglob("*")) if p.suffix in (".py", ".c")]
        for path in (path for path in files if path not in left_out):
            total.update(path.relative_to(PACKAGE).as_posix().encode())
            total.update(_meaning(path))
    return total.hexdigest()[:12]


def _meaning(path: Path) -> bytes:
    """What a file says to Python; of other files all of it."""
    source = path.read_bytes()
    return _read(source) if path.suffix == ".py" else source


@functools.cache  # most files are part of most sums
def _read(source: bytes) -> bytes:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return repr(_plain(tree)).encode()


def _plain(node: object) -> object:
    """A tree without what is empty in it: the fields that a Python has beyond another's are."""
    if isinstance(node, ast.AST):
        fields = ((name, _plain(value)) for name, value in ast.iter_fields(node) if value not in (None, []))
        return (type(node).__name__, *fields)
    return [_plain(part) for part in node] if isinstance(node, list) else node


def commit() -> str | None:
    """The commit of the checkout, with a plus if something in it was changed since; None outside of one."""
    try:
        said = [
            subprocess.run(["git", "-C", str(HERE), *what], capture_output=True, text=True, check=True, timeout=30)
            for what in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--", str(PACKAGE)))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0].stdout.strip() + ("+" if said[1].stdout.strip() else "")
