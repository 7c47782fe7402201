"""One harness for all benchmarks: candidates interleaved in one run, medians, spread, and where it was measured."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sources
import torch

RESULTS = Path(__file__).parent / "results"
# `sightline bench --quick`: a look in seconds at whether everything runs. Such results are marked, and never published.
QUICK = os.environ.get("SIGHTLINE_BENCH_QUICK") == "1"
# Peers whose version is written down when they took part.
PEERS = {"transformers": "transformers", "x_transformers": "x-transformers", "bertviz": "bertviz", "captum": "captum",
         "transformer_lens": "transformer-lens", "inseq": "inseq", "lxt": "lxt"}  # fmt: skip
earlier: dict[str, str] = {}  # versions of peers in rows that are kept from an earlier run


class Rounds(dict[str, dict]):
    """The summary of each candidate by its name; `times` has every round."""

    times: dict[str, list[float]]

    @classmethod
    def of(cls, times: dict[str, list[float]]) -> Rounds:
        found = cls({name: summary(spent) for name, spent in times.items()})
        found.times = times
        return found


def compare(
    candidates: dict[str, Callable[[], object]], repeats: int = 7, warmups: int = 2, in_a_row: bool = False
) -> Rounds:
    """Milliseconds of each candidate: every round runs all of them, so that a noisy moment meets all alike.

    The order is drawn anew for each round, because what runs second finds another cache than what runs first.

    On a GPU the time is the device's, with the host ahead of it: what a kernel costs in a model that keeps the device
    busy. `in_a_row` gives what one waits for call after call instead, the host's time where that is the longer one.
    """
    if QUICK:
        repeats, warmups = min(repeats, 2), 1
    times: dict[str, list[float]] = {name: [] for name in candidates}
    if torch.cuda.is_available():
        timers = {name: _InARow(run) if in_a_row else _HostAhead(run) for name, run in candidates.items()}
    else:
        timers = {name: _Once(run) for name, run in candidates.items()}
    order, shuffle = list(timers.items()), random.Random(0)
    for turn in range(warmups + repeats):
        shuffle.shuffle(order)
        for name, timer in order:
            spent = timer.time()
            if turn >= warmups:
                times[name].append(spent)
    return Rounds.of(times)


def settle(run: Callable[[], object]) -> None:
    """Make a call so often that its shape is none that a GPU's kernels begin with: `compare` is of what comes again."""
    run()  # what is compiled takes longer than all that follows
    before = time.perf_counter()
    for turn in range(130 if torch.cuda.is_available() and not QUICK else 0):
        # Long calls go over to the faster kernel after a few.
        if turn % 10 == 0:
            torch.cuda.synchronize()
            if time.perf_counter() - before > 2:
                break
        run()


def pooled(runs: Iterable[Rounds]) -> Rounds:
    """The rounds of several comparisons of the same candidates as those of one."""
    times: dict[str, list[float]] = {}
    for run in runs:
        for name, spent in run.times.items():
            times.setdefault(name, []).extend(spent)
    return Rounds.of(times)


class _Once:
    """Times a call by the clock on the wall."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run

    def time(self) -> float:
        before = time.perf_counter()
        self.run()
        return (time.perf_counter() - before) * 1e3


class _InARow(_Once):
    """Times calls on a GPU that follow each other, until all are done."""

    calls = 1

    def time(self) -> float:
        torch.cuda.synchronize()
        before = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        torch.cuda.synchronize()
        spent = (time.perf_counter() - before) * 1e3 / self.calls
        self.calls = max(1, min(50, int(50 / max(spent, 1e-3))))
        return spent


class _HostAhead(_Once):
    """Times a few calls on a GPU behind work that keeps it busy while the host makes them."""

    calls = 1
    host = 0.0  # milliseconds in which the host made a call, at best

    def time(self) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        # A call that waits for the device has the device's time in its host's: the delay is bounded.
        torch.cuda._sleep(int(min(2 * self.calls * self.host, _DELAY) * _CYCLES))
        start.record()
        before = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        host = (time.perf_counter() - before) * 1e3 / self.calls
        stop.record()
        torch.cuda.synchronize()
        spent = start.elapsed_time(stop) / self.calls
        self.host = min(host, self.host or host)
        # Not so many that the host has to wait for room in the device's queue.
        self.calls = max(1, min(10, int(50 / max(spent, 1e-3)), int(_AHEAD / max(host, 1e-3))))
        return spent


_CYCLES = 2e6  # of a device in a millisecond, or a little more
_DELAY = 30.0  # milliseconds that the device is kept busy at most
_AHEAD = 3.0  # milliseconds of calls that the host makes in a row


def willing(candidates: dict[str, Callable[[], object]]) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """The candidates that can do it here, and for each of the others the first line of why not."""
    able, refused = {}, {}
    for name, run in candidates.items():
        try:
            run()
        except Exception as error:  # a peer may refuse in its own way
            refused[name] = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        else:
            able[name] = run
    return able, refused


def summary(spent: list[float]) -> dict:
    """The median of some timings, and their quartiles."""
    low, middle, high = statistics.quantiles(spent, n=4) if len(spent) > 1 else spent * 3
    return {"median_ms": middle, "quartiles_ms": [low, high], "runs": len(spent)}


def ratio(result: dict[str, dict], name: str, base: str) -> float:
    """How many times as long as another candidate of the same run: the median over rounds.

    Two calls of one round meet the same moment of a machine that others use too, so that their quotient spreads less
    than the quotient of two medians.
    """
    if isinstance(result, Rounds):
        return statistics.median(a / b for a, b in zip(result.times[name], result.times[base], strict=True))
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
    elif "sightline" in sys.modules:
        from sightline.kernels.native import tile as native_tile

        where["account"] = native_tile.found().said
    where |= earlier
    for module, package in PEERS.items():
        if module in sys.modules:
            try:
                where[package] = version(package)
            except PackageNotFoundError:
                where[package] = "unknown"
    return where


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def place(name: str, folder: Path | None = None) -> Path:
    """Where the results of a benchmark lie."""
    kind = "gpu" if torch.cuda.is_available() else "cpu"
    return (folder or (Path("sightline-bench") if QUICK else RESULTS)) / f"{name}-{kind}.json"


def kept(name: str, key: str, measured: list[str], folder: Path | None = None) -> list[dict]:
    """The rows of an earlier run on the same machine that are not measured again: long benchmarks go part by part."""
    path = place(name, folder)
    if QUICK or not path.exists():
        return []
    before, now = json.loads(path.read_text("utf-8")), machine()
    if any(before["machine"].get(what) != now.get(what) for what in ("gpu", "processor")):
        return []
    earlier.update({peer: before["machine"][peer] for peer in PEERS.values() if peer in before["machine"]})
    left = [row for row in before["results"] if row.get(key) not in (*measured, None)]
    return [{"sources": None} | row for row in left]  # of which code they are is known, or nobody knows it


def write(name: str, rows: list[dict], folder: Path | None = None) -> Path:
    """Write results with the machine, the versions, the code and the command; the file appears whole or not at all."""
    path = place(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = [argument for argument in sys.argv[1:] if not (folder and argument in ("--out", str(folder)))]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *options])
    measured = sources.sum_of(path.stem)
    rows = [row if measured is None else {**row, "sources": row.get("sources", measured)} for row in rows]
    found = {"machine": machine(), "command": command, "commit": sources.commit(), "results": rows}
    if QUICK:
        found["quick"] = True
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    temporary.replace(path)
    return path
