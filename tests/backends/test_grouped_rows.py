from __future__ import annotations

import pytest
import torch

import sightline as sl
from cases import DTYPES, Case, check, inputs
from sightline.backends import grouped_rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(2,), (2, 3), ()], ids=str)
@pytest.mark.parametrize("heads, kv_heads, queries", [(8, 2, 1), (4, 2, 1), (6, 2, 5), (3, 3, 1), (3, 3, 2)])
@pytest.mark.parametrize("avx2", [True, False])
def test_heads_that_share_keys_are_rows_of_one(monkeypatch, dtype, batch, heads, kv_heads, queries, avx2):
    """However queries are packed for the kernel: the output is as exact, and the account's has the same bits."""
    monkeypatch.setattr(grouped_rows, "_AVX2", avx2)
    q, k, v = inputs(*batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=40, dim=16, dtype=dtype)
    mask = sl.causal() if queries == 1 else None
    table = torch.ones(*batch, heads, queries, 40, dtype=torch.bool)
    for backend in ("auto", "sdpa"):
        check(Case(q, k, v, {"mask": mask}, table), backend)
    out, sight = sl.observe(q, k, v, mask=mask)
    assert torch.equal(out, sl.attention(q, k, v, mask=mask))
    assert out.shape == q.shape
    assert out.is_contiguous()
    scores = (q.double() @ k.double().repeat_interleave(heads // kv_heads, -3).mT) / 4
    torch.testing.assert_close(sight.lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("queries", [1, 3])
def test_gradients_of_packed_queries(queries):
    q, k, v = inputs(2, heads=8, kv_heads=2, queries=queries, keys=5, dim=3, grad=True)
    assert torch.autograd.gradcheck(lambda *t: sl.attention(*t, backend="sdpa"), (q, k, v))


def test_what_is_packed_and_what_is_not(monkeypatch):
    monkeypatch.setattr(grouped_rows.cpu_kernel, "KNOWS_GROUPS", True)

    def shape(heads, kv_heads, queries, dtype):
        return tuple(grouped_rows.packed(torch.empty(1, heads, queries, 8, dtype=dtype), kv_heads).shape[1:3])

    assert shape(8, 2, 1, torch.float32) == (2, 4)
    assert shape(6, 2, 1, torch.float32) == (6, 1), "a product with one row is quick in float32"
    assert shape(6, 2, 1, torch.bfloat16) == shape(6, 2, 1, torch.float16) == (2, 3)
    assert shape(4, 4, 7, torch.float32) == (4, 7)
    monkeypatch.setattr(grouped_rows.cpu_kernel, "KNOWS_GROUPS", False)
    assert shape(6, 2, 1, torch.float32) == (2, 3), "better than repeated keys"
