"""Attention that is written by hand in small modules, and one pass of it, watched."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn

from sightline.watching import watch

DIM, HEADS, TIME = 16, 2, 7  # an odd length


def run(model, *given, **options):
    """Watch one pass: what was seen. There is one warning if something was not, and none otherwise."""
    with warnings.catch_warnings(record=True) as said, torch.no_grad(), watch(model, **options) as seen:
        warnings.simplefilter("always")
        model(*given)
    named = [str(w.message) for w in said if "without being seen" in str(w.message)]
    assert len(named) == (1 if seen.unseen else 0)
    if named:
        assert next(iter(seen.unseen)) in named[0]
    return seen


def padding(side):
    """[batch, keys], True where a token is."""
    real = torch.ones(2, TIME, dtype=torch.bool)
    if side is not None:
        real[0, slice(0, 3) if side == "left" else slice(-3, None)] = False
    return real


class Projected(nn.Module):
    def __init__(self, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.drop, self.soft = nn.Dropout(0.1), nn.Softmax(dim=-1)
        self.bias = nn.Parameter(torch.randn(heads, TIME, TIME))
        self.mix = nn.Linear(heads, heads)
        self.real = padding(None)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def hide(self, scores):
        return scores.masked_fill(~self.real[: scores.shape[0], None, None], torch.finfo(scores.dtype).min)


class Fused(Projected):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)
