"""On a GPU the harness times the device, with the host ahead of it, and the host beside it."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_hosts_time_is_not_the_devices(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    harness = importlib.import_module("harness")
    x = torch.randn(1 << 20, device="cuda")

    def slow_to_make() -> None:
        time.sleep(2e-3)
        x.add_(1)

    found = harness.compare({"quick": lambda: x.add_(1), "slow to make": slow_to_make}, repeats=9, warmups=3)
    quick, slow = found["quick"], found["slow to make"]
    assert slow["host_ms"] > 2
    assert slow["median_ms"] < 3 * quick["median_ms"] < 1
    assert harness.lasting(slow) == slow["host_ms"]
