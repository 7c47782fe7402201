"""The ways in which timm, x-transformers, Reformer and others write attention, and what only looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.watching.intercept.by_hand import CHANNELS
from sightline.watching.intercept.unseen import AROUND, BY_HAND
from watch_by_hand import DIM, TIME, Fused, Projected, padding, run


class WrittenOut(Projected):
    """A softmax in its own parts, the largest score taken away."""

    def attend(self, q, k, v):
        scores = self.hide(q @ k.mT)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return weights / weights.sum(-1, keepdim=True) @ v


class NormalisedLast(Projected):
    """As in chunked attention: values are summed before their weights are known to sum to one."""

    def attend(self, q, k, v):
        scores = self.hide(torch.einsum("bhqd,bhkd->bhqk", q, k))
        weights = (scores - scores.amax(-1, keepdim=True)).exp_()
        return torch.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdim=True)


class Logarithms(Projected):
    """Reformer's way."""

    def attend(self, q, k, v):
        scores = self.hide(q @ k.mT)
        return self.drop(torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True))) @ v


class OfLogarithms(Projected):
    def attend(self, q, k, v):
        return F.log_softmax(self.hide(q @ k.mT), dim=-1).exp() @ v


class Drawn(Projected):
    def attend(self, q, k, v):
        return F.gumbel_softmax(self.hide(q @ k.mT), dim=-1) @ v


class CrossCovariance(Projected):
    """XCiT: channels attend to channels. It is a softmax between two products, and what it shows is not tokens."""

    def attend(self, q, k, v):
        q, k, v = (t.mT for t in (q, k, v))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return (self.drop((q @ k.mT * 2.0).softmax(dim=-1)) @ v).mT


class Cached(Projected):
    """Keys lie in a buffer that is written to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, self.heads, TIME, DIM // self.heads), persistent=False)

    def attend(self, q, k, v):
        self.keys[:, :, : k.shape[2]] = k
        scores = self.hide(q @ self.keys.mT)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


BY_HANDS = [WrittenOut, NormalisedLast, Logarithms, OfLogarithms, Drawn, CrossCovariance, Cached]


@pytest.mark.parametrize("kind", BY_HANDS)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_other_ways_to_write_attention_are_named(kind, side):
    model = nn.ModuleDict({"a": kind(), "b": Fused()})
    model.forward = lambda x: model["b"](model["a"](x))
    model["a"].real = padding(side)
    seen = run(model.eval(), torch.randn(2, TIME, DIM))
    assert seen.layers == ["b"]
    assert seen.unseen == {"a": CHANNELS if kind is CrossCovariance else BY_HAND}


class Outlook(nn.Module):
    """VOLO: each point says by itself how much its neighbours count."""

    def __init__(self):
        super().__init__()
        self.value, self.weigh = nn.Linear(DIM, DIM), nn.Linear(DIM, 9)
        self.unfold = nn.Unfold(3, padding=1)

    def forward(self, x):
        around = self.unfold(self.value(x).mT.reshape(2, DIM, 1, TIME)).view(2, DIM, 9, TIME).permute(0, 3, 2, 1)
        weights = (self.weigh(x) * 0.5).softmax(-1).unsqueeze(2)
        return (weights @ around).squeeze(2)


def test_neighbours_that_a_softmax_weighs_are_attention():
    assert run(nn.Sequential(Outlook()), torch.randn(2, TIME, DIM)).unseen == {"0": AROUND}


# What is no attention.


class RandomFeatures(Projected):
    """Performer: exponentials of a product with random directions, which lie in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("directions", torch.randn(5, DIM // self.heads))

    def features(self, x):
        return torch.exp(torch.einsum("bhnd,md->bhnm", x, self.directions.float()) - x.square().sum(-1, keepdim=True))

    def attend(self, q, k, v):
        q, k = self.features(q), self.features(k)
        return (q @ (k.mT @ v)) / (q @ k.sum(2).unsqueeze(-1))


class Upsampled(nn.Module):
    """RAFT: a finer flow out of a convex combination of neighbours, element by element."""

    def __init__(self):
        super().__init__()
        self.weigh = nn.Linear(DIM, 9)

    def forward(self, x):
        around = F.unfold(x.mT.reshape(2, DIM, 1, TIME), 3, padding=1).view(2, DIM, 9, TIME)
        return (self.weigh(x).softmax(-1).mT.unsqueeze(1) * around).sum(2).mT


class Selected(nn.Module):
    """Selective kernels: a softmax between the branches, channel by channel."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(2)])
        self.choose = nn.Linear(DIM, 2 * DIM)

    def forward(self, x):
        both = torch.stack([branch(x) for branch in self.branches], dim=1)
        weights = self.choose(both.sum(1).mean(1)).view(-1, 2, 1, DIM).softmax(1)
        return (both * weights).sum(1)


class Lambda(Projected):
    """Keys have a softmax over positions, and are summed up before a query comes."""

    def attend(self, q, k, v):
        return q @ torch.einsum("bhnk,bhnv->bhkv", k.softmax(2), v)


class Contrasted(nn.Module):
    """Exponentials of similarities that are only summed up."""

    def forward(self, x):
        scores = (x @ x.mT).exp()
        return x * (scores / scores.sum(-1, keepdim=True)).diagonal(dim1=-2, dim2=-1)[..., None]


@pytest.mark.parametrize("kind", [RandomFeatures, Upsampled, Selected, Lambda, Contrasted])
def test_what_only_looks_like_attention_is_neither_seen_nor_listed(kind):
    model = nn.Sequential(Fused(), kind())
    seen = run(model, torch.randn(2, TIME, DIM))
    assert seen.layers == ["0"]
    assert seen.unseen == {}
