"""Hits of heads: what chance gives to the best of many, by hand."""

from __future__ import annotations

import itertools

import pytest
import torch

from sightline.lessons.counts import Hits, counted


def test_chance_takes_the_best_of_all_heads() -> None:
    right = torch.rand(5, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = Hits(right, torch.zeros(2, 3, 2), 10)
    best = []
    for turned in itertools.product((False, True), repeat=5):
        rates = torch.stack([1 - one if turn else one for one, turn in zip(right, turned)]).mean(0)
        best.append(rates.max().item())
    expected, probability = found.by_chance()
    assert expected == pytest.approx(sum(best) / 32)
    assert probability == pytest.approx(sum(one >= best[0] - 1e-9 for one in best) / 32)


def test_one_group_cannot_make_a_head_hold() -> None:
    right = torch.full((4, 1, 2), 0.5)
    right[0, 0, 1] = right[2, 0, 1] = 1.0
    hits = Hits(right, torch.zeros(2, 1, 2), 8)
    assert hits.best() == [(0, 1)]
    assert hits.held_out() == [(0, 1, 0.5), (0, 0, 0.5)]
    assert not hits.holds
    assert Hits(torch.ones(4, 1, 1), torch.zeros(2, 1, 1), 8).holds


def test_of_equals_the_first_is_best_and_the_others_are_counted() -> None:
    hits = Hits(torch.tensor([[[0.5, 1.0], [1.0, 0.75]]]), torch.zeros(2, 2, 2), 8)
    assert hits.best(3) == [(0, 1), (1, 0), (1, 1)]
    assert hits.equals == 2


def test_cases_are_counted_in_their_groups() -> None:
    right = torch.tensor([0.3, 0.1, 0.2, 0.9])[:, None, None]
    other = torch.tensor([0.1, 0.2, 0.1, 0.1])[:, None, None]
    hits = counted(right, other, groups=2)
    assert hits.right.flatten().tolist() == [0.5, 1.0]
    assert hits.weights.flatten().tolist() == pytest.approx([0.375, 0.125])
    assert hits.count == 4
