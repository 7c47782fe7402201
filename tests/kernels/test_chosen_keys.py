"""Scores of chosen keys by the kernel, in Triton's interpreter or for real where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from sightline.kernels.chosen_keys import scores_at

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("keys", [0, -1, 3, "chosen", "one"])
def test_scores_equal_the_products(dim, keys):
    q, k = torch.randn(2, 4, 37, dim, device=DEVICE), torch.randn(2, 2, 41, dim, device=DEVICE)
    at = {"chosen": torch.randint(-2, 43, (2, 37), device=DEVICE), "one": torch.tensor([[5]], device=DEVICE)}.get(
        keys, keys
    )
    found = scores_at(q, k.transpose(1, 2).contiguous().transpose(1, 2), at, 0.3)
    place = (torch.arange(37, device=DEVICE) + at if isinstance(at, int) else at).expand(2, 37)
    inside = (place >= 0) & (place < 41)
    every = (q.double() @ k.double().repeat_interleave(2, 1).mT) * 0.3
    index = place.clamp(0, 40)[:, None, :, None].expand(-1, 4, -1, 1)
    expected = every.gather(-1, index)[..., 0].masked_fill(~inside[:, None], 0.0)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
