"""Some processes of torch.distributed on gloo, made once for many checks: each says of every check what came of it.

The checks are the functions `check_…` of `rank_checks`, in their order, each run by all ranks together. One fresh
process imports everything and forks all others, because importing torch takes seconds of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

TESTS = Path(__file__).parent
# Seconds for a world, from its first process to its last; and for ranks that wait for each other.
LIMIT, PATIENCE = 120.0, 60.0


def outcomes(sizes: list[int], folder: Path) -> dict[int, dict[str, list[str]]]:
    """For worlds of so many ranks what every rank says of each check: "ok", or what went wrong.

    No process outlives this call.
    """
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with (folder / "log").open("w") as log:
        subprocess.run(
            [sys.executable, __file__, str(folder), *map(str, sizes)],
            env=environment,
            stdout=log,
            stderr=log,
            timeout=60 + LIMIT * len(sizes),
            check=False,
        )
    return {size: _read(size, folder) for size in sizes}


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


def _rank(size: int, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    import rank_checks

    # A file instead of a port: none can be taken.
    store, patience = f"file://{folder}/{size}.store", timedelta(seconds=PATIENCE)
    with (folder / f"{size}.{rank}.json").open("w") as file:
        try:
            dist.init_process_group("gloo", init_method=store, world_size=size, rank=rank, timeout=patience)
            for name, check in rank_checks.checks(size).items():
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
    rank_checks.warm()
    for many in sys.argv[2:]:
        _world(int(many), Path(sys.argv[1]))
