"""Edits on a real GPU at odd lengths, each beside float64; a long cut in memory that is linear in the context."""

from __future__ import annotations

import pytest
import torch

import edit_precision
import sightline as sl


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("length", [129, 1021])
@pytest.mark.parametrize("name", list(edit_precision.EDITS))
def test_every_edit_is_as_exact_as_the_kernel(name, length, dtype):
    edit_precision.check(name, length, "cuda", dtype, watched=length < 1000)


def test_a_long_cut_takes_little_more_than_its_output():
    q = torch.randn(1, 8, 32771, 64, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 2, 32771, 64, device="cuda", dtype=torch.bfloat16)
    model = edit_precision.Attends()
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=slice(-1001, None), keys=slice(1000, 9000))
        model(q, k, v)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(q, k, v)
        torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= 4 * q.numel() * q.element_size()
