"""Launches that are recognised give what a first launch gives: other lengths, places and kinds of memory in between."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import sightline as sl
from sightline.kernels import launch as module
from sightline.kernels.launch import kernel, launch


@kernel(unaligned=("X",))
def _scaled(X, Y, n: tl.int32, step: tl.int64, amount: tl.float32, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i * step, mask=i < n, other=0.0).to(tl.float32) * amount, mask=i < n)


def test_arguments_of_every_kind_in_turn(monkeypatch):
    monkeypatch.setattr(module, "_known", {})
    memory = torch.randn(1 << 14, device="cuda")
    for _ in range(3):
        for n, step, place, amount in [
            (64, 1, 0, 2.0),
            (63, 1, 0, 2.0),
            (64, 2, 0, 3.0),
            (64, 1, 1, 2.0),
            (64, 16, 4, 1.0),
        ]:
            for dtype in (torch.float32, torch.float16):
                x = memory.to(dtype)[place:]
                y = torch.zeros(n, device="cuda")
                given = {"X": x, "Y": y, "n": n, "step": step, "amount": amount}
                launch(_scaled, (triton.cdiv(n, 32),), given, {"BLOCK": 32})
                torch.testing.assert_close(y, x[: n * step : step].float() * amount)
    (versions,) = [cache[0] for cache in _scaled.device_caches.values()]
    assert len(versions) == 2  # one for each dtype, whatever the numbers and wherever the memory


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(100)], ids=str)
def test_the_same_account_again_and_for_other_memory(mask):
    """The second pass takes launches that the first one left, on tensors that lie elsewhere."""
    torch.manual_seed(0)
    stats = ("entropy", "max_score", "distance", "received", sl.Picture(64, 64))
    q, k, v = (torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    first = sl.observe(q, k, v, mask=mask, stats=stats)[1]
    room = torch.zeros(2, 4, 512 * 64 + 8, device="cuda", dtype=torch.bfloat16)
    for copy in (
        q.clone(),
        room[..., 8:].unflatten(-1, (512, 64)).copy_(q),
        q.transpose(1, 2).contiguous().transpose(1, 2),
    ):
        again = sl.observe(copy, k, v, mask=mask, stats=stats)[1]
        for one, other in ((first.entropy, again.entropy), (first.received(), again.received())):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(first.picture(size=(64, 64)), again.picture(size=(64, 64)), atol=2e-4, rtol=2e-3)
        torch.testing.assert_close(first.max_score, again.max_score, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(first.distance, again.distance, atol=0.2, rtol=2e-3)
