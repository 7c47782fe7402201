"""Edits on a real GPU at odd lengths, each beside float64; a long cut in memory that is linear in the context."""

from __future__ import annotations

import warnings

import pytest
import torch

import edit_precision
import sightline as sl
from sightline.editing import pieces


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("length", [129, 1021])
@pytest.mark.parametrize("name", list(edit_precision.EDITS))
def test_every_edit_is_as_exact_as_the_kernel(name, length, dtype):
    edit_precision.check(name, length, "cuda", dtype, watched=length < 1000)


@pytest.fixture
def long():
    q = torch.randn(1, 8, 32771, 64, device="cuda", dtype=torch.bfloat16)
    return q, *torch.randn(2, 1, 2, 32771, 64, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("queries", [slice(-1001, None), slice(None)], ids=["a rectangle", "full height"])
def test_a_long_cut_takes_little_more_than_its_output(queries, long, monkeypatch):
    monkeypatch.setattr(pieces, "BYTES", 1 << 23)
    q, k, v = long
    model = edit_precision.Attends()
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=queries, keys=slice(1000, 9000))
        model(q, k, v)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(q, k, v)
        torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= q.numel() * q.element_size() + 4 * (1 << 23)


@pytest.mark.parametrize("queries", [slice(-1001, None), slice(None)], ids=["a rectangle", "full height"])
def test_a_long_cut_waits_for_the_gpu_once(queries, long):
    """When all is on its way, and it is asked whether some lse was too coarse."""
    model = edit_precision.Attends()
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=queries, keys=slice(1000, 9000))
        model(*long)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")  # says itself, as a warning, that it is new
                said.clear()
                model(*long)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [one for one in said if "synchronizing CUDA operation" in str(one.message)]
    assert len(waits) == 1, [f"{one.filename}:{one.lineno}" for one in waits]
