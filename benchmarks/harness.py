"""One harness for all benchmarks: candidates interleaved in one run, medians, spread, and where it was measured."""

from __future__ import annotations

import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def compare(candidates: dict[str, Callable[[], object]], repeats: int = 7, warmups: int = 2) -> dict[str, dict]:
    """Milliseconds of each candidate: every round runs all of them, so that a noisy moment meets all alike.

    The order is drawn anew for each round, because what runs second finds another cache than what runs first.
    """
    on_gpu = torch.cuda.is_available()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order, shuffle = list(candidates.items()), random.Random(0)
    for turn in range(warmups + repeats):
        shuffle.shuffle(order)
        for name, run in order:
            if on_gpu:
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                start.record()
                run()
                stop.record()
                torch.cuda.synchronize()
                spent = start.elapsed_time(stop)
            else:
                before = time.perf_counter()
                run()
                spent = (time.perf_counter() - before) * 1e3
            if turn >= warmups:
                times[name].append(spent)
    return {name: summary(spent) for name, spent in times.items()}


def summary(spent: list[float]) -> dict:
    """The median of some timings, and their quartiles."""
    low, middle, high = statistics.quantiles(spent, n=4) if len(spent) > 1 else spent * 3
    return {"median_ms": middle, "quartiles_ms": [low, high], "runs": len(spent)}


def ratio(result: dict[str, dict], name: str, base: str) -> float:
    """How many times as long as another candidate of the same run."""
    return result[name]["median_ms"] / result[base]["median_ms"]


def machine() -> dict:
    """Where a result was measured, without naming the host."""
    where = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        import triton

        where |= {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__}
    return where


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write(name: str, rows: list[dict], folder: Path | None = None) -> Path:
    """Write results with the machine, the versions and the command; the file appears whole or not at all."""
    kind = "gpu" if torch.cuda.is_available() else "cpu"
    path = (folder or RESULTS) / f"{name}-{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [argument for argument in sys.argv[1:] if not (folder and argument in ("--out", str(folder)))]
    command = " ".join(["python", Path(sys.argv[0]).name, *options])
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps({"machine": machine(), "command": command, "results": rows}, indent=1) + "\n")
    temporary.replace(path)
    return path
