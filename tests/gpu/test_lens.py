"""The lens on a real GPU: every statistic of the kernel against the float64 reference, made from the whole map."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.backends import reference
from sightline.lens.declared import forget

STATS = ("entropy", "max_score", "distance", "received", sl.Picture(37, 41), sl.Picture(cell=(32, 32), reduce="max"))
MASKS = {
    "none": lambda: None,
    "causal": sl.causal,
    "window": lambda: sl.window(100, 20),
    "padding": lambda: sl.causal() & sl.padding([300, 77]),
    "documents": lambda: sl.causal() & sl.documents(torch.arange(333) // 50),
}


def draw(dtype, heads=8, kv_heads=1, queries=333, keys=333, dim=64, batch=2):
    return (
        torch.randn(batch, heads, queries, dim, device="cuda").to(dtype),
        torch.randn(batch, kv_heads, keys, dim, device="cuda").to(dtype),
        torch.randn(batch, kv_heads, keys, dim, device="cuda").to(dtype),
    )


def expected(weights, scores, mask):
    *_, queries, keys = weights.shape
    place = torch.arange(queries, device="cuda") + keys - queries
    if mask is not None:
        scores = scores.masked_fill(~mask.to_dense(queries, keys, "cuda"), -torch.inf)
    return {
        "entropy": torch.special.entr(weights).sum(-1),
        "max_score": scores.amax(-1),
        "distance": (weights * (place[:, None] - torch.arange(keys, device="cuda")).abs()).sum(-1),
        "received": weights.sum(-2),
    }


def error(got, want, least=1e-2):
    """The largest error relative to the largest value; `least` is for statistics that are 0 everywhere."""
    seen = want > -torch.inf
    assert torch.equal(got > -torch.inf, seen)
    return ((got.double() - want)[seen].abs().max() / want[seen].abs().max().clamp_min(least)).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("name", MASKS)
def test_statistics_equal_the_reference(dtype, dim, name):
    mask = MASKS[name]()
    q, k, v = draw(dtype, dim=dim)
    out, sight = sl.observe(q, k, v, mask=mask, stats=STATS)
    weights = reference.weights(q.double(), k.double(), mask=mask)
    scores = reference.scores(q.double(), k.double())
    for stat, want in expected(weights, scores, mask).items():
        got = getattr(sight, stat)
        # q and k are exact in float32, so only the lse of a half-precision kernel and the sums add error.
        bound = 1e-5 if dtype == torch.float32 else 1e-4
        assert error(got() if callable(got) else got, want) <= bound, stat
    pixel = weights[..., :32, :32].amax((-1, -2))
    assert error(sight.picture(cell=(32, 32), reduce="max")[..., 0, 0], pixel) <= 1e-4
    assert (
        error(
            sight.lse,
            torch.logsumexp(
                scores if mask is None else scores.masked_fill(~mask.to_dense(333, 333, "cuda"), -torch.inf), -1
            ),
        )
        <= 1e-4
    )
    assert error(out, weights @ v.double().repeat_interleave(8, -3)) <= {torch.float32: 1e-5}.get(dtype, 2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_a_declared_statistic_goes_to_the_walk_beside_the_kernels(dtype, name):
    """All else keeps its bits."""
    near = sl.Statistic(
        "nearby", sums={"near": lambda cells: (cells.shares * (cells.distance < 9)).sum(-1)}, by_place=True
    )
    mask = MASKS[name]()
    q, k, v = draw(dtype)
    _, plain = sl.observe(q, k, v, mask=mask, stats=(*STATS, sl.Top(3)))
    sl.declare(near)
    try:
        _, sight = sl.observe(q, k, v, mask=mask, stats=("nearby", *STATS, sl.Top(3)))
        got = sight.statistic("nearby")
    finally:
        forget("nearby")
    weights = reference.weights(q.double(), k.double(), mask=mask)
    gap = (torch.arange(333, device="cuda")[:, None] - torch.arange(333, device="cuda")).abs()
    assert error(got, (weights * (gap < 9)).sum(-1)) <= (1e-5 if dtype == torch.float32 else 1e-4)
    for stat in STATS[:3]:
        assert torch.equal(getattr(sight, stat), getattr(plain, stat))
    assert torch.equal(sight.received(), plain.received())
    assert torch.equal(sight.top(3).keys, plain.top(3).keys)


@pytest.mark.parametrize("queries,keys", [(1, 1), (1, 777), (777, 1), (130, 257), (257, 130)])
def test_odd_lengths(queries, keys):
    q, k, v = draw(torch.bfloat16, queries=queries, keys=keys, dim=128)
    _, sight = sl.observe(q, k, v, mask=sl.causal(), stats=STATS[:4])
    weights = reference.weights(q.double(), k.double(), mask=sl.causal())
    scores = reference.scores(q.double(), k.double())
    for stat, want in expected(weights, scores, sl.causal()).items():
        got = getattr(sight, stat)
        assert error(got() if callable(got) else got, want) <= 1e-4, stat


def test_a_long_sequence():
    torch.manual_seed(0)
    q, k = (torch.randn(1, 2, 131_072, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    sight = sl.look(q, k, mask=sl.causal(), stats=("entropy", "received", sl.Picture(512, 512, reduce="sum")))
    assert sight.received().double().sum(-1).sub(131_072).abs().max() < 1
    assert sight.picture(size=(512, 512), reduce="sum").double().sum((-1, -2)).sub(131_072).abs().max() < 1
    # The last rows written out.
    rows = slice(131_072 - 64, 131_072)
    weights = sight.tile(rows, slice(0, 131_072)).double()
    assert error(sight.entropy[..., rows], torch.special.entr(weights).sum(-1)) <= 1e-4


def test_the_same_bits_twice():
    q, k, v = draw(torch.bfloat16, queries=1000, keys=1000, dim=128)
    first, second = (sl.observe(q, k, v, mask=sl.causal(), stats=STATS)[1] for _ in range(2))
    assert torch.equal(first.entropy, second.entropy)
    assert torch.equal(first.received(), second.received())
    assert torch.equal(first.picture(size=(37, 41)), second.picture(size=(37, 41)))


def test_what_the_kernel_leaves_to_the_walk():
    q, k, v = draw(torch.bfloat16, queries=100, keys=100)
    for options in (
        {"normalizer": "relu"},
        {"mask": sl.causal() | sl.window(3, 3)},
        {"softcap": 5.0, "normalizer": "sigmoid"},
    ):
        _, sight = sl.observe(q, k, v, stats=("entropy", "received", sl.Top(4)), **options)
        weights = reference.weights(q.double(), k.double(), **options)
        assert error(sight.received(), weights.sum(-2)) <= 1e-4
        assert error(sight.top(4).weights, weights.topk(4).values) <= 1e-4
