"""The strongest keys by the kernels, in Triton's interpreter or for real where there is a GPU, against the walk."""

from __future__ import annotations

import functools

import pytest
import torch

import sightline as sl
from sightline.backends.call import make_call
from sightline.lens import plan
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.levels import Levels
from sightline.lens.rows import rows_only

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    from sightline.kernels import layout

    monkeypatch.setattr(layout, "default_tiling", lambda *_: layout.Tiling(32, 32, 4, 1))
    gpu_plan._goes.cache_clear()
    yield
    gpu_plan._goes.cache_clear()


def both(q, k, n, **options):
    """The keys and weights by the walk, and by the kernels: None if these leave it to the walk."""
    call = make_call(q, k, k, **options)
    levels, request = Levels(call, rows_only(call)), sl.Top(n)
    job = plan._plan(call, [request, "max_score"])
    found = gpu_plan.run(levels, job)
    assert found is not None
    slow = plan._by_walk(levels, job)[0]
    torch.testing.assert_close(found[0]["max_score"], slow["max_score"], rtol=1e-5, atol=1e-5)
    return slow[request], found[0].get(request)


CASES = {
    "causal": {"shape": (2, 2, 6, 40), "mask": sl.causal(), "n": 4},
    "grouped, unequal lengths": {"shape": (2, 1, 3, 150), "n": 5, "mask": sl.causal()},
    "window": {"shape": (1, 1, 5, 80), "mask": sl.window(20, 3), "n": 3},
    "holes": {"shape": (1, 1, 3, 61), "n": 4, "mask": sl.padding(torch.arange(61)[None] % 3 > 0)},
    "alibi and soft-cap": {"shape": (2, 2, 3, 30), "bias": sl.alibi(2), "softcap": 2.0, "n": 3},
    "more than there are": {"shape": (1, 1, 3, 5), "n": 9},
    "one": {"shape": (1, 1, 1, 1), "n": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_the_strongest_keys_equal_the_walk(name):
    options = dict(CASES[name])
    heads, kv_heads, queries, keys = options.pop("shape")
    q, k = torch.randn(1, heads, queries, 16, device=DEVICE), torch.randn(1, kv_heads, keys, 16, device=DEVICE)
    slow, fast = both(q, k, options.pop("n", 8), **options)
    torch.testing.assert_close(fast[1], slow[1], rtol=1e-5, atol=1e-7)
    assert torch.equal(fast[0], slow[0])


def test_equal_weights_come_in_the_order_of_their_keys():
    q, k = torch.zeros(1, 1, 3, 16, device=DEVICE), torch.randn(1, 1, 70, 16, device=DEVICE)
    slow, fast = both(q, k, 4)
    assert fast[0].tolist() == slow[0].tolist() == [[[[0, 1, 2, 3]] * 3]]


def test_neighbours_that_take_all_attention():
    """All of the strongest lie in one bin or two."""
    q = torch.ones(1, 1, 2, 16, device=DEVICE)
    k = torch.randn(1, 1, 400, 16, device=DEVICE)
    k[..., 120:160, :] += 1.0
    slow, fast = both(q, k, 8)
    assert torch.equal(fast[0], slow[0])


@pytest.mark.parametrize("n", [1, 8])
def test_bins_of_several_tiles(n, monkeypatch):
    from sightline.kernels import top_keys

    monkeypatch.setattr(top_keys, "bins_for", lambda *_: 4)
    q, k = torch.randn(1, 1, 40, 16, device=DEVICE), torch.randn(1, 1, 600, 16, device=DEVICE)
    slow, fast = both(q, k, n, mask=sl.causal())
    assert torch.equal(fast[0], slow[0])
    torch.testing.assert_close(fast[1], slow[1], rtol=1e-5, atol=1e-7)


def test_a_picture_whose_columns_are_no_stretches_of_cells():
    q, k = torch.randn(1, 1, 50, 16, device=DEVICE), torch.randn(1, 1, 301, 16, device=DEVICE)
    call = make_call(q, k, k, mask=sl.causal())
    levels, request = Levels(call, rows_only(call)), sl.Top(5)
    job = plan._plan(
        call, [request, sl.Picture(7, 9), sl.Picture(cell=(4, 4), rows=slice(8, 40), columns=slice(16, 80))]
    )
    fast = gpu_plan.run(levels, job)[0][request]
    slow = plan._by_walk(levels, job)[0][request]
    assert torch.equal(fast[0], slow[0])


@pytest.mark.parametrize("rows, halves, expected", [(1 << 18, 128, 128), (1 << 20, 512, 64), (1 << 30, 4096, 16)])
def test_bins_stay_within_memory(rows, halves, expected):
    from sightline.kernels.top_keys import bins_for

    assert bins_for(8, rows, halves) == expected


def test_a_few_rows_at_a_time(monkeypatch):
    from sightline.kernels import top_keys

    monkeypatch.setattr(top_keys, "top", functools.partial(top_keys.top, at_once=1))
    q, k = torch.randn(1, 1, 5, 16, device=DEVICE), torch.randn(1, 1, 6, 16, device=DEVICE)
    slow, fast = both(q, k, 2)
    assert torch.equal(fast[0], slow[0])


@pytest.mark.parametrize("n, keys, bins", [(3, 500, 16), (3, 500, 8), (12, 500, 16), (32, 1100, 64)])
def test_rows_that_see_many_columns_and_rows_that_see_few(n, keys, bins, monkeypatch):
    """By lists, of bins of one block of columns or two, and without."""
    from sightline.kernels import top_keys

    monkeypatch.setattr(top_keys, "bins_for", lambda *_: bins)
    q, k = torch.randn(3, 1, 2, 16, device=DEVICE), torch.randn(3, 1, keys, 16, device=DEVICE)
    slow, fast = both(q, k, n, mask=sl.padding([keys, keys // 2, 40]))
    assert torch.equal(fast[0], slow[0])
    torch.testing.assert_close(fast[1], slow[1], rtol=1e-5, atol=1e-7)
