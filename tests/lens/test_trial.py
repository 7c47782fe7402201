"""Kernels that give wrong numbers on a machine are found out, said, and not used."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.attention.call import make_call
from sightline.lens import compute, on_gpu, trial
from sightline.lens.levels import Levels
from sightline.lens.rows import rows_only

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MASKS = {
    "none": None,
    "rule": sl.causal(),
    "stretch": sl.window(5),
    "table": torch.rand(40, 50, generator=torch.Generator().manual_seed(0)) > 0.3,
}


@pytest.fixture(autouse=True)
def small_and_forgotten(monkeypatch):
    from sightline.kernels import layout

    if DEVICE == "cpu":
        monkeypatch.setattr(layout, "default_tiling", lambda *_: layout.Tiling(32, 32, 4, 1))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
        # Triton's interpreter takes its time.
        monkeypatch.setattr(trial, "_QUERIES", 40)
        monkeypatch.setattr(trial, "_KEYS", 71)
    monkeypatch.setattr(trial, "_passed", {})
    on_gpu._goes.cache_clear()
    yield
    on_gpu._goes.cache_clear()


def a_job(mask=None, requests=("entropy", "max_score", "distance", "received"), **options):
    q, k = (torch.randn(1, 2, n, 16, device=DEVICE) for n in (40, 50))
    mask = mask.to(DEVICE) if isinstance(mask, torch.Tensor) else mask
    call = make_call(q, k, k, mask=mask, **options)
    return Levels(call, rows_only(call)), compute._plan(call, list(requests))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_right_kernels_pass(mask):
    requests = (
        "entropy",
        "max_score",
        "distance",
        "received",
        sl.Picture(5, 4),
        sl.Picture(4, 5, reduce="max"),
        sl.Top(3),
    )
    levels, job = a_job(mask, requests)
    assert trial.passed(levels.call, job, on_gpu.run, compute._by_walk)


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"bias": sl.alibi(2)}, {"sinks": torch.zeros(2)}], ids=str)
def test_right_kernels_pass_with_more_than_a_mask(options):
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    levels, job = a_job(**options)
    assert trial.passed(levels.call, job, on_gpu.run, compute._by_walk)


@pytest.mark.parametrize("which", ["entropy", "max_score", "distance", "received", "grid"])
def test_a_wrong_kernel_is_said_once_and_not_used(which, monkeypatch):
    asked = []

    def wrong(levels, job):
        asked.append(job)
        found, grids = compute._by_walk(levels, job)
        if which == "grid":
            return found, {key: grid * 1.1 for key, grid in grids.items()}
        return found | {which: found[which] * 1.1}, grids

    monkeypatch.setattr(on_gpu, "run", wrong)
    monkeypatch.setattr(on_gpu, "takes", lambda levels: True)
    levels, _ = a_job()
    requests = ["entropy", "max_score", "distance", "received", sl.Picture(5, 4)]
    want = compute._by_walk(levels, compute._plan(levels.call, requests))[0]
    with pytest.warns(UserWarning, match="wrong numbers on this machine"):
        found = compute.compute(levels, requests)
    again = compute.compute(levels, requests)  # no second warning: that would be an error here
    for name in ("entropy", "max_score", "distance", "received"):
        assert torch.allclose(found[name], want[name])
        assert torch.allclose(again[name], want[name])
    assert len(asked) == 1


def test_a_kind_is_tried_once():
    calls = []

    def counted(levels, job):
        calls.append(job)
        return on_gpu.run(levels, job)

    for _ in range(3):
        levels, job = a_job(sl.causal())
        assert trial.passed(levels.call, job, counted, compute._by_walk)
    assert len(calls) == 1
    levels, job = a_job(sl.causal(), requests=("received",))
    assert trial.passed(levels.call, job, counted, compute._by_walk)
    assert len(calls) == 2


def test_it_draws_nothing_from_the_random_numbers_of_others():
    state = torch.get_rng_state()
    levels, job = a_job(sl.causal())
    before = torch.get_rng_state()
    assert trial.passed(levels.call, job, on_gpu.run, compute._by_walk)
    assert torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(state)
