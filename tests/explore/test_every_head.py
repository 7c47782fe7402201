"""One link in every head, and the path of a token: the sights' own numbers, in every layer that has such a cell."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sightline as sl
from explore_cases import Sights, exact, make_run, sights, words
from sightline.errors import InputError
from sightline.explore import every_head
from sightline.explore.run import Run


@pytest.fixture
def run() -> Run:
    torch.manual_seed(3)
    return make_run(sights(23, layers=3), words(23))


def maps(run: Run, layer: int) -> np.ndarray:
    return np.stack([exact(run, layer, head).numpy() for head in range(run.layers[layer].heads)])


def test_a_link_has_its_weight_in_every_head(run: Run) -> None:
    found = every_head.grid(run, 19, 4)
    assert found["heads"] == [pytest.approx(list(maps(run, layer)[:, 19, 4])) for layer in range(3)]
    assert every_head.grid(run, 4, 19)["heads"] == [[None] * 3] * 3  # hidden by the mask


def test_a_query_has_its_strongest_keys_in_every_head(run: Run) -> None:
    found = every_head.strongest(run, 19)["heads"]
    for layer in range(3):
        for head, row in enumerate(maps(run, layer)[:, 19]):
            order = np.argsort(-row, kind="stable")[:3]
            assert found[layer][head] == [[int(key), pytest.approx(float(row[key]))] for key in order]
    assert every_head.strongest(run, 0)["heads"][0][0] == [[0, pytest.approx(1.0)]]


def test_keys_of_a_memory_are_no_tokens_of_the_text() -> None:
    class Mixed(Sights):
        def kind(self, name: str) -> str:
            return "cross" if name == "cross" else "self"

    q = torch.randn(1, 2, 6, 8)
    account = Mixed(own=sl.look(q, q), cross=sl.look(q, torch.randn(1, 2, 4, 8)))
    run = make_run(account, words(6), memory=words(4))
    own, cross = (every_head.grid(run, 5, 3, like)["heads"] for like in (0, 1))
    assert (own[1], cross[0]) == ([None, None], [None, None])
    assert cross[1] == pytest.approx(account["cross"].tile(slice(5, 6), slice(3, 4))[0, :, 0, 0].tolist())
    with pytest.raises(InputError, match="no such key"):
        every_head.grid(run, 5, 4, like=1)
    with pytest.raises(InputError, match="queries that are keys too"):
        every_head.follow(run, 5, like=1)


def test_a_path_goes_where_the_strongest_links_lead() -> None:
    """Layer 1 looks from 6 to 3 alone, layer 0 from 3 to 2; everything else stays where it is."""
    q, k = torch.zeros(2, 1, 1, 8, 8), torch.zeros(2, 1, 1, 8, 8)
    for layer, (query, key) in enumerate(((3, 2), (6, 3))):
        q[layer, ..., :, :] = torch.eye(8)
        k[layer, ..., :, :] = torch.eye(8)
        q[layer, 0, 0, query] = torch.eye(8)[key]
    look = [sl.look(q[i], k[i], scale=12.0, mask=sl.causal()) for i in range(2)]
    run = make_run(Sights(low=look[0], high=look[1]), words(8))
    steps = every_head.follow(run, 6)["steps"]
    assert [(step["layer"], step["query"], step["goes"]) for step in steps] == [(1, 6, True), (0, 3, True)]
    assert [step["sources"][0][:2] for step in steps] == [[0, 3], [0, 2]]
    assert steps[0]["sources"][0][2] == pytest.approx(float(exact(run, 1, 0)[6, 3]))
    below = every_head.follow(run, 6, start=0)["steps"]
    assert [(step["query"], step["goes"]) for step in below] == [(6, False)]


def test_what_is_not_there_is_said(run: Run) -> None:
    for ask in (lambda: every_head.grid(run, 23, 0), lambda: every_head.follow(run, 99)):
        with pytest.raises(InputError, match="no such query"):
            ask()
    with pytest.raises(InputError, match="no such layer"):
        every_head.follow(run, 3, start=7)
