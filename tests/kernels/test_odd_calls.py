"""Calls as users have them: memory in any order, several axes of batches, odd sizes, much asked for at once."""

from __future__ import annotations

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

    if DEVICE == "cpu":
        monkeypatch.setattr(layout, "default_tiling", lambda *_: layout.Tiling(32, 32, 4, 1))
    monkeypatch.setattr(gpu_plan, "_PART", 8)
    gpu_plan._goes.cache_clear()
    yield
    gpu_plan._goes.cache_clear()


def randn(*size):
    return torch.randn(*size, device=DEVICE)


def heads_last(*size):
    *batch, heads, time, dim = size
    return randn(*batch, time, heads, dim).transpose(-3, -2)


def begins_anywhere(*size):
    return randn(1 + torch.Size(size).numel())[1:].view(size)


def cut_out(*size):
    return randn(*size[:-1], 3 * size[-1] + 1)[..., size[-1] : 2 * size[-1]]


def same_for_all_batches(*size):
    return randn(*size[-3:]).expand(size)


def same_for_all_heads(*size):
    return randn(*size[:-3], 1, *size[-2:]).expand(size)


def same_for_all_times(*size):
    return randn(*size[:-2], 1, size[-1]).expand(size)


MEMORY = (heads_last, begins_anywhere, cut_out, same_for_all_batches, same_for_all_heads, same_for_all_times)
SHAPES = [  # batch, heads, heads of the keys, queries, keys, dim
    ((1, 2), 2, 1, 37, 45, 20),
    ((2,), 1, 1, 33, 65, 8),
    ((), 4, 2, 1, 40, 1),
]


EVERY = [(memory, shape) for memory in MEMORY for shape in SHAPES]


# Triton's interpreter takes its time: there each memory has one shape.
@pytest.mark.parametrize("memory, shape", EVERY if DEVICE == "cuda" else EVERY[::4] + EVERY[1::9])
def test_every_order_of_memory(memory, shape):
    batch, heads, kv_heads, queries, keys, dim = shape
    mask = sl.causal()
    if batch:
        lengths = keys - torch.arange(torch.Size(batch).numel(), device=DEVICE).view(batch)
        mask = sl.window(25) & sl.padding(lengths)
    q = memory(*batch, heads, queries, dim)
    k = (memory if memory is not same_for_all_times else randn)(*batch, kv_heads, keys, dim)  # not all equally strong
    agrees(q, k, mask=mask, sinks=randn(heads))


def test_pixels_of_many_columns_are_whole_numbers(monkeypatch):
    monkeypatch.setattr(gpu_plan, "_PARTS", 1)
    wide = [sl.Picture(cell=(9, 200)), sl.Picture(cell=(40, 300), reduce="max")]
    agrees(randn(2, 1, 50, 16), randn(2, 1, 300, 16), requests=wide, mask=sl.causal())


def agrees(q, k, requests=(), **options):
    call = make_call(q, k, k, **options)
    queries, keys = call.sizes.queries, call.sizes.keys
    part = {"rows": slice(queries // 3, queries), "columns": slice(2, keys - 3)}
    pictures = requests or [sl.Picture(4, 5), sl.Picture(40, 50, reduce="max"), sl.Picture(cell=(7, 13), **part)]
    wanted = ["entropy", "max_score", "distance", "total", "received", sl.Top(2), *pictures]
    levels, job = Levels(call, rows_only(call)), plan._plan(call, wanted)
    found = gpu_plan.run(levels, job)
    assert found is not None
    slow, fast = (plan._with_pictures(call, job, *both) for both in (plan._by_walk(levels, job), found))
    for name in wanted:
        torch.testing.assert_close(fast[name], slow[name], rtol=2e-5, atol=2e-5, msg=str(name))
