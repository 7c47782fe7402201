"""How a sweep cuts columns and uses its memory; what it finds is tested in test_on_cpu.py."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from cases import inputs
from sightline.lens.cpu import plan as cpu_plan
from sightline.lens.cpu import sweep, whole_maps
from sightline.lens.cpu.sweep import Plan


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plan of every pass."""
    seen: list[Plan] = []
    real = cpu_plan.Plan

    def kept(**options: object) -> Plan:
        seen.append(real(**options))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(cpu_plan, "Plan", kept)
    monkeypatch.setattr(whole_maps, "_KEYS", 0)
    return seen


@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(1, 1100))
def test_cuts_are_of_the_width_and_never_narrow(low: int, length: int, width: int) -> None:
    plan = object.__new__(Plan)
    plan.width = width
    cuts = plan.cuts(low, low + length)
    assert cuts[0][0] == low
    assert cuts[-1][1] == low + length
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert all(right - left == width for left, right in cuts[:-1])
    assert cuts[-1][1] - cuts[-1][0] <= width + width // 4
    assert len(cuts) == 1 or cuts[-1][1] - cuts[-1][0] > width // 4


def test_memory_is_used_again(plans: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = sweep.Buffers.__init__
    monkeypatch.setattr(sweep.Buffers, "__init__", lambda self, plan: (made.append(self), init(self, plan))[1])
    before = torch.get_num_threads()
    q, k, _ = inputs(1, heads=6, queries=600, keys=600, dtype=torch.float32)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        sl.look(q, k, mask=sl.causal(), stats=("entropy", "received", sl.Picture(64, 64)))
        assert 1 <= len(made) <= threads
        assert sorted(map(id, plans[-1].spare)) == sorted(map(id, made))
        made.clear()
    torch.set_num_threads(before)


def test_tiles_are_views_that_are_made_once(plans: list[Plan]) -> None:
    q, k, _ = inputs(1, heads=1, queries=600, keys=600, dtype=torch.float32)
    sl.look(q, k, stats="entropy")
    (buffers,) = plans[-1].spare[:1]
    tile = buffers.tile(3, 5)
    assert tile is buffers.tile(3, 5)
    assert tile.logs.shape == tile.weights.shape == (3, 5)
    assert tile.turned.shape == (5, 3)
    assert tile.weights.data_ptr() == tile.turned.data_ptr() == buffers.weights.data_ptr()
