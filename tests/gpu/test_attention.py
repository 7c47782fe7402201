"""Attention on a real GPU: every backend against the float64 reference, in forward and backward."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.backends import reference

CASES = {
    "plain": {},
    "causal": {"mask": sl.causal()},
    "window": {"mask": sl.window(64)},
    "causal padding": {"mask": sl.causal() & sl.padding([600, 0])},
    "documents": {"mask": sl.documents(torch.arange(600) // 70)},
    "window, flex": {"mask": sl.window(64), "backend": "flex"},
    "causal padding, flex": {"mask": sl.causal() & sl.padding([600, 0]), "backend": "flex"},
    "documents, flex": {"mask": sl.documents(torch.arange(600) // 70), "backend": "flex"},
    "soft-cap": {"mask": sl.causal(), "softcap": 5.0},
    "alibi": {"mask": sl.causal(), "bias": sl.alibi(8)},
    "sinks": {"mask": sl.causal(), "sinks": torch.linspace(-1, 2, 8)},
    "relu": {"mask": sl.causal(), "normalizer": "relu"},
    "dense": {"mask": torch.arange(600)[:, None] % 7 != torch.arange(600) % 5},
}


def draw(dtype, queries=600, keys=600):
    torch.manual_seed(0)
    shapes = ((2, 8, queries, 64), (2, 2, keys, 64), (2, 2, keys, 64))
    return tuple(torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in shapes)


def to_gpu(options):
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in options.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_equal_the_reference(name, dtype):
    options = to_gpu(CASES[name])
    q, k, v = draw(dtype)
    out = sl.attention(q, k, v, **options)
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), grad)
    exact = tuple(t.detach().double().requires_grad_() for t in (q, k, v))
    want = reference.matrix_view(*exact, **{name: option for name, option in options.items() if name != "backend"})
    wants = torch.autograd.grad(want, exact, grad.double())
    bound = {torch.float32: 2e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    for got, expected in zip((out, *grads), (want, *wants), strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).norm() <= bound * expected.norm()


@pytest.mark.parametrize("backend", ["auto", "flex"])
@pytest.mark.parametrize("name", ["window", "causal padding"])
def test_rows_that_see_nothing_give_zero(name, backend):
    q, k, v = draw(torch.bfloat16, queries=700, keys=600)
    mask = {"window": sl.window(64), "causal padding": sl.causal() & sl.padding([600, 0])}[name]
    out = sl.attention(q, k, v, mask=mask, backend=backend)
    hidden = ~mask.to_dense(700, 600, "cuda").any(-1).expand(2, 8, 700)
    assert hidden.any()
    assert (out[hidden] == 0).all()
    out.sum().backward()
    assert (q.grad[hidden] == 0).all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_a_row_hidden_by_a_table_gives_zero():
    q, k, v = draw(torch.bfloat16)
    table = torch.ones(600, 600, dtype=torch.bool, device="cuda")
    table[5] = False
    out = sl.attention(q, k, v, mask=table)
    out.sum().backward()
    assert (out[:, :, 5] == 0).all()
    assert (q.grad[:, :, 5] == 0).all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_rows_of_a_table_that_changes_are_looked_at_anew():
    """The answer comes later than the first calls, and holds only for the table as it was."""
    q, k, v = (t.detach() for t in draw(torch.bfloat16))
    table = torch.ones(600, 600, dtype=torch.bool, device="cuda")
    padding = sl.padding(torch.tensor([600, 600], device="cuda"))
    for _ in range(3):
        assert (sl.attention(q, k, v, mask=table)[:, :, 5] != 0).any()
        assert (sl.attention(q, k, v, mask=padding) != 0).any()
        torch.cuda.synchronize()
    table[5], padding.lengths[1] = False, 0
    for _ in range(3):
        assert (sl.attention(q, k, v, mask=table)[:, :, 5] == 0).all()
        assert (sl.attention(q, k, v, mask=padding)[1] == 0).all()
        torch.cuda.synchronize()


def test_a_recorded_call_stays_right_for_another_table():
    q, k, v = (t.detach() for t in draw(torch.bfloat16))
    table = torch.ones(600, 600, dtype=torch.bool, device="cuda")
    for _ in range(3):
        sl.attention(q, k, v, mask=table)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sl.attention(q, k, v, mask=table)
    table[5] = False
    graph.replay()
    assert (out[:, :, 5] == 0).all()


def test_which_backend():
    q, k, v = draw(torch.bfloat16)
    assert sl.which_backend(q, k, v, mask=sl.causal()).backend == "sdpa"
    assert sl.which_backend(q, k, v, mask=sl.window(9)).backend == "sdpa", "short: written out"
    assert sl.which_backend(*draw(torch.bfloat16, 4096, 4096), mask=sl.window(9)).backend == "flex"
    assert sl.which_backend(q, k, v, normalizer="relu").backend == "streaming"


def test_compiled_as_one_graph():
    q, k, v = (t.detach() for t in draw(torch.bfloat16))
    compiled = torch.compile(lambda q, k, v: sl.attention(q, k, v, mask=sl.causal()), fullgraph=True)
    exact = reference.matrix_view(q.double(), k.double(), v.double(), mask=sl.causal())
    # A compiled call takes torch's kernel, another one begins a shape with flash: neither is much further off.
    eager = (sl.attention(q, k, v, mask=sl.causal()).double() - exact).abs().max()
    assert (compiled(q, k, v).double() - exact).abs().max() <= 2 * eager


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_by_streaming_what_is_hidden_reaches_no_output_and_no_gradient(name, value):
    q, k, v = (t.detach() for t in draw(torch.float32))
    {"q": q, "k": k, "v": v}[name][:, :, 590, :] = value
    leaves = [t.requires_grad_() for t in (q, k, v)]
    mask = sl.causal() & sl.window(64)
    out = sl.attention(*leaves, mask=mask, backend="streaming")
    out.square().sum().backward()
    strange = slice(590, 591) if name == "q" else slice(590, 600)
    clean = torch.ones(600, dtype=torch.bool, device="cuda")
    clean[strange] = False
    unseen = slice(0, 590 - 64)
    assert out[:, :, clean].isfinite().all()
    assert leaves[0].grad[:, :, clean].isfinite().all()
    assert all(t.grad[:, :, unseen].isfinite().all() for t in leaves[1:])


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_by_torchs_kernels_what_is_not_finite_stays_in_its_head_and_sequence(backend):
    """All that holds there: values are not looked at, and a hidden one may reach rows of its own head."""
    q, k, v = (t.detach() for t in draw(torch.bfloat16))
    v[0, 0, 590] = float("nan")
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = sl.attention(*leaves, mask=sl.causal(), backend=backend)
    out.float().square().sum().backward()
    assert out[0, :4, 590:].isnan().all()
    assert out[1].isfinite().all()
    assert out[0, 4:].isfinite().all()
    assert all(t.grad[1].isfinite().all() for t in leaves)
    assert all(t.grad[0, t.shape[1] // 2 :].isfinite().all() for t in leaves)
