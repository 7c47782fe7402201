"""Which head is looked at first, and which link of it."""

from __future__ import annotations

import torch

import sightline as sl
from explore_cases import Sights, make_run
from sightline.explore import measures
from sightline.explore.links import Special, first_head, link_of
from sightline.explore.places import strong_links
from sightline.explore.run import Run

TOKENS = ["[CLS]", "Ġred", "Ġcat", "Ġsaw", "Ġthe", "Ġblue", "Ġdog", "Ġit", "Ġran", "[SEP]"]
N = len(TOKENS)


def looking(*heads: dict[int, int] | int) -> Run:
    """Heads whose queries look at one key each: all at the same, or by query; elsewhere at themselves."""
    scores = torch.zeros(1, len(heads), N, N)
    for h, looks in enumerate(heads):
        for q in range(N):
            scores[0, h, q, looks if isinstance(looks, int) else looks.get(q, q)] = 8.0
    zero = torch.zeros(1, len(heads), N, 4)
    return make_run(Sights(only=sl.look(zero, zero, bias=scores, stats=("entropy", "received"))), TOKENS)


def test_the_share_of_the_next_token_counts_against_a_head() -> None:
    run = looking({q: min(q + 1, N - 1) for q in range(N)}, {q: max(q - 1, 0) for q in range(N)})
    after, before = measures.measure(run)[0][0]
    assert after["next"] > 0.8
    assert after["previous"] < 0.05
    assert before["previous"] > 0.8
    assert max(after["interest"], before["interest"]) < 0.15


def test_a_head_that_refers_comes_before_sinks_and_neighbours() -> None:
    """Not the first token, nor a second sink, nor neighbours, but the head in which `it` looks at `cat`."""
    refers = {q: (q * 3 + 4) % N for q in range(1, N - 1)} | {7: 2}
    run = looking(0, 4, {q: max(q - 1, 0) for q in range(N)}, refers)
    heads, _ = measures.measure(run)
    assert first_head(run, heads) == (0, 3)
    layer = run.layers[0]
    assert run.special_queries(layer).tolist() == [True] + [False] * 8 + [True]
    link = link_of(run, 0, 3)
    assert link is not None
    assert abs(link.query - link.key) > 1
    assert link.key != 0
    assert not run.special_queries(layer)[link.query]


def test_a_link_is_neither_to_a_neighbour_nor_from_a_special_token() -> None:
    run = looking({0: 6, 9: 6, 1: 2, 2: 3, 3: 0, 4: 5, 5: 4, 6: 7, 8: 7, 7: 2})
    link = link_of(run, 0, 0)
    assert link is not None
    assert (link.query, link.key) == (7, 2)


class Crossed(Sights):
    def kind(self, name: str) -> str:
        return name


def test_of_another_text_no_key_is_beside_a_query() -> None:
    scores = torch.zeros(1, 1, 5, 8)
    scores[0, 0, 2, 4] = 8.0  # where the one before it would stand, were they of one text
    seen = sl.look(torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 8, 4), bias=scores)
    run = make_run(Crossed(cross=seen), TOKENS[1:6])
    link = link_of(run, 0, 0)
    assert link is not None
    assert (link.query, link.key) == (2, 4)
    layer = run.layers[0]
    assert strong_links(run.view(0, 0), Special.of(run, layer))[0] == link


def test_induction_counts_half_as_much_again() -> None:
    plain = {"focus": 0.4, "first": 0.5, "same": 0.1, "previous": 0.2, "next": 0.3}
    assert measures.interest(plain) == 0.4 * 0.5 * 0.9 * 0.8 * 0.7
    assert measures.interest({**plain, "induction": 0.5}) == measures.interest(plain) * 1.25
