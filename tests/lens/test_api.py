"""`observe` gives what `attention` gives, bit for bit, and a sight that carries no gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

import sightline as sl
from cases import Case, cases, inputs
from sightline.errors import BackendError, InputError, InputTypeError

STATS = ("entropy", "received", sl.Top(3), sl.Picture(8, 8))


def differentiable(case: Case) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """New leaves for everything of a case that can have a gradient."""
    options = dict(case.options)
    leaves = [t.clone().requires_grad_() for t in (case.q, case.k, case.v)]
    for name in ("bias", "sinks"):
        if isinstance(options.get(name), torch.Tensor):
            options[name] = options[name].clone().requires_grad_()
            leaves.append(options[name])
    return leaves, options


def both_ways(case: Case, **more: Any) -> tuple[torch.Tensor, torch.Tensor, sl.Sight, list, list]:
    """Output and gradients of `attention`, then of `observe` with the same seed."""
    results = []
    for function in (sl.attention, sl.observe):
        leaves, options = differentiable(case)
        torch.manual_seed(5)
        result = function(*leaves[:3], **options, **more)
        out, sight = (result, None) if isinstance(result, torch.Tensor) else result
        grads = torch.autograd.grad(out.sum() + (out * out).sum(), leaves, allow_unused=True)
        results.append((out.detach(), sight, grads))
    (plain, _, grads), (out, sight, more_grads) = results
    return plain, out, sight, list(grads), list(more_grads)


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@settings(max_examples=100)
@given(cases())
def test_output_and_gradients_are_those_of_attention(case: Case) -> None:
    plain, out, sight, grads, more_grads = both_ways(case)
    assert same(plain, out)
    assert all(same(a, b) for a, b in zip(grads, more_grads, strict=True))
    assert not sight.row.requires_grad


@settings(max_examples=30)
@given(cases((torch.float32,), rarely=()))
def test_the_same_with_dropout(case: Case) -> None:
    plain, out, sight, grads, more_grads = both_ways(case, dropout=0.4)
    assert same(plain, out)
    assert all(same(a, b) for a, b in zip(grads, more_grads, strict=True))
    still = sl.look(case.q, case.k, **case.options)
    assert same(sight.row, still.row)
    assert same(sight.received(), still.received())


@pytest.mark.parametrize("backend", ["sdpa", "streaming", "reference"])
def test_the_same_with_a_named_backend(backend: str) -> None:
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=9, keys=9, dtype=torch.float32)
    plain, out, sight, grads, more_grads = both_ways(Case(q, k, v, {"mask": sl.causal()}), backend=backend)
    assert same(plain, out)
    assert all(same(a, b) for a, b in zip(grads, more_grads, strict=True))
    assert torch.allclose(sight.tile(slice(None), slice(None)).sum(-1), torch.ones(2, 4, 9))


def test_the_same_where_the_last_axis_is_not_the_fastest() -> None:
    q, k, v = (torch.randn(2, 3, 8, 20).mT for _ in range(3))
    plain, out, *_ = both_ways(Case(q, k, v))
    assert same(plain, out)
    assert same(sl.observe(q, k, v)[0], sl.attention(q, k, v))


def test_the_same_with_nan_in_what_is_hidden() -> None:
    q, k, v = inputs(1, queries=5, keys=5, dtype=torch.float32)
    v[..., 4, :] = torch.nan
    out, sight = sl.observe(q, k, v, mask=sl.padding([4]), stats=STATS)
    assert same(out, sl.attention(q, k, v, mask=sl.padding([4])))
    assert out.isfinite().all()
    assert sight.entropy.isfinite().all()


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(2)], ids=str)
def test_a_bias_that_learns(mask: sl.Mask | None) -> None:
    q, k, v = inputs(1, queries=6, keys=6, dtype=torch.float32, grad=True)
    bias = torch.randn(6, 6, requires_grad=True)
    out, sight = sl.observe(q, k, v, bias=bias, mask=mask, stats=STATS)
    assert same(out, sl.attention(q, k, v, bias=bias, mask=mask))
    assert torch.allclose(sight.lse, sl.look(q, k, bias=bias.detach(), mask=mask).lse)
    assert not sight.lse.requires_grad


def test_statistics_carry_no_gradient() -> None:
    q, k, v = inputs(1, dtype=torch.float32, grad=True)
    sinks = torch.randn(2, requires_grad=True)
    bias = torch.randn(6, 6, requires_grad=True)
    r = torch.ones(1, 2, 6, requires_grad=True)
    for sight in (sl.observe(q, k, v, sinks=sinks, bias=bias)[1], sl.look(q, k, sinks=sinks, bias=bias)):
        found = [getattr(sight, name) for name in ("lse", "entropy", "max_score", "distance", "total", "sink_share")]
        found += [sight.received(), sight.received(r), *sight.top(2), sight.picture(size=(3, 9))]
        found += [sight.tile(slice(None), slice(None)), sight.picture(size=(3, 9), visible_only=True)]
        assert not any(t.requires_grad for t in found)


def test_a_sight_shows_the_weights_before_dropout() -> None:
    q, k, v = inputs(1, queries=30, keys=30, dtype=torch.float32)
    sight = sl.observe(q, k, v, dropout=0.9)[1]
    assert torch.equal(sight.tile(slice(None), slice(None)), sl.look(q, k).tile(slice(None), slice(None)))
    assert torch.allclose(sight.received().sum(-1), torch.full((1, 2), 30.0))


def test_look_needs_no_values_and_takes_no_dropout() -> None:
    q, k, _ = inputs()
    with pytest.raises((TypeError, InputError), match="dropout"):
        sl.look(q, k, dropout=0.5)


@pytest.mark.parametrize("keys", [0, 3])
@pytest.mark.parametrize("queries", [0, 3])
@pytest.mark.parametrize("batch", [(), (0,), (2,)])
def test_nothing_to_look_at(batch: tuple[int, ...], queries: int, keys: int) -> None:
    q, k, v = inputs(*batch, queries=queries, keys=keys)
    for mask in (
        None,
        sl.causal(),
        sl.padding(torch.full(batch, keys)),
        sl.documents(torch.zeros(queries).long(), torch.zeros(keys).long()),
    ):
        out, sight = sl.observe(q, k, v, mask=mask, stats=("entropy", "distance", "max_score", "received", "top"))
        assert out.shape == (*batch, 2, queries, 4)
        assert sight.lse.shape == sight.entropy.shape == (*batch, 2, queries)
        assert sight.received().shape == (*batch, 2, keys)
        assert sight.top().keys.shape == (*batch, 2, queries, 8)
        if not keys:
            assert sight.lse.eq(-torch.inf).all()
            assert sight.entropy.eq(0).all()


@pytest.mark.parametrize(
    "stats, error, text",
    [
        ("entropies", InputError, "unknown statistic"),
        (("entropy", "median"), InputError, "unknown statistic"),
        ((3,), InputError, "unknown statistic"),
        (5, InputTypeError, "stats is a tuple"),
        (None, InputTypeError, "stats is a tuple"),
        ({"entropy": True}, InputTypeError, "stats is a tuple"),
    ],
)
def test_statistics_that_do_not_exist(stats: object, error: type, text: str) -> None:
    q, k, v = inputs()
    for ask in (lambda: sl.observe(q, k, v, stats=stats), lambda: sl.look(q, k, stats=stats)):
        with pytest.raises(error, match=text) as caught:
            ask()
        assert "entropy, max_score, distance, received, top, picture" in str(caught.value)
        assert 'try: stats=("entropy", "received")' in str(caught.value)


def test_bad_statistics_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.lens.api.output_and_rows", lambda *_: pytest.fail("computed"))
    q, k, v = inputs()
    with pytest.raises(InputError, match="unknown statistic"):
        sl.observe(q, k, v, stats="entropies")


def test_a_backend_by_name_is_used_or_refused() -> None:
    q, k, v = inputs()
    with pytest.raises(BackendError, match="sdpa"):
        sl.observe(q, k, v, softcap=2.0, backend="sdpa")
    with pytest.raises(InputError, match="unknown backend"):
        sl.observe(q, k, v, backend="fast")
