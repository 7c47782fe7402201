from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import DTYPES, SHORT, Case, cases, check, error, exact, inputs
from sightline.backends import cpu_bands, passes, reference, streaming
from sightline.backends.call import make_call
from sightline.errors import SightlineError
from sightline.positions import alibi


def stream(q, k, v, **options):
    return sl.attention(q, k, v, backend="streaming", **options)


@settings(max_examples=300)
@given(cases())
def test_it_makes_at_most_twice_the_error_of_plain_torch(case):
    check(case, "streaming")


@settings(max_examples=300)
@given(cases(dtypes=(torch.float64, torch.float32), rarely=(), usually=SHORT), st.integers(1, 9), st.integers(1, 9))
def test_the_size_of_tiles_does_not_matter(case, height, width):
    """Small tiles, so that small shapes have many of them: first rows empty, last tiles ragged, runs with gaps."""
    with (
        patch.object(passes, "_tile_size", lambda call: (height, width)),
        patch.object(cpu_bands, "_height", lambda call: height),
        patch.object(cpu_bands, "_WIDTH", width),
    ):
        check(case, "streaming")


@settings(max_examples=150)
@given(cases(dtypes=(torch.float64,), rarely=(), usually=SHORT), st.integers(1, 9), st.integers(1, 9))
def test_gradients_with_small_tiles_equal_those_of_the_definition(case, height, width):
    tensors = [t.clone().requires_grad_() for t in (case.q, case.k, case.v)]
    learned = {
        name: value.double().clone().requires_grad_()
        for name, value in case.options.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.isfinite().all()
    }
    options = {**case.options, **learned}
    table = case.table
    if table is not None and case.q.dim() == 2:
        table = table[0]
    with (
        patch.object(passes, "_tile_size", lambda call: (height, width)),
        patch.object(cpu_bands, "_height", lambda call: height),
        patch.object(cpu_bands, "_WIDTH", width),
    ):
        out = stream(*tensors, **options)
        direction = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        ours = torch.autograd.grad(
            out, [*tensors, *learned.values()], direction, allow_unused=True, materialize_grads=True
        )
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    again = {name: value.detach().clone().requires_grad_() for name, value in learned.items()}
    three = [t[None] if t.dim() == 2 else t for t in leaves]
    truth = reference.matrix_view(*three, **{**case.options, **again})
    theirs = torch.autograd.grad(
        truth, [*leaves, *again.values()], direction.reshape(truth.shape), allow_unused=True, materialize_grads=True
    )
    for a, b in zip(ours, theirs, strict=True):
        # Rows that only a bias of -inf hides have NaN in the definition's own gradient; that is tested by itself.
        if b.isfinite().all():
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


GRAD = {
    # bands of torch's fused kernel
    "nothing": {},
    "causal": {"mask": sl.causal()},
    "window": {"mask": sl.window(2, 1)},
    "prefix": {"mask": sl.prefix(2)},
    "padding": {"mask": sl.padding([0, 5])},
    "documents": {"mask": sl.documents([0, 1, 0, 1, 1])},
    "alibi": {"bias": alibi(4), "mask": sl.causal()},
    "bias": {"bias": torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64), "mask": sl.window(1)},
    # tiles
    "softcap": {"softcap": 2.0, "mask": sl.window(2)},
    "softcap, bias, sinks": {"softcap": 2.0, "bias": alibi(4), "sinks": torch.zeros(4, dtype=torch.float64)},
    "relu": {"normalizer": "relu", "mask": sl.causal()},
    "relu with a bias": {"normalizer": "relu", "bias": alibi(4)},
    "sigmoid": {"normalizer": "sigmoid", "mask": sl.padding([0, 5])},
    "sigmoid with a soft-cap": {"normalizer": "sigmoid", "softcap": 1.5},
    "uniform": {"normalizer": "uniform", "mask": sl.causal()},
}


@pytest.mark.parametrize("options", GRAD.values(), ids=GRAD)
def test_gradcheck(options):
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=4, keys=5, dim=3, value_dim=2, grad=True)
    assert torch.autograd.gradcheck(lambda *t: stream(*t, **options), (q, k, v))


@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 4, 5), (4, 1, 5), (1, 1), (2, 1, 1, 1), (5,), ()], ids=str)
@pytest.mark.parametrize("normalizer", ["softmax", "relu", "sigmoid", "uniform"])
def test_gradcheck_of_a_learned_bias(shape, normalizer):
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=4, keys=5, dim=2, grad=True)
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, b: stream(q, k, v, bias=b, mask=sl.window(2), normalizer=normalizer),
        (q, k, v, bias),
        fast_mode=True,
    )


@pytest.mark.parametrize("shape", [(4,), (2, 4), (1,), ()], ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck_of_learned_sinks(shape, softcap):
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=4, keys=5, dim=2, grad=True)
    sinks = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = sl.padding([0, 4])
    assert torch.autograd.gradcheck(
        lambda q, k, v, s: stream(q, k, v, sinks=s, mask=mask, softcap=softcap), (q, k, v, sinks), fast_mode=True
    )


LARGE = {
    "bands": {"mask": sl.causal() & sl.window(260)},
    "bands with gaps": {"mask": sl.prefix(5) & (sl.window(40) | sl.dense(torch.arange(700)[None] < 5))},
    "bands, alibi and sinks": {"mask": sl.causal(), "bias": alibi(4), "sinks": torch.zeros(4)},
    "tiles": {"mask": sl.window(300, 20), "softcap": 4.0},
    "relu": {"mask": sl.causal(), "normalizer": "relu"},
    "sigmoid": {"mask": sl.padding([700, 100]), "normalizer": "sigmoid"},
    "uniform": {"mask": sl.causal(), "normalizer": "uniform"},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("options", LARGE.values(), ids=LARGE)
def test_gradients_over_several_tiles_equal_those_of_the_definition(options, dtype):
    tensors = inputs(2, heads=4, kv_heads=2, queries=300, keys=700, dim=8, value_dim=5, dtype=dtype, grad=True)
    direction = torch.randn(2, 4, 300, 5, dtype=dtype)
    ours = torch.autograd.grad(
        stream(*tensors, **options), tensors, direction, materialize_grads=True, allow_unused=True
    )

    def plain(dtype):
        """Autograd through the definition, in a precision."""
        leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
        given = {name: value.to(dtype) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        out = reference.matrix_view(*leaves, **given)
        return torch.autograd.grad(out, leaves, direction.to(dtype), materialize_grads=True, allow_unused=True)

    for a, same, truth in zip(ours, plain(dtype), plain(torch.float64), strict=True):
        assert error(a, truth) <= 2 * error(same, truth) + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", LARGE.values(), ids=LARGE)
def test_gradients_in_half_precision(options, dtype):
    tensors = inputs(2, heads=4, kv_heads=2, queries=300, keys=700, dim=8, value_dim=5, dtype=dtype, grad=True)
    direction = torch.randn(2, 4, 300, 5).to(dtype)

    def gradients(dtype, attend):
        leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
        return torch.autograd.grad(
            attend(*leaves, **options), leaves, direction.to(dtype), materialize_grads=True, allow_unused=True
        )

    truth = gradients(torch.float64, reference.matrix_view)
    plain = gradients(dtype, reference.matrix_view)
    for a, same, exactly in zip(gradients(dtype, stream), plain, truth, strict=True):
        assert a.dtype == dtype
        assert error(a, exactly) <= 2 * error(same, exactly) + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"sinks": torch.tensor([0.0, 2.0])}], ids=str)
def test_the_number_of_a_row_is_its_lse(options, dtype):
    q, k, v = inputs(2, queries=30, keys=40, dtype=dtype)
    mask = sl.padding([0, 33]) & sl.causal()
    _, lse = streaming.run_with_rows(make_call(q, k, v, mask=mask, **options))
    without = {name: value for name, value in options.items() if name != "sinks"}
    scores = reference.scores(q.double(), k.double(), **without).masked_fill(~mask.to_dense(30, 40), -torch.inf)
    expected = scores.logsumexp(-1)
    if "sinks" in options:
        expected = torch.logaddexp(expected, options["sinks"].double()[:, None])
        assert lse.isfinite().all()
    else:
        assert (lse[0] == -torch.inf).all()
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_number_of_a_row_is_what_it_may_see():
    q, k, v = inputs(2, queries=30, keys=40)
    mask = sl.padding([0, 33]) & sl.causal()
    _, count = streaming.run_with_rows(make_call(q, k, v, mask=mask, normalizer="relu"))
    assert torch.equal(count, mask.to_dense(30, 40).sum(-1).expand(2, 2, 30).double())


@pytest.mark.parametrize("options", [{"mask": sl.window(1)}, {"softcap": 3.0}], ids=["bands", "tiles"])
def test_a_second_derivative_is_refused_with_the_remedy(options):
    q, k, v = inputs(grad=True)
    (first,) = torch.autograd.grad((stream(q, k, v, **options) ** 2).sum(), q, create_graph=True)
    with pytest.raises(SightlineError) as caught:
        torch.autograd.grad(first.sum(), q)
    text = str(caught.value)
    for fact in (
        "no second derivative",
        "expected: one backward pass",
        "got: a gradient of a gradient",
        'try: backend="reference"',
    ):
        assert fact in text


def test_a_second_derivative_under_torch_func_is_refused_too():
    q, k, v = inputs()

    def loss(q):
        return (stream(q, k, v, mask=sl.window(1)) ** 2).sum()

    with pytest.raises(SightlineError, match="no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(q)


# Dropout.

DROPPED = {"softmax": {"mask": sl.window(5, 5)}, "relu": {"normalizer": "relu"}, "softcap": {"softcap": 3.0}}


@pytest.mark.parametrize("options", DROPPED.values(), ids=DROPPED)
def test_dropout_is_right_on_average(options):
    q, k, v = inputs(queries=12, keys=12)
    many = [t.expand(4000, *t.shape) for t in (q, k, v)]
    out = stream(*many, dropout=0.25, **options)
    mean, spread = out.mean(0), out.std(0) / 4000**0.5
    assert ((mean - stream(q, k, v, **options)).abs() <= 5 * spread + 1e-12).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(p):
    """With the identity as values the output is the map itself."""
    n = 700
    q = k = torch.zeros(1, n, 4)
    out = stream(q, k, torch.eye(n)[None], dropout=p)
    share = (out == 0).float().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p)) ** 0.5 / n
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / n / (1 - p)))
    tiles = out[0, :512, :512].reshape(2, 256, 512)
    assert not torch.equal(tiles[0], tiles[1]), "every tile draws its own"


def test_dropout_follows_the_seed():
    q, k, v = inputs(2, queries=20, keys=20)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(stream(q, k, v, dropout=0.5))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert not torch.equal(stream(q, k, v, dropout=0.5), stream(q, k, v, dropout=0.5))


def test_no_dropout_changes_nothing_not_even_the_generator():
    q, k, v = inputs(2, queries=20, keys=20)
    before = torch.get_rng_state()
    assert torch.equal(stream(q, k, v, dropout=0.0), stream(q, k, v))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", DROPPED.values(), ids=DROPPED)
def test_gradcheck_with_the_seed_held(options):
    q, k, v = inputs(2, queries=4, keys=5, dim=3, value_dim=2, grad=True)

    def f(*tensors):
        torch.manual_seed(5)
        return stream(*tensors, dropout=0.4, **options)

    assert torch.autograd.gradcheck(f, (q, k, v))


def test_statistics_carry_no_gradient():
    q, k, v = inputs(grad=True)
    out, lse = streaming.run_with_rows(make_call(q, k, v, mask=sl.window(2)))
    assert out.requires_grad
    assert not lse.requires_grad


def test_scores_may_be_large():
    q, k, v = inputs(queries=5, keys=6, dtype=torch.float32)
    for options in ({}, {"softcap": 1e4}, {"normalizer": "sigmoid"}):
        case = Case(q * 1e3, k, v, options)
        assert error(stream(case.q, k, v, **options), exact(case)) < 1e-3
