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

    def keep(self, scores):
        """Leave a copy of the scores for whoever compares."""
        self.kept = scores.detach().clone()
        return scores


class Fused(Projected):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Plain(Projected):
    def attend(self, q, k, v):
        return self.keep(self.hide(q @ k.mT / 4)).softmax(-1) @ v


class Wordy(Projected):
    """Bias, mask as numbers, a cast, dropout, a head mask; nn.Softmax."""

    def attend(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-1, -2)) * 0.25
        scores += self.bias
        scores = scores + (~self.real).float()[:, None, None] * -1e9
        weights = self.drop(self.soft(self.keep(scores).float())).type_as(q)
        return torch.matmul(weights * torch.ones(self.heads, 1, 1), v).contiguous()


class Batched(Projected):
    """baddbmm, heads in the batch, torch.softmax over a named axis, dropout by hand."""

    def attend(self, q, k, v):
        a, b, c = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(torch.zeros(len(a), TIME, TIME), a, b.transpose(1, 2), alpha=0.25)
        scores = self.hide(scores.view(-1, self.heads, TIME, TIME)).view_as(scores)
        weights = torch.softmax(self.keep(scores), 2, dtype=torch.float32)
        weights = weights * torch.bernoulli(torch.full_like(weights, 0.9)) / 0.9
        return torch.bmm(weights, c).view_as(q)


class Capped(Projected):
    """einsum, a soft-cap, torch.special, values on the left."""

    def attend(self, q, k, v):
        scores = self.hide(5 * torch.tanh(torch.einsum("bhqd,bhkd->bhqk", q, k) / 5))
        weights = torch.special.softmax(self.keep(torch.clamp(scores, min=-1e9)), dim=-1)
        return (v.mT @ weights.permute(0, 1, 3, 2)).mT


class Product(nn.Module):
    def forward(self, a, b):
        return a @ b


class InParts(Projected):
    """Both products and the softmax are modules of their own."""

    def __init__(self):
        super().__init__()
        self.scores, self.context = Product(), Product()

    def attend(self, q, k, v):
        return self.context(self.soft(self.keep(self.hide(self.scores(q, k.mT)))), v)


class Distances(Projected):
    """Near keys count for more."""

    def attend(self, q, k, v):
        return self.keep(self.hide(-(torch.cdist(q, k) ** 2))).softmax(-1) @ v


class OfTheClass(Projected):
    """CaiT, CrossViT: one token asks all."""

    def attend(self, q, k, v):
        found = self.keep(self.hide(q[:, :, :1] @ k.mT)).softmax(dim=-1) @ v
        return torch.cat([found, v[:, :, 1:]], dim=2)


SEEN = [Plain, Wordy, Batched, Capped, InParts, Distances, OfTheClass]
