"""Longer contexts: the account by tiles, what is kept of it, and what can be asked without q and k."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sightline as sl
from sightline.errors import InputError
from sightline.lens import Picture
from sightline.watching import watch
from sightline.watching.record import account

LENGTH, HEADS = 700, 3


class Layer(nn.Module):
    """Attention over given queries and keys, with a cache that grows."""

    def __init__(self):
        super().__init__()
        self.keys = None

    def forward(self, q, k):
        self.keys = k if self.keys is None else torch.cat([self.keys, k], -2)
        queries, keys = q.shape[-2], self.keys.shape[-2]
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        if queries == keys:
            return F.scaled_dot_product_attention(q, self.keys, self.keys, is_causal=True)
        return F.scaled_dot_product_attention(q, self.keys, self.keys, attn_mask=visible)


@pytest.fixture
def by_tiles(monkeypatch):
    """Small maps go the way of large ones."""
    monkeypatch.setattr(account, "_WHOLE", 1 << 12)


def draw(length=LENGTH, batch=2, dim=8):
    return torch.randn(batch, HEADS, length, dim), torch.randn(batch, HEADS, length, dim)


def weights_of(q, k):
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def pooled(weights, cell, reduce="sum"):
    rows, columns = (-n % cell for n in weights.shape[-2:])
    weights = F.pad(weights, (0, columns, 0, rows))
    blocks = weights.unflatten(-1, (-1, cell)).unflatten(-3, (-1, cell))
    return blocks.sum((-1, -3)) if reduce == "sum" else blocks.amax((-1, -3))


def check(seen, q, k):
    weights, sight = weights_of(q, k), seen[0]

    def close(got, want, atol=1e-5):
        torch.testing.assert_close(got.double(), want, atol=atol, rtol=1e-5)

    assert sight.shape == tuple(weights.shape)
    close(sight.received(), weights.sum(-2))
    close(sight.entropy, torch.special.entr(weights).sum(-1))
    close(sight.lse, (q.double() @ k.double().mT / 8**0.5).masked_fill(weights == 0, -torch.inf).logsumexp(-1))
    overview = sight.overview()
    assert overview.cell == (2, 2)
    close(overview.sums, pooled(weights, 2))
    close(overview.maxima, pooled(weights, 2, "max"))
    shares = seen.shares(0)
    close(shares["first"], weights[..., 0])
    close(shares["same"], weights.diagonal(dim1=-2, dim2=-1))
    close(shares["previous"][..., 1:], weights.diagonal(-1, dim1=-2, dim2=-1))
    top = sight.top(2)
    close(top.weights, weights.topk(2).values)
    place = torch.arange(weights.shape[-2])
    distance = (weights * (place[:, None] - place).abs()).sum(-1)
    close(sight.distance, distance, atol=1e-3)
    means = [p.distance for p in seen.portraits()]
    close(torch.tensor(means), distance.mean((0, 2)), atol=1e-3)


STATS = ("entropy", "distance", "received", "overview", "overview_max", "shares", sl.Top(2))


@pytest.mark.parametrize("parts", [(700,), (512, 188), (300, 5, 395), (690, *[1] * 10), (1,) * 3 + (697,)])
def test_parts_are_joined_exactly(by_tiles, parts):
    q, k = draw()
    model, start = Layer(), 0
    with watch(model, stats=STATS) as seen:
        for part in parts:
            model(q[:, :, start : start + part], k[:, :, start : start + part])
            start += part
    check(seen, q, k)


@pytest.mark.parametrize("parts", [(700,), (300, 5, 395)])
def test_with_kept_queries_and_keys_anything_can_be_asked(by_tiles, parts):
    q, k = draw()
    model, start = Layer(), 0
    with watch(model, keep_qk=True) as seen:
        for part in parts:
            model(q[:, :, start : start + part], k[:, :, start : start + part])
            start += part
    weights, sight = weights_of(q, k), seen[0]
    tile = sight.tile(slice(290, 310), slice(200, 350)).double()
    torch.testing.assert_close(tile, weights[..., 290:310, 200:350], atol=1e-6, rtol=0)
    picture = sight.picture(size=(10, 10), reduce="max").double()
    torch.testing.assert_close(picture, pooled(weights, 70, "max"), atol=1e-6, rtol=0)


def test_the_mean_distance_follows_from_what_keys_received():
    q, k = draw(60)
    for stats in (("received", "shares"), ("distance", "received", "shares")):
        model = Layer()
        with watch(model, stats=stats) as seen:
            model(q, k)
        weights = weights_of(q, k)
        place = torch.arange(60)
        distance = (weights * (place[:, None] - place).abs()).sum(-1).mean((0, 2))
        torch.testing.assert_close(torch.tensor([p.distance for p in seen.portraits()]).double(), distance)


def test_what_an_overview_can_answer_and_what_not():
    q, k = draw()
    with watch(model := Layer()) as seen:
        model(q, k)
    weights, sight = weights_of(q, k), seen[0]
    assert not sight.has_qk
    for cell in (2, 4, 10, 350):
        torch.testing.assert_close(
            sight.picture(cell=(cell, cell), reduce="sum").double(), pooled(weights, cell), atol=1e-5, rtol=1e-5
        )
    means = sight.picture(size=(70, 350)).double()
    expected = weights.unflatten(-1, (350, 2)).unflatten(-3, (70, 10)).mean((-1, -3))
    torch.testing.assert_close(means, expected, atol=1e-6, rtol=1e-5)
    part = sight.picture(rows=slice(100, 200), columns=slice(50, 250), cell=(50, 50), reduce="sum").double()
    torch.testing.assert_close(part, pooled(weights[..., 100:200, 50:250], 50), atol=1e-5, rtol=1e-5)
    visible = sight.picture(cell=(2, 2), visible_only=True)
    assert visible[..., 0, 1].isnan().all()
    torch.testing.assert_close(visible[..., 0, 0].double(), weights[..., :2, :2].sum((-1, -2)) / 3, atol=1e-6, rtol=0)
    for ask, what in (
        (lambda: sight.tile(0, slice(0, 5)), "tile needs q and k"),
        (lambda: sight.picture(cell=(3, 3)), r"picture\(cell=\(3, 3\), reduce='mean'\) needs q and k"),
        (lambda: sight.picture(cell=(4, 4), reduce="max"), "needs q and k"),
        (lambda: sight.top(5), r"top\(5\) needs q and k"),
        (lambda: sight.max_score, "max_score needs q and k"),
        (lambda: sight.received(weights=torch.ones(2, HEADS, LENGTH)), r"received\(weights\) needs q and k"),
        (lambda: seen.rollout(), "rollout of a long context needs q and k"),
    ):
        with pytest.raises(InputError, match=what) as error:
            ask()
        assert "keep_qk=True" in str(error.value)


def test_a_small_map_answers_everything_without_queries_and_keys():
    q, k = draw(50)
    with watch(model := Layer(), stats=("overview",)) as seen:
        model(q, k)
    with watch(model := Layer(), keep_qk=True, stats=()) as reference:
        model(q, k)
    mine, theirs = seen[0], reference[0]
    assert not mine.has_qk
    assert theirs.has_qk

    def close(ask, atol=1e-5):
        torch.testing.assert_close(ask(mine), ask(theirs), atol=atol, rtol=1e-5)

    for name in ("entropy", "distance", "max_score", "total", "sink_share", "lse"):
        close(lambda sight, name=name: getattr(sight, name), 1e-4)
    close(lambda sight: sight.received())
    close(lambda sight: sight.received(weights=torch.linspace(0, 1, 50).expand(2, HEADS, 50)))
    close(lambda sight: sight.tile(slice(3, 9), slice(0, 7)))
    close(lambda sight: sight.tile(-1, slice(0, 50)))
    close(lambda sight: sight.picture(size=(7, 11), reduce="max"))
    close(lambda sight: sight.picture(size=(99, 120)))
    close(lambda sight: sight.picture(rows=slice(10, 30), cell=(3, 4), reduce="sum"))
    assert torch.equal(mine.top(3).keys, theirs.top(3).keys)
    close(lambda sight: sight.top(3).weights)


def test_pictures_that_were_asked_for_are_kept():
    q, k = draw()
    request = Picture(9, 13, reduce="max")
    with watch(model := Layer(), stats=(request, "entropy")) as seen:
        model(q, k)
    sight = seen[0]
    direct = sl.look(q, k, mask=sl.causal()).picture(size=(9, 13), reduce="max")
    torch.testing.assert_close(sight.picture(size=(9, 13), reduce="max"), direct, atol=1e-6, rtol=0)
    with pytest.raises(InputError, match="no overview was computed"):
        sight.overview()


def test_results_are_far_smaller_than_the_map():
    q, k = draw(3000, batch=1)
    with watch(model := Layer()) as seen:
        model(q, k)
    sight = seen[0]
    held = sum(t.numel() for t in sight.kept.values()) + sight.lse.numel()
    assert held < 0.1 * HEADS * 3000 * 3000
    assert sight.call.q is None
    assert sight.overview().cell == (8, 8)


def test_many_maps_have_coarser_overviews(monkeypatch):
    monkeypatch.setattr(account, "_BINS", 2 * HEADS * 64)
    q, k = draw(60)
    model = Layer()
    with watch(model) as seen:
        model(q[:, :, :50], k[:, :, :50])
        for i in range(50, 60):
            model(q[:, :, i : i + 1], k[:, :, i : i + 1])
    overview = seen[0].overview()
    assert overview.cell == (8, 8)
    torch.testing.assert_close(overview.sums.double(), pooled(weights_of(q, k), 8), atol=1e-5, rtol=1e-5)
