"""The Triton kernels of readings, in Triton's interpreter or for real where there is a GPU, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import sightline as sl
from held_memory import Held
from sightline.backends import reference
from sightline.backends.call import make_call
from sightline.kernels import layout, measure, reading_columns, reading_edges, row_stats
from sightline.lens import plan
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.gpu import reading_trial, trial
from sightline.lens.gpu import readings as gpu_readings
from sightline.lens.job import Allowed, Between, Weighted
from sightline.lens.levels import Levels
from sightline.lens.readings import Extra, dot, sizes_of_values
from sightline.lens.rows import output_and_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*size, dtype=torch.float32):
    return torch.randn(*size, device=DEVICE).to(dtype)


def a_pass(heads, kv_heads, queries, keys, dim=16, value_dim=None, batch=(1,), dtype=torch.float32, **options):
    """A call whose rows are known, what is known beside it, and each reading of each cell in float64."""
    torch.manual_seed(0)
    q, k = draw(*batch, heads, queries, dim, dtype=dtype), draw(*batch, kv_heads, keys, dim, dtype=dtype)
    v = draw(*batch, kv_heads, keys, value_dim or dim, dtype=dtype)
    g = draw(*batch, heads, queries, value_dim or dim, dtype=dtype)
    call = make_call(q, k, v, **options)
    out, row = output_and_rows(call, "auto")
    extra = Extra(v, g, dot(g, out), sizes_of_values(call, v))
    exact = {name: x.double() if isinstance(x, torch.Tensor) and x.dtype != torch.bool else x
             for name, x in options.items()}  # fmt: skip
    weights = reference.weights(q.double(), k.double(), **exact)
    values = v.double().repeat_interleave(heads // kv_heads, -3)
    carried = g.double() @ values.mT
    along = (g.double() * (weights @ values)).sum(-1, keepdim=True)
    truth = {
        "weights": weights,
        "norms": weights * values.norm(dim=-1)[..., None, :],
        "influence": weights * carried,
        "pull": weights * (carried - along),
    }
    return Levels(call, row), extra, truth


def columns_of(truth, reduce):
    if reduce == "max":
        high, low = truth.amax(-2), truth.amin(-2)
        return torch.where(high >= -low, high, low)
    return (truth.abs() if reduce == "magnitude" else truth).sum(-2)


def pixels_of(truth, down, across, largest):
    rows = []
    for top, bottom in itertools.pairwise(down):
        line = []
        for left, right in itertools.pairwise(across):
            part = truth[..., top:bottom, left:right].flatten(-2)
            high, low = part.amax(-1).clamp_min(0), part.amin(-1).clamp_max(0)
            line.append(torch.where(high >= -low, high, low) if largest else part.sum(-1))
        rows.append(torch.stack(line, -1))
    return torch.stack(rows, -2)


def near(got, want, bound, size=0.0):
    """Whether the error is a small part of the largest number; of pull, of what it is the difference of."""
    assert got.shape == want.shape
    return bool((got.double() - want).abs().max() <= bound * max(float(want.abs().max()), float(size)))


def check(levels, extra, truth, requests, bound):
    job = plan._plan(levels.call, list(requests))
    both = gpu_readings.run(levels, job, extra)
    assert both is not None, "the kernels can do this"
    found, grids = both
    size = truth["influence"].abs().max()
    for request in job.received:
        cells = truth[request.of]
        if isinstance(request, Weighted):
            cells = cells * request.weights.double()[..., None]
        assert near(found[request], columns_of(cells, request.reduce), bound, size), (request.of, request.reduce)
    for key, (vertical, horizontal) in job.grids.items():
        want = pixels_of(truth[key[-2]], vertical.edges, horizontal.edges, key[-1])
        assert near(grids[key], want, bound, size), key
    for top in job.tops:
        cells = truth[top.of]
        keys, values = found[top]
        n = min(top.n, cells.shape[-1])
        sizes = cells.abs().topk(n, -1).values
        assert near(values[..., :n].abs(), sizes, bound, size), top
        there = keys >= 0
        at = cells.gather(-1, keys.clamp_min(0)).masked_fill(~there, 0.0)
        assert near(values, at, bound, size), top
        seen = (truth["weights"] > 0).sum(-1, keepdim=True)
        assert torch.equal(there.sum(-1, keepdim=True), seen.clamp_max(n)), top
    return found, grids


def every(of):
    return [sl.Received(of=of, reduce=reduce) for reduce in ("sum", "max", "magnitude")] + [
        sl.Top(3, of=of),
        sl.Picture(5, 4, of=of),
        sl.Picture(5, 4, of=of, reduce="max"),
    ]


CASES = {
    "plain, unequal widths": ({"shape": (1, 1, 40, 37), "value_dim": 24, "dim": 8}, "influence"),
    "causal, grouped": ({"shape": (2, 1, 40, 61), "mask": sl.causal()}, "pull"),
    "window and padding": (
        {"shape": (1, 1, 39, 61), "mask": sl.window(20, 5) & sl.padding([61, 20]), "batch": (2,)},
        "influence",
    ),
    "more queries than keys": ({"shape": (1, 1, 61, 47), "mask": sl.causal()}, "norms"),
    "alibi and soft-cap": (
        {"shape": (2, 1, 33, 40), "mask": sl.causal(), "bias": sl.alibi(2), "softcap": 3.0},
        "pull",
    ),
    "table and sinks": (
        {"shape": (2, 1, 21, 40), "mask": torch.rand(1, 1, 21, 40) > 0.5, "sinks": torch.randn(2)},
        "influence",
    ),
    "documents": ({"shape": (1, 1, 40, 40), "mask": sl.causal() & sl.documents(torch.arange(40) // 17)}, "pull"),
    "two axes of batches": ({"shape": (1, 1, 9, 33), "batch": (2, 1)}, "norms"),
    "one row, one key": ({"shape": (1, 1, 1, 1), "mask": sl.causal()}, "pull"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_reading_equals_the_reference(name):
    given, of = CASES[name]
    options = {key: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for key, x in given.items()}
    check(*a_pass(*options.pop("shape"), **options), every(of), 2e-5)


def test_a_bias_that_is_a_tensor_leaves_only_the_strongest_to_the_walk():
    bias = torch.randn(2, 21, 40, device=DEVICE)
    bias[..., 7] = -torch.inf
    levels, extra, truth = a_pass(2, 1, 21, 40, bias=bias)
    requests = every("influence")
    mine, rest = gpu_readings.split(levels, plan._plan(levels.call, requests))
    assert [*rest.received, *rest.tops] == [sl.Top(3, of="influence")]
    assert not mine.tops
    check(levels, extra, truth, [request for request in requests if not isinstance(request, sl.Top)], 2e-5)


@pytest.mark.parametrize(
    "picture",
    [
        {"cell": (40, 13)},  # lines of pixels as high as a tile, each a band
        {"cell": (20, 12), "reduce": "max"},
        {"height": 6, "width": 5, "rows": slice(10, 90), "columns": slice(20, 57)},
        {"height": 120, "width": 90},  # more pixels than cells
        {"cell": (33, 40), "reduce": "max", "rows": slice(1, 100)},
    ],
    ids=str,
)
def test_every_kind_of_picture(picture):
    levels, extra, truth = a_pass(1, 1, 101, 77, mask=sl.window(50, 3))
    check(levels, extra, truth, [sl.Picture(**picture, of="influence")], 2e-5)


def test_pixels_of_many_programs_are_added_as_whole_numbers(monkeypatch):
    monkeypatch.setattr(gpu_plan, "_PARTS", 0)
    asked = [sl.Picture(cell=(9, 100), of="pull"), sl.Picture(cell=(9, 100), of="pull", reduce="sum")]
    check(*a_pass(1, 1, 40, 210, mask=sl.causal()), asked, 2e-5)


def test_half_precision():
    """In float16 the products are exact: what is off is the lse, the output, and sums in float32."""
    levels, extra, truth = a_pass(2, 1, 23, 45, dtype=torch.float16, mask=sl.causal())
    check(levels, extra, truth, every("pull"), 2e-3)
    # Its tiles have 128 columns: some rows see more than two stretches, some fewer.
    levels, extra, truth = a_pass(1, 1, 200, 330, dtype=torch.float16, mask=sl.causal())
    check(levels, extra, truth, [sl.Top(2, of="pull"), sl.Picture(5, 4, of="pull")], 2e-3)


def test_queries_with_weights_and_rows_of_large_numbers():
    """Whose lse lacks digits, which are measured; weights of queries may be below 0."""
    levels, extra, truth = a_pass(2, 2, 21, 33, scale=30.0, mask=sl.causal())
    weights = draw(1, 2, 21)
    asked = [Weighted(weights, of, reduce) for of in ("influence", "norms") for reduce in ("sum", "max", "magnitude")]
    check(levels, extra, truth, [*asked, sl.Top(2, of="pull")], 1e-4)


def test_memory_around_what_is_given_is_neither_read_nor_written():
    """Every tensor lies among NaN, and begins and steps as the kernels can only take it by a copy, or as it is."""

    def among(*size):
        wide = torch.full((*size[:-2], size[-2] + 4, size[-1] + 8), torch.nan, device=DEVICE)
        inner = wide[..., 2:-2, : size[-1]]
        inner.copy_(torch.randn(size))
        return inner

    levels, extra, truth = a_pass(1, 1, 35, 41, mask=sl.causal())
    call = levels.call
    q, k = (among(*x.shape).copy_(x) for x in (call.q, call.k))
    moved = extra._replace(v=among(*extra.v.shape).copy_(extra.v), grad=among(*extra.grad.shape).copy_(extra.grad))
    same = Levels(call.replace(q=q, k=k, v=k), levels.row)
    found, grids = check(same, moved, truth, every("pull"), 2e-5)
    again = gpu_readings.run(levels, plan._plan(call, every("pull")), extra)
    for request, value in again[0].items():  # the same bits twice, and wherever things lie
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (value, found[request])), strict=True):
            assert torch.equal(a, b)
    assert all(torch.equal(grid, grids[key]) for key, grid in again[1].items())


def test_hidden_places_may_hold_anything_finite_and_what_is_not_goes_to_the_walk():
    levels, extra, truth = a_pass(1, 1, 20, 30, mask=sl.padding([25]))
    extra.v[..., 25:, :] = 3e30
    assert not near(extra.v.double(), extra.v.double() * 0, 1.0)
    check(levels, extra, truth, [sl.Top(3, of="influence"), sl.Received(of="influence", reduce="magnitude")], 2e-5)
    extra.v[..., 27, :] = torch.nan
    job = plan._plan(levels.call, [sl.Received(of="influence")])
    assert gpu_readings.run(levels, job, extra) is None


def test_numbers_are_read_once_when_the_first_pass_is_ready_for_its_launch(monkeypatch):
    """Waiting for a GPU before its pass is made leaves it without work. What is not finite is then not launched."""
    seen = []

    def note(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, **options: seen.append(name) or function(*given, **options))

    levels, extra, _ = a_pass(1, 1, 20, 30, mask=sl.causal())
    for module, name in ((gpu_readings, "_layout"), (torch.Tensor, "tolist"), (torch, "zeros")):
        note(module, name)
    for name in ("prepare", "in_order", "descriptor", "launch"):
        note(reading_columns, name)
    job = plan._plan(levels.call, [*every("influence"), *every("pull")])
    assert gpu_readings.run(levels, job, extra) is not None
    assert seen.count("launch") > seen.count("tolist") == 1
    first = seen.index("launch")
    assert seen[first - 1] == "tolist"
    assert {"_layout", "zeros", "prepare", "in_order", "descriptor"} < set(seen[:first])
    for wrong in (torch.nan, torch.inf, 1e30):  # of which the last one is finite, but a product is not
        seen.clear()
        extra.v[..., 3, :], extra.grad[..., 3, :] = wrong, wrong
        assert gpu_readings.run(levels, job, extra) is None
        assert "tolist" in seen
        assert "launch" not in seen


@pytest.mark.parametrize("mask", [None, sl.window(9)], ids=str)
def test_a_band_of_rows_after_the_other(mask, monkeypatch):
    """Queries and gradients of a long text are copied band by band; the strongest cells need all of its stretches."""
    levels, extra, _ = a_pass(1, 1, 80, 75, mask=mask)
    requests = [
        sl.Received(of="influence", reduce="magnitude"),
        sl.Picture(40, 9, of="influence"),
        sl.Top(3, of="influence"),
    ]
    job, made = plan._plan(levels.call, requests), []
    whole = gpu_readings.run(levels, job, extra)
    monkeypatch.setattr(reading_columns, "_ROWS", 32)
    monkeypatch.setattr(reading_columns, "bands_of", lambda *given: made.append(layout.bands_of(*given)) or made[-1])
    banded = gpu_readings.run(levels, job, extra)
    assert max(len(some) for some in made) > 2
    for one, other in zip(tree_leaves(whole), tree_leaves(banded), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_equal_cells_are_ranked_by_their_keys():
    levels, extra, _ = a_pass(1, 1, 5, 40)
    q, k = torch.zeros_like(levels.call.q), torch.zeros_like(levels.call.k)
    call = levels.call.replace(q=q, k=k)
    same = Levels(call, torch.full_like(levels.row, np.log(40)))
    signs = torch.ones_like(extra.v).cumsum(-2) % 2 * 2 - 1
    both = gpu_readings.run(
        same,
        plan._plan(call, [sl.Top(6, of="influence")]),
        extra._replace(v=signs, grad=torch.ones_like(extra.grad)),
    )
    keys, cells = both[0][sl.Top(6, of="influence")]
    assert keys[0, 0].tolist() == [[0, 1, 2, 3, 4, 5]] * 5
    assert (cells[0, 0, 0] > 0).tolist() == [True, False] * 3


def test_memory_of_a_long_text(monkeypatch):
    """All that is there at the same time, at 65,536 tokens; what kernels would write is not looked at."""
    for module in (layout, reading_columns, reading_edges, row_stats, measure):
        monkeypatch.setattr(module, "launch", lambda *_, **__: None)
    q, k, v, g = (torch.zeros(1, 16, 65_536, 128, dtype=torch.float16, device=DEVICE) for _ in range(4))
    call = make_call(q, k, v, mask=sl.causal())
    numbers = torch.zeros(1, 16, 65_536, device=DEVICE)
    requests = [sl.Received(of="influence", reduce="magnitude"), sl.Picture(512, 512, of="influence"),
                sl.Top(4, of="influence")]  # fmt: skip
    with Held(q, k, v, g, numbers) as held:
        assert gpu_readings.run(Levels(call, numbers), plan._plan(call, requests), Extra(v, g, numbers)) is not None
    assert held.most <= 110 << 20, held.most >> 20  # 68 of it are results


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The plan takes the CPU for a GPU: kernels are tried and used, in the interpreter."""
    monkeypatch.setattr(gpu_plan, "takes", lambda levels: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    monkeypatch.setattr(trial, "_passed", {})
    if DEVICE == "cpu":
        monkeypatch.setattr(trial, "_QUERIES", 33)
        monkeypatch.setattr(trial, "_KEYS", 45)


def asked_of(levels, extra):
    requests = [sl.Received(of="influence", reduce="magnitude"), sl.Picture(5, 4, of="influence"), sl.Top(3, "pull")]
    return plan.compute(levels, requests, extra)


def test_the_kernels_are_tried_once_and_used(on_a_gpu, monkeypatch):
    levels, extra, truth = a_pass(1, 1, 20, 25, mask=sl.causal())
    runs = []
    run = gpu_readings.run
    monkeypatch.setattr(gpu_readings, "run", lambda *given: runs.append(given) or run(*given))
    first, second = asked_of(levels, extra), asked_of(levels, extra)
    assert len(runs) == 4  # two of them a trial: of few keys, and of many
    want = truth["influence"].abs().sum(-2)
    assert near(first[sl.Received(of="influence", reduce="magnitude")], want, 2e-5)
    assert all(torch.equal(first[name], second[name]) for name in list(first)[:2])


@pytest.mark.parametrize("which", ["key", "grid", "top"])
def test_wrong_kernels_are_said_and_not_used(which, on_a_gpu, monkeypatch):
    levels, extra, truth = a_pass(1, 1, 20, 25, mask=sl.causal())

    def wrong(levels, job, extra):
        found, grids = plan._by_walk(levels, job, extra)
        if which == "grid":
            return found, {key: grid * 1.1 for key, grid in grids.items()}
        name = next(name for name in found if isinstance(name, sl.Top) == (which == "top"))
        changed = (found[name][0], -found[name][1]) if which == "top" else found[name] * 1.1
        return found | {name: changed}, grids

    monkeypatch.setattr(gpu_readings, "run", wrong)
    with pytest.warns(UserWarning, match="wrong numbers on this machine"):
        found = asked_of(levels, extra)
    assert near(found[sl.Received(of="influence", reduce="magnitude")], truth["influence"].abs().sum(-2), 2e-5)
    at = truth["pull"].gather(-1, found[sl.Top(3, "pull")][0].clamp_min(0))
    assert near(found[sl.Top(3, "pull")][1], at.masked_fill(found[sl.Top(3, "pull")][0] < 0, 0.0), 2e-5)


def test_they_can_be_switched_off(on_a_gpu, monkeypatch):
    levels, extra, _ = a_pass(2, 1, 8, 9)
    assert gpu_readings.takes(levels, extra)
    monkeypatch.setenv("SIGHTLINE_READINGS", "torch")
    assert not gpu_readings.takes(levels, extra)
    monkeypatch.setattr(gpu_readings, "run", None)
    asked_of(levels, extra)


@pytest.mark.parametrize("dim, value_dim, takes", [(128, 128, True), (129, 16, False), (16, 136, False)])
def test_wide_heads_are_never_launched(dim, value_dim, takes, on_a_gpu):
    """What reads beyond a program's memory ends the process's use of its GPU: a trial of it would be too late."""
    levels, extra, _ = a_pass(1, 1, 3, 4, dim=dim, value_dim=value_dim)
    assert gpu_readings.takes(levels, extra) == takes


def test_g_and_v_of_different_dtypes_go_to_the_walk(on_a_gpu):
    levels, extra, _ = a_pass(2, 1, 8, 9)
    assert not gpu_readings.takes(levels, extra._replace(grad=extra.grad.half()))
    assert not gpu_readings.takes(levels, extra._replace(grad=extra.grad.double(), v=extra.v.double()))


def test_spans_and_shares_are_left_to_the_walk(on_a_gpu):
    levels, extra, truth = a_pass(1, 1, 12, 12)
    between = Between(torch.ones(1, 12, 1, dtype=torch.bool), torch.ones(1, 1, 12, dtype=torch.bool), "influence")
    job = plan._plan(levels.call, [between, Allowed(sl.causal()), sl.Top(40, "pull")])
    mine, rest = gpu_readings.split(levels, job)
    assert not any(mine)
    assert len(rest.received) == 2
    assert len(rest.tops) == 1
    found = plan.compute(levels, [between, sl.Top(2, "influence")], extra)
    assert near(found[between].flatten(), truth["influence"].sum((-1, -2)).flatten(), 1e-5)


def test_a_trial_is_made_for_every_kind():
    levels, extra, _ = a_pass(1, 1, 8, 9)
    kinds = {
        reading_trial._kind(levels.call, plan._plan(levels.call, [request]), extra)
        for request in (*every("influence"), *every("pull"), sl.Picture(2, 3, of="pull"))
    }
    assert len(kinds) == 12


def test_a_trial_takes_either_sign_of_a_tie():
    """Of a cell above 0 and one below it that are as large, rounding says which is the largest."""
    want = torch.randn(40, 30)
    tie = want.clone()
    tie[3, 4] *= -1 + 1e-6
    assert reading_trial._near(tie, want)
    assert not reading_trial._near(torch.where(torch.rand(40, 30) < 0.5, -want, want), want)
    assert not reading_trial._near(want + 0.1, want)
    assert not reading_trial._near(torch.where(want > 2, torch.nan, want), want)


STRETCHES = {
    "plain": {"shape": (1, 1, 40, 90)},
    "causal, grouped, heads in parts": {"shape": (2, 1, 70, 99), "mask": sl.causal()},
    "window and padding": {
        "shape": (1, 1, 50, 130), "mask": sl.window(90, 40) & sl.padding([130, 91]), "batch": (2,)
    },
    "a table": {"shape": (1, 1, 40, 90), "mask": torch.rand(1, 1, 40, 90) > 0.3},
    "alibi, soft-cap, sinks": {
        "shape": (2, 1, 33, 70), "bias": sl.alibi(2), "softcap": 3.0, "sinks": torch.randn(2)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STRETCHES)
def test_the_strongest_are_found_by_the_largest_of_stretches(name, monkeypatch):
    """Most rows see more columns than n stretches have; maps are done one after the other, rows in parts."""
    monkeypatch.setattr(reading_columns, "_PROGRAMS", 1)
    monkeypatch.setattr(reading_edges, "_AT_ONCE", 4096)
    given = {key: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for key, x in STRETCHES[name].items()}
    passed = a_pass(*given.pop("shape"), **given)
    for n, of in ((1, "norms"), (2, "influence")):
        check(*passed, [sl.Top(n, of=of), sl.Picture(5, 4, of=of), sl.Received(of=of, reduce="magnitude")], 2e-5)


def test_wide_stretches_and_several_lists_of_the_strongest(monkeypatch):
    monkeypatch.setattr(reading_columns, "BINS", 2)
    check(*a_pass(2, 1, 40, 200), [sl.Top(1, of="pull"), sl.Top(2, of="pull"), sl.Picture(3, 3, of="pull")], 2e-5)


def test_cells_of_nothing_come_last_and_by_their_keys():
    """Where g is 0 all cells are; where few keys weigh anything the lowest others follow, first key and end kept."""
    levels, extra, _ = a_pass(1, 1, 40, 200, mask=sl.window(150, 0))
    extra.grad[:, :, :20] = 0.0
    extra.v[..., :190, :] = 0.0
    request = sl.Top(4, of="influence")
    keys, cells = gpu_readings.run(levels, plan._plan(levels.call, [request]), extra)[0][request]
    assert not cells[:, :, :20].any()
    first = torch.arange(160, 180) - 150
    assert torch.equal(keys[0, 0, :20].cpu(), first[:, None] + torch.arange(4))
    truth = reference.weights(levels.call.q, levels.call.k, mask=sl.window(150, 0)) * (extra.grad @ extra.v.mT)
    sizes = truth.abs().topk(4, -1).values
    assert near(cells.abs(), sizes.double(), 2e-5)
    for row in (30, 31, 32, 39):  # which see 1, 2, 3 and 10 keys that carry something
        some = min(row - 29, 4)
        assert sorted(keys[0, 0, row, some:].tolist()) == list(range(row + 10, row + 14 - some))
        assert set(keys[0, 0, row, :some].tolist()) <= set(range(190, 200))


def test_equal_sizes_in_many_stretches_are_ranked_by_their_keys():
    levels, extra, _ = a_pass(1, 1, 5, 300)
    call = levels.call.replace(q=torch.zeros_like(levels.call.q), k=torch.zeros_like(levels.call.k))
    same = Levels(call, torch.full_like(levels.row, np.log(300)))
    signs = torch.ones_like(extra.v).cumsum(-2) % 2 * 2 - 1
    request = sl.Top(6, of="influence")
    given = extra._replace(v=signs, grad=torch.ones_like(extra.grad))
    keys, cells = gpu_readings.run(same, plan._plan(call, [request]), given)[0][request]
    assert keys[0, 0].tolist() == [[0, 1, 2, 3, 4, 5]] * 5
    assert (cells[0, 0, 0] > 0).tolist() == [True, False] * 3
