"""The strongest keys by groups of columns are those of a stable sort."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import SEEDS, generator
from sightline.lens.cpu import top_keys
from sightline.lens.cpu.top_keys import Best


def expected(weights: torch.Tensor, n: int) -> tuple[list, list]:
    keys, best = [], []
    for row in weights.tolist():
        order = sorted((-w, j) for j, w in enumerate(row) if w >= 0)[:n]
        keys.append([j for _, j in order] + [-1] * (n - len(order)))
        best.append([-w for w, _ in order] + [0.0] * (n - len(order)))
    return keys, best


def found(weights: torch.Tensor, n: int, cuts: list[int]) -> tuple[list, list]:
    best = Best(weights.shape[0], n, weights.dtype)
    for left, right in pairwise(cuts):
        best.add(weights[:, left:right].clone(), left)
    keys, values = best.result()
    return keys.tolist(), values.tolist()


@settings(max_examples=120)
@given(
    st.integers(1, 9),
    st.integers(1, 400),
    st.sampled_from((1, 2, 5, 8)),
    SEEDS,
    st.sampled_from((3, 40, 10**6)),
    st.sampled_from((0.0, 0.5, 0.98)),
    st.data(),
)
def test_they_are_a_stable_sort(
    rows: int, columns: int, n: int, seed: int, values: int, hidden: float, data: st.DataObject
) -> None:
    """Weights out of few or many values, some or nearly all cells hidden, any cuts."""
    random = generator(seed)
    weights = torch.randint(0, values, (rows, columns), generator=random).double() / values
    weights[torch.rand(rows, columns, generator=random) < hidden] = -1e30
    cuts = [0, *sorted(set(data.draw(st.lists(st.integers(1, columns), max_size=3)))), columns]
    cuts = sorted(set(cuts))
    assert found(weights, n, cuts) == expected(weights, n)


def test_no_row_of_a_wide_tile_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.rand(16, 1000, generator=generator(0))
    monkeypatch.setattr(torch.Tensor, "sort", None)
    best = Best(16, 8, torch.float32)
    best.add(weights[:, :600].contiguous(), 0)
    best.add(weights[:, 600:].contiguous(), 600)
    monkeypatch.undo()
    assert best.result()[0].tolist() == expected(weights, 8)[0]


def test_tiles_without_strong_weights_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.rand(4, 600, generator=generator(0))
    weights[:, 300:] *= 0.01
    weights[2, 450] = 2.0
    looked = []
    largest = top_keys._largest
    monkeypatch.setattr(top_keys, "_largest", lambda x, n: (looked.append(x.shape), largest(x, n))[1])
    assert found(weights, 8, [0, 300, 600]) == expected(weights, 8)
    assert [rows for rows, _ in looked] == [4, 4, 1, 1]


def test_equal_weights_everywhere() -> None:
    assert found(torch.zeros(2, 1000), 3, [0, 500, 1000]) == ([[0, 1, 2]] * 2, [[0.0] * 3] * 2)
    assert found(torch.full((2, 1000), -1e30), 3, [0, 500, 1000]) == ([[-1] * 3] * 2, [[0.0] * 3] * 2)


def test_fewer_columns_than_asked_for() -> None:
    assert found(torch.tensor([[0.25, 0.5]]), 4, [0, 1, 2]) == ([[1, 0, -1, -1]], [[0.5, 0.25, 0.0, 0.0]])


def test_of_equal_weights_is_said_of_the_computed_ones() -> None:
    """Weights of keys that hold the same numbers differ in the last bits: a product rounds columns differently."""
    differ = 0
    for dim in (16, 17, 64, 65):
        for keys in (5, 9, 17, 33):
            for queries in (5, 17):
                q = torch.randn(1, queries, dim)
                k = torch.randn(1, 1, dim).expand(1, keys, dim).contiguous()
                found = sl.look(q, k).top(keys)
                # All of them share alike, but for some roundings of a score.
                torch.testing.assert_close(found.weights, torch.full((1, queries, keys), 1 / keys), rtol=1e-5, atol=0)
                stronger, weaker = found.weights[..., :-1], found.weights[..., 1:]
                assert (stronger >= weaker).all()
                lower_first = found.keys[..., :-1] < found.keys[..., 1:]
                assert lower_first[stronger == weaker].all()
                differ += int((stronger > weaker).any())
    assert differ > 0
