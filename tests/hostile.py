"""Files that lie: every part of a description replaced by what should not be there, read under a limit on memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sightline.errors import SightlineError

DEEP = "[" * 1500 + "]" * 1500
NASTY: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    30_000_000,
    10**8,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "row",
    "kept.0.0",
    "mask.1",
    "entropy",
    "../x",
    "\0",
    "\ud800",
    "a" * 10_000,
    [],
    [[]],
    [0] * 7,
    [[1], 1, 1, 1, 1, 1, 1],
    [[[]] * 9] * 9,
    list(range(1000)),
    {},
    {"is": "~"},
    {"is": "prefix", "n": 10**9},
    {"is": "band", "left": 10**30, "right": None, "align": "end"},
    {"is": "dense", "table": "row"},
    {"alibi": 30_000_000},
    {"top": 10**8},
    {"picture": [[10**8, 10**8], None, None, None, "mean", False]},
    {"picture": [None, [1, 1], [0, 10**12], None, "sum", False]},
    {str(i): i for i in range(100)},
)
EXTRA = 512 << 20  # bytes a reader may take beyond what it has when it starts
SLOW = 2.0  # seconds for one file, on a busy machine


def places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every part of a JSON value, the whole included."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def replaced(tree: Any, path: tuple, value: Any) -> Any:
    """A copy with one part replaced."""
    if not path:
        return value
    key, *rest = path
    if isinstance(tree, dict):
        return tree | {key: replaced(tree[key], tuple(rest), value)}
    return [replaced(old, tuple(rest), value) if i == key else old for i, old in enumerate(tree)]


def changes(tree: Any) -> Iterator[tuple[str, str]]:
    """Every change of a JSON value: what it is, and the text with it."""
    for path in places(tree):
        name = ".".join(map(str, path))
        for value in NASTY:
            yield f"{name} = {repr(value)[:60]}", json.dumps(replaced(tree, path, value))
        yield f"{name} = deep", json.dumps(replaced(tree, path, "DEEP")).replace('"DEEP"', DEEP)
        if path and isinstance(path[-1], str):
            *above, key = path
            parent = tree
            for step in above:
                parent = parent[step]
            without = {k: v for k, v in parent.items() if k != key}
            yield f"{name} gone", json.dumps(replaced(tree, tuple(above), without))
            yield f"{name} and another", json.dumps(replaced(tree, tuple(above), parent | {"zzz": 1}))
            again = json.dumps(parent)[:-1] + f", {json.dumps(key)}: {json.dumps(parent[key])}}}"
            yield f"{name} twice", json.dumps(replaced(tree, tuple(above), "AGAIN")).replace('"AGAIN"', again)


def try_all(tree: Any, read: Callable[[str], object]) -> dict[str, Any]:
    """Read every change under the limit; what was neither read nor refused in our words, or took long."""
    resource.setrlimit(resource.RLIMIT_AS, (_size() + EXTRA,) * 2)
    tried, refused, wrong = 0, 0, []
    for name, text in changes(tree):
        tried += 1
        start = time.perf_counter()
        try:
            read(text)
        except SightlineError as error:
            refused += 1
            if len(str(error)) > 2000:
                wrong.append(f"{name}: a message of {len(str(error))} characters")
        except BaseException as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        if (taken := time.perf_counter() - start) > SLOW:
            wrong.append(f"{name}: {taken:.1f} s")
    return {"tried": tried, "refused": refused, "wrong": wrong}


def _size() -> int:
    """The address space of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def in_a_process(script: Path, *arguments: Path) -> dict[str, Any]:
    """Run a script of the tests in a new interpreter; it prints one JSON object."""
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
