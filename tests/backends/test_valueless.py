"""Calls on tensors without values: the shape, dtype and device are those of the real call, and nothing is looked at."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import sightline as sl
from sightline.positions import alibi


def masks(batch, queries, keys, device):
    lengths = torch.ones(batch, dtype=torch.int64, device=device)
    ids = [torch.zeros(*batch, n, dtype=torch.int64, device=device) for n in (queries, keys)]
    return {
        "none": None,
        "causal": sl.causal(),
        "start": sl.causal(align="start"),
        "window": sl.window(2, 1),
        "prefix": sl.prefix(2),
        "lengths": sl.padding(lengths),
        "real": sl.padding(torch.ones(*batch, keys, dtype=torch.bool, device=device)),
        "documents": sl.documents(*ids),
        "table": torch.ones(queries, keys, dtype=torch.bool, device=device),
        "dense": sl.dense(torch.ones(*batch, 1, queries, keys, dtype=torch.bool, device=device)),
        "and": sl.causal() & sl.padding(lengths),
        "or": sl.window(1) | sl.prefix(1),
        "not": ~sl.window(1),
    }


OPTIONS = {
    "softmax": lambda device: {},
    "relu": lambda device: {"normalizer": "relu"},
    "sigmoid": lambda device: {"normalizer": "sigmoid"},
    "uniform": lambda device: {"normalizer": "uniform"},
    "soft-cap": lambda device: {"softcap": 3.0},
    "alibi": lambda device: {"bias": alibi(4)},
    "bias": lambda device: {"bias": torch.zeros(1, 1, device=device)},
    "sinks": lambda device: {"sinks": torch.zeros(4, device=device)},
}


@pytest.mark.parametrize("where", ["meta", "fake"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_every_mask_grouping_and_normaliser(where, name, kv_heads):
    device = "meta" if where == "meta" else "cpu"
    with nullcontext() if where == "meta" else FakeTensorMode():
        for batch in ((), (2, 3)):
            for queries, keys in ((5, 7), (1, 7), (3, 0)):
                for rule, mask in masks(batch, queries, keys, device).items():
                    for backend in ("auto", "reference"):
                        q = torch.empty(*batch, 4, queries, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
                        k = torch.empty(*batch, kv_heads, keys, 8, device=device, dtype=torch.bfloat16)
                        v = torch.empty(*batch, kv_heads, keys, 3, device=device, dtype=torch.bfloat16)
                        out = sl.attention(q, k, v, mask=mask, backend=backend, **OPTIONS[name](device))
                        assert out.shape == (*batch, 4, queries, 3), f"{rule} by {backend}"
                        assert (out.dtype, out.device) == (q.dtype, q.device)
                        assert out.is_contiguous()
                        (grad,) = torch.autograd.grad(out.sum(), q)
                        assert (grad.shape, grad.dtype) == (q.shape, q.dtype)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_two_axes_dropout_and_autocast(dropout):
    q = torch.empty(5, 8, device="meta")
    assert sl.attention(q, q, q, mask=sl.causal(), dropout=dropout).shape == (5, 8)
    with FakeTensorMode(), torch.autocast("cpu", dtype=torch.bfloat16):
        q = torch.empty(5, 8)
        assert sl.attention(q, q, q, mask=sl.window(1), dropout=dropout).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "mask", [sl.padding([1, 2]), sl.documents([0, 0, 1]), torch.ones(3, 3, dtype=torch.bool)], ids=str
)
@pytest.mark.parametrize("backend", ["auto", "sdpa", "streaming", "reference"])
def test_a_real_mask_over_fake_tensors(mask, backend):
    if backend == "sdpa" and isinstance(mask, sl.masks.Documents):
        mask = mask & sl.dense(torch.ones(3, 3, dtype=torch.bool))
        backend = "auto"
    with FakeTensorMode() as mode:
        q = torch.empty(2, 4, 3, 8)
        assert sl.attention(q, q, q, mask=mask, backend=backend).shape == q.shape
    outside = mode.from_tensor(torch.zeros(2, 4, 3, 8))
    out = sl.attention(outside, outside, outside, mask=mask, backend=backend)
    assert isinstance(out, FakeTensor)
    assert out.shape == (2, 4, 3, 8)


def test_what_does_not_fit_is_refused_all_the_same():
    q, k = torch.empty(2, 4, 3, 8, device="meta"), torch.empty(2, 3, 5, 8, device="meta")
    with pytest.raises(sl.errors.InputError, match="multiple of the heads"):
        sl.attention(q, k, k)
    with pytest.raises(sl.errors.BackendError, match="SDPA has no soft-cap"):
        sl.attention(q, q, q, softcap=1.0, backend="sdpa")


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("mask", [None, sl.causal()], ids=str)
def test_where_torch_writes_a_call_down_it_is_the_call(mode, mask):
    """Tensors without values also stand for others while a graph is made."""
    x = torch.randn(2, 4, 7, 8)
    graph = make_fx(lambda x: sl.attention(x, x, x, mask=mask), tracing_mode=mode if mask is None else "fake")(x)
    other = torch.randn(2, 4, 7, 8)
    torch.testing.assert_close(graph(other), sl.attention(other, other, other, mask=mask))
