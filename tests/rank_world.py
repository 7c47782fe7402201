"""Some processes of torch.distributed on gloo, made once for many checks: each says of every check what came of it.

The checks are the functions `check_…` of `rank_checks`, and for two ranks of `rank_checks_long`, in their order, each
run by all ranks together. One fresh process imports everything and forks all others, because importing torch takes
seconds of each. A process that has asked for a GPU cannot be forked, and imports ask: there each rank is a fresh one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

TESTS = Path(__file__).parent
# Seconds for a world, from its first process to its last; and for ranks that wait for each other.
LIMIT, PATIENCE = 120.0, 60.0


def outcomes(sizes: list[int], folder: Path) -> dict[int, dict[str, list[str]]]:
    """For worlds of so many ranks what every rank says of each check: "ok", or what went wrong.

    No process outlives this call.
    """
    with (folder / "log").open("w") as log:
        subprocess.run(
            [sys.executable, __file__, str(folder), *map(str, sizes)],
            env=_environment(),
            stdout=log,
            stderr=log,
            timeout=60 + LIMIT * len(sizes),
            check=False,
        )
    return {size: _read(size, folder) for size in sizes}


def on_device(device: str, names: list[str], folder: Path, size: int = 2) -> dict[str, list[str]]:
    """What every rank says of some checks with tensors on a device; each rank is a fresh process.

    No process outlives this call.
    """
    ranks = []
    with (folder / "log").open("w") as log:
        try:
            for rank in range(size):
                command = [sys.executable, __file__, str(folder), "--rank", str(rank), str(size), *names]
                ranks.append(subprocess.Popen(command, env=_environment(device), stdout=log, stderr=log))
            end = time.monotonic() + LIMIT
            for process in ranks:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    return _read(size, folder)


def _environment(device: str = "cpu") -> dict[str, str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "SIGHTLINE_RANKS_ON": device}


def _read(size: int, folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    silent = f"said nothing: {(folder / 'log').read_text()[-3000:]}"
    for rank in range(size):
        said = folder / f"{size}.{rank}.json"
        for name, what in [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []:
            found.setdefault(name, [silent] * size)[rank] = what
    return found


def _world(size: int, folder: Path) -> None:
    """Fork the ranks, wait for them, and end those that are left when the time is over."""
    ranks: list[int] = []
    for rank in range(size):
        process = os.fork()
        if not process:
            _rank(size, rank, folder)
        ranks.append(process)
    end = time.monotonic() + LIMIT
    while ranks and time.monotonic() < end:
        done, _ = os.waitpid(-1, os.WNOHANG)
        ranks = [process for process in ranks if process != done]
        time.sleep(0 if done else 0.01)
    for process in ranks:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _checks(size: int) -> dict[str, Callable[[int, int], None]]:
    """All that so many ranks check; those that end a rank come last."""
    import rank_checks
    import rank_checks_long

    return (rank_checks_long.checks(size) if size == 2 else {}) | rank_checks.checks(size)


def _rank(size: int, rank: int, folder: Path, names: list[str] | None = None) -> None:
    import torch
    import torch.distributed as dist

    # A file instead of a port: none can be taken.
    store, patience = f"file://{folder}/{size}.store", timedelta(seconds=PATIENCE)
    with (folder / f"{size}.{rank}.json").open("w") as file:
        try:
            dist.init_process_group("gloo", init_method=store, world_size=size, rank=rank, timeout=patience)
            found = _checks(size)
            for name, check in found.items() if names is None else [(name, found[name]) for name in names]:
                torch.manual_seed(0)
                what, begun = "ok", time.process_time()
                try:
                    check(rank, size)
                except BaseException:
                    what = traceback.format_exc()
                print(f"{name}: {time.process_time() - begun:.2f} s of rank {rank}", flush=True)
                file.write(json.dumps([name, what]) + "\n")
                file.flush()
        finally:
            # Not by the usual way out: a group whose rank has died would be waited for.
            os._exit(0)


if __name__ == "__main__":
    import torch

    import rank_checks

    torch.set_num_threads(1)  # no pool of threads, which would not outlive a fork
    if sys.argv[2] == "--rank":
        _rank(int(sys.argv[4]), int(sys.argv[3]), Path(sys.argv[1]), sys.argv[5:])
    rank_checks.warm()
    for many in sys.argv[2:]:
        _world(int(many), Path(sys.argv[1]))
