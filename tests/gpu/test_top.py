"""The strongest keys on a real GPU, against the float64 map.

They are found by lists, with bins of one block of keys or several, and without for rows that see few keys.
"""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.backends import reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = {
    "causal": (8, BF16, 128, 3000, {"mask": sl.causal()}),
    "one key": (1, FP16, 64, 2500, {}),
    "three keys": (3, BF16, 128, 2500, {"mask": sl.causal()}),
    "sixteen keys": (16, BF16, 128, 6000, {"mask": sl.causal()}),
    "thirty-two keys": (32, BF16, 128, 9000, {"mask": sl.causal()}),
    "thirty-two keys, wide bins": (32, BF16, 64, 20_000, {"mask": sl.causal()}),
    "wide bins": (8, FP16, 128, 20_000, {}),
    "float32": (8, FP32, 64, 3000, {"mask": sl.causal()}),
    "float32, thirty keys": (30, FP32, 128, 4000, {}),
    "large heads": (8, BF16, 256, 3000, {"mask": sl.causal()}),
    "odd heads": (8, FP16, 80, 3000, {"mask": sl.window(1500, 10)}),
    "a short window": (8, BF16, 128, 3000, {"mask": sl.window(100)}),
    "documents": (8, BF16, 128, 3000, {"mask": sl.causal() & sl.documents(torch.arange(3000) // 1300)}),
    "padding": (8, BF16, 128, 2600, {"mask": sl.padding([2600, 1100])}),
    "a table": (8, BF16, 128, 2600, {"mask": torch.arange(2600)[:, None] % 37 == torch.arange(2600) % 37}),
    "alibi and soft-cap": (8, BF16, 128, 2600, {"mask": sl.causal(), "bias": sl.alibi(4), "softcap": 5.0}),
}


def draw(dtype, dim, length, keys=None):
    torch.manual_seed(0)
    batch, heads = (1, 1) if length > 10_000 else (2, 4)
    shapes = ((batch, heads, length, dim), (batch, heads // 2 or 1, keys or length, dim))
    return tuple(torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)


def check(q, k, n, **options):
    stats = ("received", sl.Picture(64, 64), "max_score", sl.Top(n))
    sight = sl.look(q, k, stats=stats, **options)
    found = sight.top(n)
    weights = reference.weights(q.double(), k.double(), **options)
    want = weights.topk(n).values
    some = want > 0
    assert torch.equal(found.keys >= 0, some)
    assert ((found.weights - want).abs() <= 2e-4 * want).all()
    # Keys may differ only where weights are as good as equal, and no key comes twice.
    there = weights.gather(-1, found.keys.clamp_min(0)) * some
    assert ((there - want).abs() <= 2e-4 * want).all()
    ordered = found.keys.sort(-1).values
    assert ((ordered[..., 1:] != ordered[..., :-1]) | (ordered[..., 1:] < 0)).all()
    assert ((sight.top(1).weights[..., 0] - want[..., 0]).abs() <= 2e-4 * want[..., 0]).all()
    again = sl.look(q, k, stats=stats, **options).top(n)
    assert torch.equal(again.keys, found.keys)
    assert torch.equal(again.weights, found.weights)


@pytest.mark.parametrize("name", CASES)
def test_the_strongest_keys_are_those_of_the_map(name):
    n, dtype, dim, length, options = CASES[name]
    options = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    check(*draw(dtype, dim, length), n, **options)


@pytest.mark.parametrize("n", [8, 32])
def test_all_of_the_strongest_next_to_each_other(n):
    """More of a bin than there is room for at first."""
    q, k = draw(BF16, 128, 700, keys=6000)
    q = torch.ones_like(q) + 0.1 * q
    k[..., 3000:3060, :] += 0.5
    check(q, k, n)


@pytest.mark.parametrize("queries,keys", [(1, 1), (1, 5000), (5000, 1), (130, 2057)])
def test_odd_lengths(queries, keys):
    q, k = draw(BF16, 128, queries, keys=keys)
    check(q, k, min(8, keys), mask=sl.causal())
