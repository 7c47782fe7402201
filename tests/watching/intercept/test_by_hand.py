"""Attention written by hand is seen, by the scores that its softmax was given."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.editing import edit
from sightline.errors import InputError
from sightline.watching import load, watch
from sightline.watching.intercept.by_hand import AXES, CHANGED
from sightline.watching.intercept.function_mode import WatchMode
from sightline.watching.intercept.unseen import BY_HAND
from watch_by_hand import DIM, HEADS, SEEN, TIME, Batched, Fused, OfTheClass, Plain, Projected, Wordy, padding, run
from watch_cases import check_statistics


def weights(model):
    """What the softmax of a model made of its scores, in four axes."""
    scores = model.kept.double()
    return scores.view(2, HEADS, *scores.shape[-2:]).softmax(-1)


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_it_is_seen_as_it_is(kind, side):
    torch.manual_seed(1)
    model = nn.ModuleDict({"a": kind(), "b": Fused(), "c": kind()})
    model.forward = lambda x: model["c"](model["b"](model["a"](x)))
    for name in "ac":
        model[name].real = padding(side)
    x = torch.randn(2, TIME, DIM)
    for module in (model.eval(), model.train()):
        torch.manual_seed(2)
        plain, after = module(x), torch.rand(1)
        torch.manual_seed(2)
        with watch(module, stats=("entropy", "distance", "max_score", "received", "overview", "overview_max")) as seen:
            assert torch.equal(module(x), plain)
        assert torch.equal(torch.rand(1), after)
        assert seen.layers == ["a", "b", "c"]
        assert not seen.unseen
        for name in "ac":
            check_statistics(seen[name], weights(model[name]))
            scores = model[name].kept.view(seen[name].shape)
            torch.testing.assert_close(seen[name].lse, scores.logsumexp(-1))
            torch.testing.assert_close(seen[name].max_score, scores.amax(-1))


def test_gradients_have_the_same_bits():
    model, x = nn.Sequential(Wordy(), Batched()).train(), torch.randn(2, TIME, DIM)

    def gradients():
        torch.manual_seed(3)
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients()
    with watch(model) as seen:
        assert all(map(torch.equal, gradients(), plain))
    assert seen.layers == ["0", "1"]


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_padding_is_read_off_the_scores(side):
    model = nn.Sequential(Plain()).eval()
    model[0].real = padding(side)
    seen = run(model, torch.randn(2, TIME, DIM))
    found, real = weights(model[0]).float(), padding(side)
    first = real.int().argmax(-1)
    for i in range(2):
        torch.testing.assert_close(seen.shares(0)["first"][i], found[i, :, :, first[i]])
    rows = seen._layers["0"].rows("real")
    assert rows is None if side is None else torch.equal(rows, real)


def test_q_and_k_are_kept_where_they_make_the_scores(tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"plain": Plain(), "heads": Wordy()}).eval()
    model["plain"].real = padding("left")
    model.forward = lambda x: model["heads"](model["plain"](x))
    seen = run(model, torch.randn(2, TIME, DIM), keep_qk=True)
    assert seen["plain"].has_qk  # 1/4 of q k, and what all heads hide
    assert not seen["heads"].has_qk  # padding of each text and a bias of each head: as large as the map
    for sight in (seen["plain"], load(seen.save(tmp_path / "run"))["plain"]):
        torch.testing.assert_close(sight.tile(slice(0, 7), slice(0, 7)), weights(model["plain"]).float())


class Single(nn.Module):
    def forward(self, x):
        return F.softmax(x @ x.mT, dim=-1) @ x


@pytest.mark.parametrize("shape", [(TIME, DIM), (2, TIME, DIM)])
def test_a_single_head(shape):
    x = torch.randn(*shape)
    seen = run(nn.Sequential(Single()), x)
    batch = 1 if x.dim() == 2 else 2
    assert seen[0].shape == (batch, 1, TIME, TIME)
    check = (x @ x.mT).softmax(-1).view(batch, 1, TIME, TIME)
    torch.testing.assert_close(seen[0].tile(slice(0, TIME), slice(0, TIME)), check)


class Windows(Projected):
    """Of five axes: pieces of a text, with heads before or after them."""

    def __init__(self, order):
        super().__init__()
        self.num_heads, self.order = self.heads, order

    def attend(self, q, k, v):
        q, k, v = (t.unflatten(2, (-1, TIME)) for t in (q, k, v))  # [batch, heads, windows, time, dim]
        if self.order == "windows first":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.order == "wider":
            k, v = (torch.cat([t, t.roll(1, 2)], 3) for t in (k, v))
        found = self.keep(q @ k.mT).softmax(-1) @ v
        return (found.transpose(1, 2) if self.order == "windows first" else found).flatten(2, 3)


@pytest.mark.parametrize("order", ["windows first", "heads first", "wider"])
def test_windows_are_texts_of_their_own(order):
    model = nn.Sequential(Windows(order))
    seen = run(model, torch.randn(2, 3 * TIME, DIM))
    if order == "wider":
        assert seen.unseen == {"0": AXES}
        return
    assert seen[0].shape == (6, HEADS, TIME, TIME)
    want = model[0].kept if order == "windows first" else model[0].kept.transpose(1, 2)
    torch.testing.assert_close(seen[0].tile(slice(0, TIME), slice(0, TIME)), want.flatten(0, 1).softmax(-1))


class Hidden(Projected):
    """What is hidden is set to 0 once more, and whole rows with it; or something that was not hidden is."""

    def __init__(self, more):
        super().__init__()
        self.more = more

    def attend(self, q, k, v):
        hidden = ~self.real[:, None, None] | ~self.real[:, None, :, None]
        found = self.keep((q @ k.mT).masked_fill(hidden, -1e9)).softmax(-1)
        if self.more:
            hidden = hidden | torch.eye(TIME, dtype=torch.bool)
        return found.masked_fill(hidden, 0.0) @ v


def test_weights_that_are_hidden_once_more():
    model = nn.Sequential(Hidden(more=False))
    model[0].real = padding("right")
    seen = run(model, torch.randn(2, TIME, DIM))
    want = weights(model[0]).float() * padding("right")[:, None, :, None]
    torch.testing.assert_close(seen[0].tile(slice(0, TIME), slice(0, TIME)), want)
    assert (seen[0].lse[0, :, -3:] == -torch.inf).all()
    assert run(nn.Sequential(Hidden(more=True)), torch.randn(2, TIME, DIM)).unseen == {"0": CHANGED}


class OverQueries(Projected):
    """A softmax whose weights are summed over their queries."""

    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1).mT @ v


class OtherAxis(Projected):
    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-2) @ v


class Moved(Projected):
    """As sliding windows are written: what a softmax is given is not where the product left it."""

    def attend(self, q, k, v):
        return F.pad(q @ k.mT, (0, TIME))[..., :TIME].roll(1, -1).softmax(-1) @ v


class Two(Projected):
    """One softmax that can be followed, and one that cannot."""

    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v + (q @ k.mT).softmax(-2) @ v


@pytest.mark.parametrize("kind", [OverQueries, OtherAxis, Moved, Two])
def test_what_cannot_be_followed_is_named(kind):
    seen = run(nn.Sequential(kind(), Fused()), torch.randn(2, TIME, DIM))
    assert seen.layers == ["1"]
    assert seen.unseen == {"0": BY_HAND}


def test_one_query_that_asks_all_is_attention_to_another_sequence():
    seen = run(nn.Sequential(OfTheClass()), torch.randn(2, TIME, DIM))
    assert seen.kind(0) == "cross"
    assert seen[0].shape == (2, HEADS, 1, TIME)


class Steps(Projected):
    """A cache of its own, and steps of one token."""

    past = None

    def attend(self, q, k, v):
        k, v = (t if self.past is None else torch.cat([p, t], 2) for t, p in zip((k, v), self.past or (k, v)))
        self.past = k, v
        ahead = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        return self.keep((q @ k.mT).masked_fill(ahead, -1e9)).softmax(-1) @ v


@pytest.mark.parametrize("keep", [False, True])
def test_steps_grow_into_one_sight_while_the_cache_is_followed(keep):
    model, x = Steps(heads=HEADS).eval(), torch.randn(2, TIME, DIM)
    rows = []
    with torch.no_grad(), watch(model, keep_qk=keep) as seen:
        for part in x.split([4, 1, 1, 1], 1):
            model(part)
            rows.append(F.pad(model.kept.softmax(-1), (0, TIME - model.kept.shape[-1])))
    torch.testing.assert_close(seen[0].tile(slice(0, TIME), slice(0, TIME)), torch.cat(rows, 2))
    assert not seen.unseen
    assert seen.kind(0) == "self"
    for order in ([1, 0], [1, 1], [0]):
        model.past = None
        with torch.no_grad(), watch(model, keep_qk=keep) as seen:
            model(x[:, :4])
            before = F.pad(model.kept.softmax(-1), (0, 1))
            model.past = tuple(t[order] for t in model.past)
            model(x[: len(order), 4:5])
        assert not seen.unseen
        weights = torch.cat([before[order], model.kept.softmax(-1)], 2)
        torch.testing.assert_close(seen[0].tile(slice(0, 5), slice(0, 5)), weights)
    model.past = None
    with warnings.catch_warnings(action="ignore"), torch.no_grad(), watch(model, keep_qk=keep) as seen:
        model(x[:, :4])
        model.past = tuple(t.flip(2) for t in model.past)
        model(x[:, 4:5])
    assert seen[0].shape[-2] == 4
    assert "reordered" in seen.unseen["Steps"]


def test_nothing_of_queries_x_keys_is_held():
    mode, x = WatchMode(), torch.randn(2, TIME, DIM)
    model = nn.Sequential(Plain()).eval()
    held = []
    model[0].keep = lambda scores: (held.append(weakref.ref(scores)), scores)[1]
    with torch.no_grad(), watch(model) as seen:
        model(x)
        gc.collect()
        assert held[0]() is None
        with mode:
            soft = (x @ x.mT).softmax(-1)  # nobody uses it, and nobody runs
        assert all(mark.soft is None for _, mark in mode.trace.marks.values())
    assert seen.layers == ["0"]
    assert soft.shape == (2, TIME, TIME)


def test_it_is_edited_where_its_axes_are_known_and_refused_where_not():
    model, x = nn.Sequential(Plain(), Fused()).eval(), torch.randn(2, TIME, DIM)
    plain = model(x)
    for layer in ("0", "1"):
        with torch.no_grad(), edit(model) as edits:
            edits.ablate(layers=layer, heads=[0])
            assert not torch.equal(model(x), plain)

    class WrittenOut(Plain):
        def attend(self, q, k, v):
            shares = (q @ k.mT).exp()
            return (shares / shares.sum(-1, keepdim=True)) @ v

    unfollowed = nn.Sequential(WrittenOut()).eval()
    with torch.no_grad(), edit(unfollowed) as edits:
        edits.ablate(heads=[0])
        with pytest.raises(InputError, match="0 cannot be edited"):
            unfollowed(x)
        edits.clear()
