"""Measures of heads on maps that are known."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.watching.read.measures import OF_MAPS, duplicate, earlier, first, induction, previous, retrieval

IDS = torch.tensor([3, 5, 3, 7, 5])


def looks(*keys):
    """A head whose queries look at one key each."""
    weights = torch.zeros(1, len(keys), len(keys))
    for query, key in enumerate(keys):
        weights[0, query, key] = 1.0
    return weights


def test_each_says_one_for_the_head_it_is_named_after_and_less_for_others():
    heads = {
        "previous": looks(0, 0, 1, 2, 3),
        "first": looks(0, 0, 0, 0, 0),
        "duplicate": looks(0, 1, 0, 3, 1),
        "induction": looks(0, 1, 1, 3, 2),
    }
    for measure, of in OF_MAPS.items():
        found = {name: float(of(weights, IDS)) for name, weights in heads.items()}
        assert found[measure] == 1.0
        assert all(value < 1.0 for name, value in found.items() if name != measure), measure
    assert [f(looks(0), IDS[:1]).isnan().item() for f in (previous, duplicate, induction)] == [True] * 3
    assert first(looks(0), IDS[:1]).item() == 1
    assert earlier(IDS).tolist() == [-1, -1, 0, -1, 1]


def test_a_head_retrieves_what_it_looks_at_while_it_is_written():
    ids = torch.tensor([1, 8, 9, 2, 8, 9, 4])  # the needle is 8 9; 8, 9 and 4 are written
    needle, written = range(1, 3), range(4, 7)
    copies, half, elsewhere = looks(0, 0, 0, 1, 2, 0, 0), looks(0, 0, 0, 1, 0, 0, 0), looks(0, 0, 0, 0, 1, 2, 0)
    found = [float(retrieval(head, ids, needle, written)) for head in (copies, half, elsewhere)]
    assert found == [1.0, 0.5, 0.0]


def test_a_word_means_the_same_of_a_map_and_in_a_portrait() -> None:
    """The census reads maps, the explorer and a survey have portraits, which are made without them."""
    model, _ = sl.models.load("minilm")
    ids = model.batch("The kids were scared of the lions, so the kids left, and so did the lions.").ids
    with torch.no_grad(), sl.watch(model, keep_qk=True) as seen:
        model(ids[None])
    maps = {layer: seen[layer].tile(slice(None), slice(None))[0] for layer in seen.layers}
    for portrait in seen.portraits():
        for name in ("previous", "first", "induction"):
            value = OF_MAPS[name](maps[portrait.layer], ids)[portrait.head]
            assert getattr(portrait, name) == pytest.approx(float(value), abs=1e-5), name
