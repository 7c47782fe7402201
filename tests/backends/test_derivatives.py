"""Which derivatives there are, and how the others are refused."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import sightline as sl
from cases import inputs
from sightline.errors import SightlineError

CALLS = {
    "plain": {},
    "causal": {"mask": sl.causal()},
    "one query": {"mask": sl.causal()},
    "grouped": {},
    "padding": {"mask": sl.padding(4)},
    "window": {"mask": sl.window(1)},
    "soft-cap": {"softcap": 3.0},
    "alibi": {"bias": sl.alibi(4)},
    "sdpa": {"backend": "sdpa"},
    "streaming": {"backend": "streaming"},
}
calls = pytest.mark.parametrize("name", CALLS)


def tensors(name, batch=(2,)):
    kv_heads, queries = 2 if name == "grouped" else 4, 1 if name == "one query" else 5
    return inputs(*batch, heads=4, kv_heads=kv_heads, queries=queries, keys=5)


def said(caught, *facts):
    text = str(caught.value)
    assert [line.split(":")[0] for line in text.splitlines()][1:] == ["  expected", "  got", "  try"]
    for fact in (*facts, 'backend="reference"'):
        assert fact in text


@calls
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_a_second_derivative_is_refused_in_words(name, batch):
    q, k, v = (t.requires_grad_() for t in tensors(name, batch))
    (first,) = torch.autograd.grad(sl.attention(q, k, v, **CALLS[name]).square().sum(), q, create_graph=True)
    with pytest.raises(SightlineError) as caught:
        torch.autograd.grad(first.sum(), q)
    said(caught, "has no second derivative", "one backward pass")


@calls
def test_a_second_derivative_of_an_observed_call_is_refused_too(name):
    q, k, v = (t.requires_grad_() for t in tensors(name))
    out, _ = sl.observe(q, k, v, **CALLS[name])
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(SightlineError, match="has no second derivative"):
        torch.autograd.grad(first.sum(), q)


@calls
def test_a_second_derivative_under_torch_func_is_refused_in_words(name):
    q, k, v = tensors(name)

    def loss(q):
        return sl.attention(q, k, v, **CALLS[name]).square().sum()

    with pytest.raises(SightlineError) as caught:
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(q)
    said(caught, "derivative")


@calls
@pytest.mark.parametrize("way", ["jvp", "jacfwd", "hessian", "dual"])
def test_forward_mode_is_refused_in_words(name, way):
    q, k, v = tensors(name)

    def f(q):
        return sl.attention(q, k, v, **CALLS[name])

    def dual():
        with forward_ad.dual_level():
            f(forward_ad.make_dual(q, q))

    ways = {
        "jvp": lambda: torch.func.jvp(f, (q,), (q,)),
        "jacfwd": lambda: torch.func.jacfwd(f)(q),
        "hessian": lambda: torch.func.hessian(lambda q: f(q).square().sum())(q),
        "dual": dual,
    }
    with pytest.raises(SightlineError) as caught:
        ways[way]()
    said(caught, "derivative")


@pytest.mark.parametrize("options", [{}, {"mask": sl.window(1)}, {"softcap": 3.0}], ids=str)
def test_the_definition_has_them_all(options):
    q, k, v = tensors("plain")

    def f(q):
        return sl.attention(q, k, v, backend="reference", **options)

    _, tangent = torch.func.jvp(f, (q,), (torch.ones_like(q),))
    step = 1e-6
    torch.testing.assert_close(tangent, (f(q + step) - f(q - step)) / (2 * step), rtol=1e-6, atol=1e-8)
    assert torch.autograd.gradgradcheck(lambda q: f(q)[..., :1], q.requires_grad_(), fast_mode=True)


def test_one_derivative_inside_of_another_that_does_not_go_through_it():
    """The outer gradient is of a factor: what is differentiated once is done."""
    q, k, v = tensors("plain")

    def slope(factor):
        return factor * torch.func.grad(lambda x: sl.attention(x, k, v).sum())(q).sum()

    expected = torch.func.grad(lambda x: sl.attention(x, k, v).sum())(q).sum()
    torch.testing.assert_close(torch.func.grad(slope)(torch.tensor(2.0, dtype=torch.float64)), expected)


def test_autograd_around_torch_func():
    q, k, v = tensors("plain")
    gradient = torch.func.grad(lambda x: sl.attention(x, k, v).square().sum())(q.requires_grad_())
    with pytest.raises(SightlineError, match="has no second derivative"):
        gradient.sum().backward()


def test_dual_tensors_elsewhere_do_not_matter():
    q, k, v = tensors("plain")
    expected = sl.attention(q, k, v)
    with forward_ad.dual_level():
        assert torch.equal(sl.attention(q, k, v), expected)


def test_what_torch_does_by_plain_operations_has_a_second_derivative():
    """A bias that learns: torch takes no fused kernel."""
    q, k, v = tensors("plain")
    bias = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(sl.attention(q, k, v, bias=bias).square().sum(), bias, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), bias)
    assert second.isfinite().all()


def test_a_first_derivative_leaves_nothing_behind():
    q, k, v = (t.requires_grad_() for t in tensors("plain"))
    out = sl.attention(q, k, v)
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert grad.grad_fn is None
