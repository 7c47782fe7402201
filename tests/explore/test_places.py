"""The strong links of a head in order, each query once, and those that are like one of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sightline as sl
from explore_cases import exact, make_run, sights, words
from sightline.errors import InputError
from sightline.explore.head_view import HeadView
from sightline.explore.links import Special
from sightline.explore.places import like, strong_links


def test_links_come_in_the_order_of_their_weights() -> None:
    torch.manual_seed(5)
    run = make_run(sights(40), words(40))
    view = run.view(1, 2)
    none = np.zeros(40, bool)
    found = strong_links(view, Special(none, none), n=10)
    weights = exact(run, 1, 2).numpy()
    place, key = np.indices(weights.shape)
    usual = (key == 0) | (abs(key - place) <= 1) | (key > place)
    rows = np.where(usual, 0, weights)
    best = np.sort(rows.max(1))[::-1][:10]
    assert [link.weight for link in found] == pytest.approx(best.tolist())
    assert all(link.weight == pytest.approx(float(weights[link.query, link.key])) for link in found)
    assert len({link.query for link in found}) == 10
    special = np.zeros(40, bool)
    special[found[0].key] = True
    assert all(link.key != found[0].key for link in strong_links(view, Special(none, special)))


def test_alike_are_the_same_words_first_then_the_same_distance() -> None:
    run = make_run(sights(40), words(40))
    none = np.zeros(40, bool)
    links = strong_links(run.view(0, 0), Special(none, none))
    names = run.labels.texts
    query, key, _ = links[0]
    order = like(links, query, key, names, names)
    scores = [
        2 * (names[q] == names[query]) + 2 * (names[k] == names[key]) + (q - k == query - key) for q, k, _ in order
    ]
    assert scores == sorted(scores, reverse=True)
    assert min(scores, default=1) > 0
    assert all(link.query != query for link in order)


def test_without_cells_there_are_no_links() -> None:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 600, 16)
    with torch.no_grad(), sl.watch(layer) as seen:
        layer(x, x, x)
    with pytest.raises(InputError, match="keep_qk=True"):
        strong_links(HeadView(seen[0].select(0, [0])), None)
