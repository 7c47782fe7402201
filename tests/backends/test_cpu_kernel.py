from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sightline as sl
from cases import inputs
from sightline.backends import cpu_kernel

ASK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
SWITCHED = torch.randn(9, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).permute(2, 0, 1)
CALLS = {
    "plain": {},
    "causal": {"mask": sl.causal()},
    "padding": {"mask": sl.padding([3, 9])},
    "table": {"mask": torch.ones(9, 9).triu().bool().t()},
    "bias": {"bias": SWITCHED},
    "window and bias": {"mask": sl.window(3, 0), "bias": SWITCHED},
    "sinks": {"mask": sl.causal(), "sinks": torch.zeros(6, dtype=torch.float64)},
}


class Kernel(TorchDispatchMode):
    """Notes what the fused kernel is given, forward and backward."""

    def __init__(self):
        super().__init__()
        self.heads, self.tables = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "flash_attention_for_cpu" in str(func):
            first = 1 if "backward" in str(func) else 0
            self.heads.append({t.shape[1] for t in args[first : first + 3]})
            self.tables.append(kwargs.get("attn_mask"))
        return func(*args, **kwargs)


def test_groups_are_known_as_the_kernel_says():
    """A kernel that knows none takes the next head's keys: here there are some, so it reads nothing but them."""
    both = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    out, _ = ASK(torch.ones(1, 2, 1, 1), both[:, :1], both[:, :1])
    assert out.flatten().tolist() == ([1.0, 1.0] if cpu_kernel.KNOWS_GROUPS else [1.0, 2.0])


def test_strides_are_known_as_the_kernel_says():
    q, table = torch.randn(1, 2, 16, 8), torch.randn(16, 16)
    want, _ = ASK(q, q, q, attn_mask=table)
    got, _ = ASK(q, q, q, attn_mask=table.t().contiguous().t())
    assert torch.allclose(got, want, atol=1e-5) == cpu_kernel.KNOWS_STRIDES


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("backend", ["auto", "streaming"])
@pytest.mark.parametrize("older", [True, False])
def test_whatever_the_kernel_takes_the_numbers_are_the_same(monkeypatch, older, backend, options):
    if older:
        monkeypatch.setattr(cpu_kernel, "KNOWS_GROUPS", False)
        monkeypatch.setattr(cpu_kernel, "KNOWS_STRIDES", False)
    q, k, v = inputs(2, heads=6, kv_heads=2, queries=9, keys=9, dim=4, grad=True)
    with Kernel() as kernel:
        out = sl.attention(q, k, v, backend=backend, **options)
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        observed, sight = sl.observe(q, k, v, backend=backend, **options)
    want = sl.attention(q, k, v, backend="reference", **options)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(grads, torch.autograd.grad(want.square().sum(), (q, k, v)))
    assert torch.equal(observed, out)
    weights = sight.tile(slice(0, 9), slice(0, 9))
    torch.testing.assert_close(weights @ v.repeat_interleave(3, 1), want)
    assert kernel.heads
    if older:
        assert all(len(heads) == 1 for heads in kernel.heads), "the kernel would read past the end of the keys"
        assert all(table is None or table.stride(-1) == 1 for table in kernel.tables), "it would read other cells"
