"""The log-sum-exp from the fused kernels is the definition's, natural logarithm and empty rows included."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

import sightline as sl
from cases import DTYPES, Case, cases, inputs
from lens_cases import gap, limit, whole_map
from sightline.backends.call import make_call
from sightline.lens.levels import Levels
from sightline.lens.rows import output_and_rows, rows_only
from sightline.lens.sight import Sight


@pytest.mark.cpu_kernels
@settings(max_examples=60)
@given(cases(DTYPES, plain=True))
def test_the_lse_of_sdpa(case: Case) -> None:
    call = make_call(case.q, case.k, case.v, **case.options)
    m = whole_map(case)
    found = output_and_rows(call, "sdpa")[1]
    allowed = limit(case.q.dtype, m.magnitude)
    if case.q.dtype in (torch.float16, torch.bfloat16):
        allowed = max(allowed, 2 * gap(whole_map(case, case.q.dtype).lse, m.lse, "lse"))
    assert gap(found, m.lse, "lse") <= allowed


@pytest.mark.cpu_kernels
@settings(max_examples=60)
@given(cases(DTYPES))
def test_the_row_numbers_of_streaming(case: Case) -> None:
    call = make_call(case.q, case.k, case.v, **case.options)
    m = whole_map(case)
    found = output_and_rows(call, "streaming")[1]
    if not call.normalizer.is_softmax:
        assert torch.equal(found.double(), m.visible.sum(-1).double())
        return
    found = Levels(call, found)
    allowed = limit(case.q.dtype, m.magnitude)
    if case.q.dtype in (torch.float16, torch.bfloat16):
        allowed = max(allowed, 2 * gap(whole_map(case, case.q.dtype).lse, m.lse, "lse"))
    assert gap(Sight.of(found).lse, m.lse, "lse") <= allowed
    if call.sinks is None:
        assert found.taken is None
    else:
        keys = m.scores.masked_fill(~m.visible, -torch.inf).logsumexp(-1)
        assert gap(found.row, keys, "lse") <= 4 * allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["sdpa", "streaming", "reference"])
def test_the_logarithm_is_natural(backend: str, dtype: torch.dtype) -> None:
    q, k, v = (torch.zeros(1, 2, n, 16, dtype=dtype) for n in (5, 1000, 1000))
    lse = sl.observe(q, k, v, backend=backend)[1].lse
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    # The kernels take a short cut to the exponential in half precision; base 2 would be off by half.
    allowed = 1e-3 if dtype in (torch.float16, torch.bfloat16) else 1e-6
    assert torch.allclose(lse.double(), torch.tensor(math.log(1000), dtype=torch.float64), rtol=allowed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["sdpa", "streaming"])
def test_a_row_that_sees_nothing_is_minus_infinity(backend: str, dtype: torch.dtype) -> None:
    q, k, v = inputs(2, queries=5, keys=7, dtype=dtype)
    table = torch.rand(2, 1, 5, 7) < 0.5
    table[0, :, 2], table[:, :, 4] = False, False
    lse = sl.observe(q, k, v, mask=table, backend=backend)[1].lse
    assert torch.equal(lse == -torch.inf, ~table.any(-1).expand(2, 2, 5))
    padded = sl.observe(q, k, v, mask=sl.padding([0, 3]), backend=backend)[1].lse
    assert torch.equal(padded == -torch.inf, torch.tensor([True, False])[:, None, None].expand(2, 2, 5))
    bias = torch.zeros(5, 7, dtype=dtype).masked_fill(~table[1, 0], -torch.inf)
    biased = sl.observe(q, k, v, bias=bias, backend=backend)[1].lse
    assert torch.equal(biased == -torch.inf, ~table[1, 0].any(-1).expand(2, 2, 5))


def test_very_large_and_very_small_scores() -> None:
    """The maximum is taken out before the exponential."""
    q, k, v = inputs(heads=1, queries=3, keys=4)
    for factor in (1e4, -1e4):
        bias = torch.full((3, 4), factor, dtype=torch.float64)
        plain, shifted = (sl.observe(q, k, v, bias=b)[1] for b in (None, bias))
        assert torch.allclose(shifted.lse - factor, plain.lse, atol=1e-9)
        assert torch.allclose(shifted.entropy, plain.entropy, atol=1e-9)


@pytest.mark.parametrize("grad", [False, True])
def test_rows_alone_are_those_beside_the_output(grad: bool) -> None:
    q, k, v = inputs(1, heads=4, kv_heads=2, queries=20, keys=20, dtype=torch.float32, value_dim=3, grad=grad)
    sinks, bias = torch.randn(4, requires_grad=grad), torch.randn(20, 20, requires_grad=grad)
    for options in (
        {},
        {"mask": sl.causal()},
        {"sinks": sinks},
        {"bias": bias},
        {"softcap": 2.0},
        {"mask": sl.window(3)},
    ):
        call = make_call(q, k, v, **options)
        beside, alone = output_and_rows(call, "auto")[1], rows_only(call)
        assert not beside.requires_grad
        assert not alone.requires_grad
        assert torch.allclose(beside, alone, rtol=1e-6)
