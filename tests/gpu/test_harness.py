"""On a GPU the harness times the device, with the host ahead of it, or what one waits."""

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

    runs = {"quick": lambda: x.add_(1), "slow to make": slow_to_make}
    ahead = harness.compare(runs, repeats=9, warmups=3)
    assert ahead["slow to make"]["median_ms"] < 3 * ahead["quick"]["median_ms"] < 1
    waited = harness.compare(runs, repeats=9, warmups=3, in_a_row=True)
    assert waited["slow to make"]["median_ms"] > 2
    assert waited["quick"]["median_ms"] < 1
