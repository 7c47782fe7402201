"""torch's varlen_attn on a real GPU, called by a watched module: its own bits, and the account of every text."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as torch_varlen
from torch import nn

from sightline.watching import watch

HEADS, DIM = 4, 64
# Of odd lengths, one of a single token.
LENGTHS = [1, 37, 130, 64, 333]
KNOWN = inspect.signature(torch_varlen.varlen_attn).parameters


def cases() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What the installed version can be asked for, by its names, and by ours."""
    causal = {"is_causal": True} if "is_causal" in KNOWN else {"window_size": (-1, 0)}
    found = {"full": ({}, {}), "causal": (causal, {"right": 0}), "scale": ({"scale": 0.3}, {"scale": 0.3})}
    if "window_size" in KNOWN:
        found["window"] = ({"window_size": (20, 0)}, {"left": 20, "right": 0})
        found["both sides"] = ({"window_size": (3, 11)}, {"left": 3, "right": 11})
    if "enable_gqa" in KNOWN:
        found["grouped"] = ({"enable_gqa": True, **causal}, {"right": 0})
    return found


class Packed(nn.Module):
    """One layer of attention over packed texts."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch_varlen.varlen_attn(q, k, v, ends, ends, max(LENGTHS), max(LENGTHS), **self.options)


def weights_of(
    q: torch.Tensor, k: torch.Tensor, left: int | None = None, right: int | None = None, scale: float | None = None
) -> torch.Tensor:
    """In float64 the map of each text, and nothing between them: `[heads, total, total]` on the CPU."""
    q, k = (x.detach().cpu().double().transpose(0, 1) for x in (q, k))
    k = k.repeat_interleave(len(q) // len(k), 0)
    whole = torch.zeros(len(q), q.shape[1], q.shape[1], dtype=torch.float64)
    start = 0
    for length in LENGTHS:
        text = slice(start, start + length)
        gap = torch.arange(length) - torch.arange(length)[:, None]  # of the key from the query
        hidden = torch.zeros_like(gap, dtype=torch.bool)
        hidden = hidden if left is None else hidden | (gap < -left)
        hidden = hidden if right is None else hidden | (gap > right)
        scores = q[:, text] @ k[:, text].mT * (DIM**-0.5 if scale is None else scale)
        whole[:, text, text] = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        start += length
    return whole


def agrees(device: str, dtype: torch.dtype, name: str) -> None:
    options, rule = cases()[name]
    total, shared = sum(LENGTHS), HEADS // 2 if name == "grouped" else HEADS
    q, k, v = (torch.randn(total, heads, DIM, device=device).to(dtype) for heads in (HEADS, shared, shared))
    ends = torch.tensor([0, *LENGTHS], device=device).cumsum(0).to(torch.int32)
    model = nn.Sequential()
    model.attn = Packed(options)
    model.forward = lambda *given: model.attn(*given)
    with torch.no_grad():
        plain = model(q, k, v, ends)
        with watch(model, keep_qk=True, stats=("entropy", "received")) as seen:
            out = model(q, k, v, ends)
    assert torch.equal(out, plain)
    assert not seen.unseen
    assert seen.layers == ["attn"]
    assert seen[0].shape == (1, HEADS, total, total)
    weights = weights_of(q, k, **rule)
    tile = seen[0].tile(slice(0, total), slice(0, total))[0].cpu().double()
    assert (tile - weights).abs().max() <= 2e-3
    assert tile[weights == 0].abs().max() == 0, "no text sees another"
    for got, want in (
        (seen[0].entropy, torch.special.entr(weights).sum(-1)),
        (seen[0].received(), weights.sum(-2)),
    ):
        # q and k are exact in float32: what errs is the lse of a kernel in half precision.
        assert (got[0].cpu().double() - want).abs().max() <= 1e-3 * want.abs().max()
    # The output is what these weights make of the values, up to how half precision rounds.
    values = v.cpu().double().transpose(0, 1).repeat_interleave(HEADS // shared, 0)
    assert (out.cpu().double().transpose(0, 1) - weights @ values).abs().max() <= 3e-2


@pytest.mark.parametrize("name", cases())
def test_packed_texts(name: str) -> None:
    agrees("cuda", torch.bfloat16, name)
