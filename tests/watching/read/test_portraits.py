"""Head portraits against whole maps, and a head that was built to be an induction head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sightline as sl
import watch_cases as tiny
from sightline.watching import Portrait, induction, watch
from sightline.watching.record.chosen_keys import repeats


def expected(weights, real, ids=None):
    """Means over real queries, from whole maps [batch, heads, tokens, tokens]."""
    weights = weights.double()
    batch, heads, n, _ = weights.shape
    first = real.int().argmax(-1)
    place = torch.arange(n)
    sums = {name: torch.zeros(heads, dtype=torch.float64) for name in Portrait._fields[2:]}
    counts = dict.fromkeys(sums, 0)
    for b in range(batch):
        for i in range(n):
            if not real[b, i]:
                continue
            row = weights[b, :, i]

            def add(name, value):
                sums[name] += value
                counts[name] += 1

            add("first", row[:, first[b]])
            add("same", row[:, i])
            if i > first[b]:
                add("previous", row[:, i - 1])
            add("distance", (row * (i - place).abs()).sum(-1))
            add("entropy", torch.special.entr(row).sum(-1))
            if ids is not None:
                before = [j for j in range(i) if ids[b, j] == ids[b, i]]
                if before:
                    add("induction", row[:, before[-1] + 1])
    return {name: sums[name] / counts[name] if counts[name] else None for name in sums}


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_portraits_are_means_over_real_queries(family, padding):
    model, given = tiny.model(family, "eager"), tiny.inputs(family, padding)
    given["input_ids"] = given["input_ids"] % 5 + 2  # with repetitions
    with torch.no_grad(), watch(model) as seen:
        output = model(**given, output_attentions=True)
    real = given["attention_mask"].bool()
    portraits = seen.portraits()
    assert [(p.layer, p.head) for p in portraits] == [(name, head) for name in seen.layers for head in range(4)]
    for index, weights in enumerate(output.attentions):
        want = expected(weights, real, given["input_ids"])
        for head in range(4):
            got = portraits[4 * index + head]
            for name, values in want.items():
                assert getattr(got, name) == pytest.approx(values[head].item(), abs=1e-5), name


def test_cross_attention_has_no_previous_token():
    model, given = tiny.model("t5"), tiny.inputs("t5")
    with torch.no_grad(), watch(model, layers="*EncDecAttention") as seen:
        model(**given)
    portrait = seen.portraits()[0]
    assert (portrait.previous, portrait.same, portrait.distance, portrait.induction) == (None,) * 4
    assert portrait.first is not None
    assert portrait.entropy is not None


def test_where_an_induction_head_looks():
    ids = torch.tensor([[5, 6, 5, 5, 6, 9], [1, 1, 1, 2, 3, 2]])
    assert repeats(ids).tolist() == [[-1, -1, 1, 3, 2, -1], [-1, 1, 2, -1, -1, 4]]


class Induction(nn.Module):
    """Head 0 looks at what came after the same token, head 1 at the previous token: by construction."""

    def __init__(self, vocabulary=40):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, vocabulary)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.eye(vocabulary))

    def forward(self, ids):
        x = self.embedding(ids)
        before = x.roll(1, 1)  # each position knows the token before it
        before[:, 0] = 0
        time = torch.eye(ids.shape[1]).expand(len(ids), -1, -1)
        width = max(x.shape[-1], ids.shape[1])

        def wide(t):
            return nn.functional.pad(t, (0, width - t.shape[-1]))

        q = torch.stack([wide(x), wide(time.roll(-1, 2))], 1)
        k = torch.stack([wide(before), wide(time)], 1)
        return sl.attention(q, k, k, mask=sl.causal(), scale=50.0)


def test_induction_on_a_repeated_random_sequence():
    scores = induction(Induction(), length=12, batch=3)
    assert scores["Induction", 0] > 0.99
    assert scores["Induction", 1] < 0.1
    model = Induction()
    with watch(model) as seen:
        model(torch.arange(10)[None])
    assert seen.portraits()[0].induction is None, "nothing is repeated"
    assert seen.portraits(model)[0].induction > 0.99
    assert seen.portraits()[1].previous > 0.99


def test_a_table_and_a_picture():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with torch.no_grad(), watch(model) as seen:
        model(**given)
    portraits = seen.portraits()
    table = portraits.table()
    assert list(table.columns) == ["layer", "head", "previous", "first", "same", "distance", "entropy", "induction"]
    assert len(table) == 8
    svg = portraits.svg()
    assert svg.startswith("<svg")
    assert svg.count("<title>") == 8 * sum(getattr(portraits[0], name) is not None for name in Portrait._fields[2:])
    import xml.etree.ElementTree as tree

    tree.fromstring(svg)


def test_a_model_that_does_not_say_how_many_tokens_it_knows():
    from sightline.errors import InputError

    with pytest.raises(InputError, match="how many tokens"):
        induction(nn.Linear(2, 2))


@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_a_sink_changes_no_entropy_and_no_distance(padding):
    """Of the keys among each other: the mean over real queries of their weights divided by their sum."""
    model, given = tiny.model("gpt-oss", "eager"), tiny.inputs("gpt-oss", padding, length=11)
    with torch.no_grad():
        maps = model(**given, output_attentions=True).attentions
        with watch(model) as seen, watch(model, keep_qk=True, stats=("overview", "shares")) as kept:
            model(**given)
    portraits = seen.portraits()  # before anything else is asked of the sights, and kept
    real = given["attention_mask"].bool()
    gap = (torch.arange(11)[:, None] - torch.arange(11)).abs()
    for layer, (name, weights) in enumerate(zip(seen.layers, maps)):
        weights = weights.double() * real[:, None, :, None]
        left = weights.sum(-1)
        assert left[left > 0].min() < 0.5, "the sink takes something"
        share = weights / left[..., None].clamp_min(1e-30)
        rows = real[:, None].expand_as(left)
        want = {"entropy": torch.special.entr(share).sum(-1), "distance": (share * gap).sum(-1)}
        want |= {"same": weights.diagonal(dim1=-2, dim2=-1)}
        for account in (seen, kept):
            sight = account[name]
            torch.testing.assert_close(
                (sight.sink_share.double() + left)[rows], torch.ones(int(rows.sum())).double(), atol=1e-5, rtol=0
            )
            torch.testing.assert_close(sight.entropy.double()[rows], want["entropy"][rows], atol=1e-5, rtol=0)
            torch.testing.assert_close(sight.distance.double()[rows], want["distance"][rows], atol=1e-4, rtol=0)
            torch.testing.assert_close(
                account.shares(name)["same"].double()[rows], want["same"][rows], atol=1e-5, rtol=0
            )
        for portrait in portraits[4 * layer : 4 * layer + 4]:
            for measure, values in want.items():
                mean = values[:, portrait.head][real].mean().item()
                assert getattr(portrait, measure) == pytest.approx(mean, abs=1e-5), measure
    q = torch.randn(1, 2, 7, 8)
    assert torch.allclose(sl.look(q, q, sinks=torch.tensor([2.0, -1.0])).entropy, sl.look(q, q).entropy, atol=1e-6)
