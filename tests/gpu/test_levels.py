"""On a real GPU: rows hidden by large finite numbers, large scores, sinks that take all, at odd lengths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from lens_cases import agrees_with_itself

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Rows of half precision are compared with themselves alone: products of q and k are exact, sums are in float32.
WITHIN = 2e-5


def draw(dtype, factor=1.0, heads=4, queries=391, keys=403, dim=64):
    torch.manual_seed(0)
    q, k = (torch.randn(1, heads, n, dim, device="cuda") for n in (queries, keys))
    return (q * factor).to(dtype), k.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [-1e4, -1e6, -1e9, "least"])
def test_rows_hidden_by_a_large_number(dtype, number):
    q, k = draw(dtype)
    number = torch.finfo(dtype).min if number == "least" else max(number, torch.finfo(dtype).min)
    bias = torch.zeros(q.shape[-2], k.shape[-2], device="cuda", dtype=dtype)
    bias[3], bias[10:20], bias[20:, :5] = number, number, number
    out, sight = sl.observe(q, k, k, bias=bias)
    weights = agrees_with_itself(sight, WITHIN)
    if number < -2.4e38:
        assert weights[..., 10:20, :].max() == 0, "what torch's fused CUDA kernels make of the least number: nothing"
    elif number <= -1e9:
        assert (weights[..., 10:20, :] * k.shape[-2] - 1).abs().max() <= 1e-4
    if number == -1e6:
        return  # scores are whole sixteenths there, and kernels round to them by their own ways
    shown = (weights @ k.double()).to(dtype)
    assert (shown - out).abs().max() <= (1e-4 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [0.1, 20.0, 50.0, 300.0])
@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(40), sl.causal() & sl.padding([77])], ids=str)
def test_large_scores(dtype, factor, mask):
    q, k = draw(dtype, factor)
    agrees_with_itself(sl.observe(q, k, k, mask=mask)[1], WITHIN)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("logit", [-200.0, 3.0, 20.0, 90.0, 5000.0])
@pytest.mark.parametrize("dim", [64, 80])
def test_a_sink_that_takes_nearly_everything(dtype, logit, dim):
    q, k = draw(dtype, dim=dim)
    sinks = torch.full((q.shape[1],), logit, device="cuda")
    sight, without = (sl.observe(q, k, k, mask=sl.causal(), sinks=x)[1] for x in (sinks, None))
    for name in ("entropy", "distance", "max_score"):
        assert torch.allclose(getattr(sight, name), getattr(without, name), atol=1e-3, rtol=1e-3), name
    agrees_with_itself(sight, WITHIN)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_watched_model_that_hides_with_numbers(dtype):
    class Older(torch.nn.Module):
        def forward(self, q, k, table):
            return F.scaled_dot_product_attention(q, k, k, attn_mask=table)

    q, k = draw(dtype, queries=403)
    table = torch.where(torch.ones(403, 403, dtype=torch.bool, device="cuda").tril(), 0.0, torch.finfo(dtype).min)
    table[:, :5] = torch.finfo(dtype).min
    model = Older()
    with torch.no_grad(), sl.watch(model, keep_qk=True) as seen:
        out = model(q, k, table.to(dtype))
    weights = agrees_with_itself(seen[0], WITHIN)
    assert (weights @ k.double().cpu() - out.double().cpu()).abs().max() <= (1e-4 if dtype == torch.float32 else 3e-2)
