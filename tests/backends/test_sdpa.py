from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

import sightline as sl
from cases import DTYPES, Case, cases, check, inputs
from sightline.backends import reference, sdpa
from sightline.backends.call import make_call
from sightline.masks import Band


@pytest.mark.cpu_kernels
@settings(max_examples=300)
@given(cases(plain=True))
def test_it_makes_at_most_twice_the_error_of_plain_torch(case):
    check(case, "sdpa")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [-0.3, 0.0], ids=str)
@pytest.mark.parametrize("queries, keys", [(5, 5), (64, 64), (31, 64)])
def test_a_scale_that_is_not_positive(dtype, scale, queries, keys):
    """torch's causal flag hides a key by a score of -inf before the scale: times a negative scale that is +inf."""
    q, k, v = inputs(2, queries=queries, keys=keys, dim=16, dtype=dtype)
    table = torch.tril(torch.ones(queries, keys, dtype=torch.bool)).expand(2, 2, queries, keys)
    case = Case(q, k, v, {"mask": sl.causal(align="start"), "scale": scale}, table)
    check(case, "sdpa")
    check(case, "auto")


BANDS = [
    *(sl.window(6), sl.window(3, 2), sl.window(60)),
    *(sl.causal(), sl.causal(align="start"), Band(9, -4), Band(-2, None)),
]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", [*BANDS, Band(3, 5, "start"), Band(None, -40)], ids=str)
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (8, 2)])
def test_one_query_needs_only_the_keys_it_sees(dtype, mask, heads, kv_heads):
    q, k, v = inputs(2, heads=heads, kv_heads=kv_heads, queries=1, keys=40, dim=16, dtype=dtype)
    table = mask.to_dense(1, 40).expand(2, heads, 1, 40)
    bias = torch.randn(heads, 1, 40, dtype=dtype)
    for options in ({}, {"bias": bias}, {"bias": bias[..., :1]}):
        check(Case(q, k, v, {"mask": mask, **options}, table), "auto")
        out, sight = sl.observe(q, k, v, mask=mask, **options)
        assert torch.equal(out, sl.attention(q, k, v, mask=mask, **options))
        scores = (q.double() @ k.double().repeat_interleave(heads // kv_heads, -3).mT) / 4
        scores = (scores + options.get("bias", torch.zeros(1)).double()).masked_fill(~table, -torch.inf)
        torch.testing.assert_close(sight.lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", BANDS, ids=str)
def test_what_one_query_does_not_see_does_not_reach_it(mask):
    q, k, v = inputs(1, queries=1, keys=40)
    hidden = ~mask.to_dense(1, 40)[0]
    k[..., hidden, :], v[..., hidden, :] = torch.nan, torch.inf
    assert sl.attention(q, k, v, mask=mask).isfinite().all()


GRAD = {
    "nothing": {},
    "causal": {"mask": sl.causal(align="start")},
    "padding": {"mask": sl.padding([0, 5])},
    "dense": {"mask": torch.rand(2, 4, 4, 5, generator=torch.Generator().manual_seed(2)) < 0.5},
    "bias": {"bias": torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)},
    "bias and padding": {"bias": torch.ones(4, 1, 5, dtype=torch.float64), "mask": sl.padding([0, 5])},
}


@pytest.mark.parametrize("options", GRAD.values(), ids=GRAD)
@pytest.mark.parametrize("value_dim", [3, 2, 6])
def test_gradcheck(options, value_dim):
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=4, keys=5, dim=3, value_dim=value_dim, grad=True)
    assert torch.autograd.gradcheck(lambda *t: sl.attention(*t, backend="sdpa", **options), (q, k, v))


@pytest.mark.parametrize("shape", [(4, 5), (4, 1, 5), (2, 1, 1, 5), (1, 1), (5,), ()], ids=str)
def test_gradcheck_of_a_learned_bias(shape):
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=4, keys=5, dim=3, grad=True)
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, b: sl.attention(q, k, v, bias=b, backend="sdpa"), (q, k, v, bias), fast_mode=True
    )


@pytest.mark.parametrize("batch", [(), (1,), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("shape", ["whole", "heads", "rows", "keys", "one"])
def test_a_table_of_every_shape(batch, shape):
    q, k, v = inputs(*batch, heads=3, queries=4, keys=5)
    size = {"whole": (*batch, 3, 4, 5), "heads": (3, 1, 1), "rows": (4, 1), "keys": (1, 5), "one": (1, 1)}[shape]
    table = torch.rand(size) < 0.6
    bias = torch.randn(size, dtype=torch.float64)
    for options in ({"mask": table}, {"bias": bias}, {"mask": table, "bias": bias}):
        torch.testing.assert_close(
            sl.attention(q, k, v, backend="sdpa", **options), reference.matrix_view(q, k, v, **options)
        )


def test_a_band_aligned_at_the_start_with_a_limit_is_not_torchs_causal():
    """With more queries than keys the last rows have the limit to the left of every key."""
    q, k, v = inputs(1, queries=8, keys=3)
    mask = Band(2, 0, "start")
    torch.testing.assert_close(sl.attention(q, k, v, mask=mask), reference.matrix_view(q, k, v, mask=mask))


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": sl.causal()},
        {"mask": sl.padding([0, 6])},
        {"bias": torch.ones(6, 6)},
        {"mask": torch.eye(6).bool()},
    ],
    ids=["none", "causal", "padding", "bias", "dense"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_lse(options, dtype):
    q, k, v = inputs(2, heads=4, kv_heads=2, value_dim=3, dtype=dtype)
    both = sdpa.run_with_lse(make_call(q, k, v, **options))
    assert both is not None, "the CPU's kernel gives the lse"
    out, lse = both
    torch.testing.assert_close(out, sl.attention(q, k, v, backend="sdpa", **options))
    mask = make_call(q, k, v, **options).mask
    visible = torch.ones(6, 6, dtype=torch.bool) if mask is None else mask.to_dense(6, 6)
    scores = reference.scores(q.double(), k.double(), bias=options.get("bias"))
    expected = scores.masked_fill(~visible, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-5, atol=1e-5)


def test_it_is_torchs_own():
    q, k, v = inputs(2, heads=4, kv_heads=4, queries=9, keys=9, dim=8, dtype=torch.float32)
    assert torch.equal(sl.attention(q, k, v, backend="sdpa"), F.scaled_dot_product_attention(q, k, v))
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(sl.attention(q, k, v, mask=sl.causal(), backend="sdpa"), causal)


# Dropout.


def test_dropout_is_right_on_average():
    q, k, v = inputs(queries=12, keys=12)
    many = [t.expand(4000, *t.shape) for t in (q, k, v)]
    out = sl.attention(*many, dropout=0.25, backend="sdpa")
    mean, spread = out.mean(0), out.std(0) / 4000**0.5
    assert ((mean - sl.attention(q, k, v)).abs() <= 5 * spread).all()


def test_dropout_drops_its_share():
    n = 300
    q = torch.zeros(1, n, 4)
    share = (sl.attention(q, q, torch.eye(n)[None], dropout=0.3, backend="sdpa") == 0).float().mean().item()
    assert abs(share - 0.3) < 5 * 0.46 / n


def test_dropout_follows_the_seed_and_none_changes_nothing():
    q, k, v = inputs(2, queries=20, keys=20)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(sl.attention(q, k, v, dropout=0.5, backend="sdpa"))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert torch.equal(sl.attention(q, k, v, dropout=0.0, backend="sdpa"), sl.attention(q, k, v, backend="sdpa"))


def test_gradcheck_with_the_seed_held():
    q, k, v = inputs(2, queries=4, keys=5, dim=3, grad=True)

    def f(*tensors):
        torch.manual_seed(5)
        return sl.attention(*tensors, dropout=0.4, backend="sdpa")

    assert torch.autograd.gradcheck(f, (q, k, v))


@pytest.mark.parametrize("width, copies", [(64, 0), (60, 3)])
def test_flash_on_a_gpu_is_given_queries_keys_and_values_as_they_lie(width, copies):
    """A pad by nothing is a copy too, of all that a long text has."""

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            asked.append((str(func), args))
            return func(*args, **(kwargs or {}))

    asked: list = []
    x = torch.empty(1, 2, 16, width, device="meta")
    with Listen():
        out, _ = sdpa._cuda_flash(sdpa._Ready(x, x, x, None, True, False), 1.0)
    assert out.shape == x.shape
    given = next(args for name, args in asked if "flash_attention" in name)
    assert (given[0] is x) == (copies == 0)
    assert sum("pad" in name for name, _ in asked) == copies
