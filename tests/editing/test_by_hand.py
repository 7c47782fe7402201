"""Edits of attention that is written by hand: exact as far as its scores and values are known, else refused."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import sightline as sl
import watch_by_hand as hand
from sightline.errors import InputError

EDITS = [
    ("cut", {"keys": [2], "heads": [1]}),
    ("temperature", {"t": 2.0, "queries": slice(1, 4), "heads": [0]}),
    ("boost", {"factor": 3.0, "keys": slice(3, 5), "examples": [1]}),
    ("force", {"pattern": "uniform", "heads": [1], "queries": [5]}),
    ("scale", {"factor": -0.5, "heads": [0], "queries": [6]}),
]


def expected(model, x, edits):
    """The same cell by cell, from the scores that the model has left."""
    scores = model.kept.view(2, hand.HEADS, -1, hand.TIME).double()
    least = scores.amax(-1, keepdim=True) - 5e3
    visible = (scores > least).expand(scores.shape).clone()
    queries = scores.shape[2]

    def rows(o):
        for b in range(2):
            for h in range(hand.HEADS):
                for i in range(queries):
                    chosen = o.get("queries", slice(None))
                    inside = i in (range(hand.TIME)[chosen] if isinstance(chosen, slice) else chosen)
                    if inside and b in o.get("examples", (0, 1)) and h in o.get("heads", (0, 1)):
                        yield b, h, i

    for kind, o in edits:
        if kind == "temperature":
            for at in rows(o):
                scores[at] /= o["t"]
    for kind, o in edits:
        for at in rows(o):
            keys = o.get("keys", slice(0, 0))
            if kind == "boost":
                scores[at][keys] += torch.tensor(o["factor"]).double().log()
            if kind == "cut":
                visible[at][keys] = False
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0)
    for kind, o in edits:
        if kind == "force":
            for at in rows(o):
                weights[at] = visible[at] / visible[at].sum()
    v = model.qkv(x).double().chunk(3, dim=-1)[2].unflatten(-1, (hand.HEADS, -1)).transpose(1, 2)
    out = weights @ v
    for kind, o in edits:
        if kind == "scale":
            for at in rows(o):
                out[at] = out[at] * o["factor"]
    return weights, out


@pytest.mark.parametrize("kind", [k for k in hand.SEEN if k is not hand.OfTheClass])
@pytest.mark.parametrize("watch_first", [True, False])
def test_it_is_edited_as_if_it_were_called(kind, watch_first):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, hand.TIME, hand.DIM)
    model.real = hand.padding("right")
    if kind is hand.Batched:  # without its dropout
        model.attend = lambda q, k, v: torch.bmm(
            torch.softmax(model.keep(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT)), 2), v.flatten(0, 1)
        ).view_as(q)
    plain = model(x)
    first, second = sl.watch(model), sl.edit(model)
    first, second = (first, second) if watch_first else (second, first)
    with torch.no_grad(), first as one, second as two:
        seen, edits = (one, two) if watch_first else (two, one)
        for name, options in EDITS:
            getattr(edits, name)(**options)
        found = model(x)
    weights, out = expected(model, x, EDITS)
    whole = model.out(out.float().transpose(1, 2).flatten(2))
    assert (found - whole).abs().max() < 1e-5
    assert (seen[0].tile(slice(0, hand.TIME), slice(0, hand.TIME)) - weights).abs().max() < 1e-5
    assert len(seen.layers) == 1
    assert (found - plain).abs().max() > 1e-3
    assert torch.equal(model(x), plain)


def test_gradients_flow_and_nothing_is_heard_twice():
    torch.manual_seed(0)
    model, x = hand.Plain(), torch.randn(2, hand.TIME, hand.DIM, requires_grad=True)
    with sl.edit(model) as edits:
        edits.cut(keys=[2])
        edits.scale(2.0)
        found = torch.autograd.grad(model(x).square().sum(), x)[0]
    q, k, v = (t.unflatten(-1, (hand.HEADS, -1)).transpose(1, 2) for t in model.qkv(x).chunk(3, dim=-1))
    left = (torch.arange(hand.TIME) != 2)[None]
    out = 2 * sl.attention(q, k, v, mask=left, scale=0.25, backend="reference")
    by_reference = torch.autograd.grad(model.out(out.transpose(1, 2).flatten(2)).square().sum(), x)[0]
    assert (found - by_reference).abs().max() < 1e-4
    with torch.no_grad(), sl.watch(model) as seen, sl.watch(model) as also:
        model(x)
    assert seen.layers == also.layers == ["Plain"]


def test_what_cannot_be_done_is_refused_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model, x = hand.Plain().eval(), torch.randn(2, hand.TIME, hand.DIM)
    plain = model(x)
    with sl.watch(model, keep_qk=True) as source:
        model(x)

    def run_edited(model, make, run):
        with sl.edit(model) as edits:
            make(edits)
            run(x)

    def refused(model, match, make, run=None):
        with pytest.raises(InputError, match=match):
            run_edited(model, make, run or model)

    refused(model, "this edit is not for Plain", lambda edits: edits.patch(source, "queries"))
    dropping = hand.Wordy().train()
    dropping.drop.p = 0.5
    refused(dropping, "this edit is not for Wordy", lambda edits: edits.temperature(2.0))
    inputs = x.clone().requires_grad_()
    again = lambda _: checkpoint(model, inputs, use_reentrant=False)  # noqa: E731
    refused(model, "this edit is not for Plain", lambda edits: edits.scale(2.0), again)
    assert torch.equal(model(x), plain)


def test_heads_that_lie_in_the_batch_are_edited():
    """BLOOM's scores have an axis of heads; its weights and values have them in the batch."""

    class InTheBatch(hand.Plain):
        def attend(self, q, k, v):
            weights = self.keep(q @ k.mT / 4).softmax(-1).flatten(0, 1)
            return torch.bmm(weights, v.flatten(0, 1)).unflatten(0, (-1, self.heads))

    torch.manual_seed(0)
    model, x = InTheBatch().eval(), torch.randn(2, hand.TIME, hand.DIM)
    with torch.no_grad(), sl.watch(model) as seen, sl.edit(model) as edits:
        for kind, options in EDITS:
            getattr(edits, kind)(**options)
        out = model(x)
    weights, heads = expected(model, x, EDITS)
    torch.testing.assert_close(seen[0].tile(slice(None), slice(None)).double(), weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), model.out.double()(heads.transpose(1, 2).flatten(2)), rtol=1e-5, atol=1e-6)
