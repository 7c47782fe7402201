"""Kernels that give wrong numbers on a machine are found out, said, and not used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import sightline as sl
from sightline.backends.call import make_call
from sightline.errors import SightlineError
from sightline.lens import plan
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.gpu import trial
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
    gpu_plan._goes.cache_clear()
    yield
    gpu_plan._goes.cache_clear()


def a_job(mask=None, requests=("entropy", "max_score", "distance", "received"), **options):
    q, k = (torch.randn(1, 2, n, 16, device=DEVICE) for n in (40, 50))
    mask = mask.to(DEVICE) if isinstance(mask, torch.Tensor) else mask
    call = make_call(q, k, k, mask=mask, **options)
    return Levels(call, rows_only(call)), plan._plan(call, list(requests))


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
    assert trial.passed(levels.call, job, gpu_plan.run, plan._by_walk)


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"bias": sl.alibi(2)}, {"sinks": torch.zeros(2)}], ids=str)
def test_right_kernels_pass_with_more_than_a_mask(options):
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    levels, job = a_job(**options)
    assert trial.passed(levels.call, job, gpu_plan.run, plan._by_walk)


@pytest.mark.parametrize("which", ["entropy", "max_score", "distance", "received", "grid"])
def test_a_wrong_kernel_is_said_once_and_not_used(which, monkeypatch):
    asked = []

    def wrong(levels, job):
        asked.append(job)
        found, grids = plan._by_walk(levels, job)
        if which == "grid":
            return found, {key: grid * 1.1 for key, grid in grids.items()}
        return found | {which: found[which] * 1.1}, grids

    monkeypatch.setattr(gpu_plan, "run", wrong)
    monkeypatch.setattr(gpu_plan, "takes", lambda levels: True)
    levels, _ = a_job()
    requests = ["entropy", "max_score", "distance", "received", sl.Picture(5, 4)]
    want = plan._by_walk(levels, plan._plan(levels.call, requests))[0]
    with pytest.warns(UserWarning, match="wrong numbers on this machine"):
        found = plan.compute(levels, requests)
    again = plan.compute(levels, requests)  # no second warning: that would be an error here
    for name in ("entropy", "max_score", "distance", "received"):
        assert torch.allclose(found[name], want[name])
        assert torch.allclose(again[name], want[name])
    assert len(asked) == 1


def test_a_kind_is_tried_once():
    calls = []

    def counted(levels, job):
        calls.append(job)
        return gpu_plan.run(levels, job)

    for _ in range(3):
        levels, job = a_job(sl.causal())
        assert trial.passed(levels.call, job, counted, plan._by_walk)
    assert len(calls) == 1
    levels, job = a_job(sl.causal(), requests=("received",))
    assert trial.passed(levels.call, job, counted, plan._by_walk)
    assert len(calls) == 2


def test_it_draws_nothing_from_the_random_numbers_of_others():
    state = torch.get_rng_state()
    levels, job = a_job(sl.causal())
    before = torch.get_rng_state()
    assert trial.passed(levels.call, job, gpu_plan.run, plan._by_walk)
    assert torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(state)


def test_an_error_is_no_answer():
    """A trial that was broken off has tried nothing."""

    def broken(levels, job):
        raise KeyboardInterrupt

    levels, job = a_job()
    with pytest.raises(KeyboardInterrupt):
        trial.passed(levels.call, job, broken, plan._by_walk)
    tried = []
    assert trial.passed(levels.call, job, lambda *given: tried.append(given), plan._by_walk)
    assert tried


@pytest.mark.filterwarnings("error:the lens")
def test_a_wrong_kernel_is_not_used_where_warnings_are_errors():
    def wrong(levels, job):
        found, grids = plan._by_walk(levels, job)
        return found | {"entropy": found["entropy"] + 1}, grids

    levels, job = a_job()
    with pytest.raises(UserWarning, match="wrong numbers"):
        trial.passed(levels.call, job, wrong, plan._by_walk)
    assert not trial.passed(levels.call, job, wrong, plan._by_walk)


def test_kernels_that_do_not_run_on_a_machine_are_said_and_not_used(monkeypatch):
    """Such as those that need more shared memory than a smaller GPU has."""

    def too_large(levels, job):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(gpu_plan, "run", too_large)
    monkeypatch.setattr(gpu_plan, "takes", lambda levels: True)
    levels, job = a_job()
    with pytest.warns(UserWarning, match="do not run .*out of resource"):
        found = plan.compute(levels, ["entropy"])
    torch.testing.assert_close(found["entropy"], plan._by_walk(levels, job)[0]["entropy"])


class Gpu:
    """One that answers until a kernel reads where it may not: then every call says so."""

    gone = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"

    def __init__(self, monkeypatch):
        self.lost = False
        monkeypatch.setattr(trial, "_wait_for", self.asked)

    def asked(self, *_):
        if self.lost:
            raise RuntimeError(self.gone)

    def breaks(self, *_):
        self.lost = True
        self.asked()


@pytest.mark.parametrize("when", ["at once", "in the walk"])
def test_a_kernel_that_loses_the_gpu_is_named_and_nothing_takes_its_place(when, monkeypatch):
    """What is computed on a GPU comes later: the error may meet whoever asks it next."""
    gpu = Gpu(monkeypatch)
    levels, job = a_job(sl.causal())

    def later(*_):
        gpu.lost = True
        return plan._by_walk(levels, job)

    pair = (gpu.breaks, plan._by_walk) if when == "at once" else (later, gpu.breaks)
    with pytest.raises(SightlineError) as caught:
        trial.passed(levels.call, job, *pair)
    assert "has ended all work of this process" in caught.value.what
    assert "illegal memory access" in caught.value.got
    assert "mask=('rule',)" in caught.value.expected
    assert "SIGHTLINE_KERNELS=torch" in caught.value.hint
    assert not trial._passed


def test_a_gpu_that_was_lost_before_is_not_laid_at_the_door_of_a_trial(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.lost = True
    levels, job = a_job()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        trial.passed(levels.call, job, gpu_plan.run, plan._by_walk)


def test_an_error_that_leaves_the_gpu_as_it_is_stays_what_it_is(monkeypatch):
    Gpu(monkeypatch)
    levels, job = a_job()

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        trial.passed(levels.call, job, full, plan._by_walk)


def test_the_kernels_can_be_left_to_torch(monkeypatch):
    call = SimpleNamespace(device=torch.device("cuda"), q=torch.zeros(1), sizes=a_job()[0].call.sizes)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu_plan, "_has_triton", lambda: True)
    monkeypatch.delenv("SIGHTLINE_KERNELS", raising=False)
    assert gpu_plan.for_kernels(call)
    monkeypatch.setenv("SIGHTLINE_KERNELS", "torch")
    assert not gpu_plan.for_kernels(call)


def test_it_takes_no_notice_of_what_the_user_made_the_default():
    levels, job = a_job(sl.causal(), requests=("received",))
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            seen = []
            assert trial.passed(levels.call, job, lambda levels, job: seen.append(levels.call), plan._by_walk)
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen[0].q.device == levels.call.device
    assert seen[0].q.dtype == torch.float32


def test_pictures_that_have_a_pass_of_their_own_are_another_kind():
    whole, other, part = sl.Picture(5, 4), sl.Picture(3, 4), sl.Picture(5, 4, rows=slice(3, 30))
    kinds = {trial._kind(a_job()[0].call, a_job(requests=some)[1]) for some in ((whole,), (whole, other), (part,))}
    assert len(kinds) == 3


def test_pictures_of_parts_pass_too():
    levels, job = a_job(requests=("received", sl.Picture(5, 4), sl.Picture(3, 4), sl.Picture(5, 4, rows=slice(3, 30))))
    assert trial.passed(levels.call, job, gpu_plan.run, plan._by_walk)


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(5)], ids=str)
def test_every_kernel_for_the_strongest_keys_is_tried(mask, monkeypatch):
    """Rows must see more than n stretches of columns, else they are done as they are."""
    from sightline.kernels import top_keys

    launched, real = set(), top_keys.launch

    def noted(kernel, grid, given, *rest, **options):
        real(kernel, grid, given, *rest, **options)
        name = kernel.fn.__name__
        if name != "near" or bool((given["BOUND"] == 1.0).any()):  # rows that it does
            launched.add(name)

    monkeypatch.setattr(top_keys, "launch", noted)
    levels, job = a_job(mask, requests=(sl.Top(5),))
    assert trial.passed(levels.call, job, gpu_plan.run, plan._by_walk)
    assert launched >= {"_choose", "near", "fill_lists", "gather", "_merge"}


def test_wrong_keys_of_right_weights_are_found_out():
    def shifted(levels, job):
        found, grids = plan._by_walk(levels, job)
        return {request: (keys + 1, weights) for request, (keys, weights) in found.items()}, grids

    levels, job = a_job(requests=(sl.Top(1),))
    with pytest.warns(UserWarning, match="wrong numbers"):
        assert not trial.passed(levels.call, job, shifted, plan._by_walk)
