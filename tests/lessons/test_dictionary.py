"""The dictionary's numbers to every digit shown (S1.4), by plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lesson_cases import fixed, give, rows, small, softmax
from sightline.lessons import Page

# Written down again from the source, not taken from the lesson.
Q = np.array([[0.3, 1.2, 2.2], [0.1, 6.2, 2.1], [2.1, 2.5, 5.2], [1.1, 6.6, 4.3]])
K = np.array([[0.4, 1.4, 0.0], [0.2, -1.1, 0.0], [0.3, 1.2, 4.0], [0.3, 1.2, 4.0]])
V = np.array([[2.3, 1.1, 3.5], [3.0, 1.0, 0.5], [-2.2, 4.1, 2.5], [-2.2, 4.1, 2.5]])
INDICES = "₁₂₃"


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("dictionary")


def test_the_record(given: tuple[Page, str]) -> None:
    page, text = given
    assert page.results["answer"] == "May 5th 2000"
    assert "'Date of birth', the nearest key" in text
    assert page.results["zero"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("i", range(3))
def test_every_digit_of_the_worked_numbers(given: tuple[Page, str], i: int) -> None:
    scores = Q[:3] @ K[:3].T
    weights = softmax(scores / math.sqrt(3))
    *lines, last = rows(given[1], f"q{INDICES[i]}")
    assert len(lines) == 3
    for j, line in enumerate(lines):
        vectors = [fixed(x, 1) for vector in (Q[i], K[j], V[j]) for x in vector]
        numbers = [fixed(scores[i, j], 3), fixed(scores[i, j] / math.sqrt(3), 3), small(weights[i, j], 3)]
        weighted = [fixed(weights[i, j] * x, 3) for x in V[j]]
        assert line == [f"k{INDICES[j]}", *vectors, *numbers, *weighted]
    assert last == ["sum", "1.000", *(fixed(x, 3) for x in weights[i] @ V[:3])]


def test_the_four_queries(given: tuple[Page, str]) -> None:
    page, text = given
    weights = softmax(Q @ K.T / math.sqrt(3))
    np.testing.assert_allclose(page.results["weights 4"], weights, atol=1e-12)
    np.testing.assert_allclose(page.results["z 4"], weights @ V, atol=1e-12)
    for x in (weights @ V).flatten():
        assert fixed(x, 4) in text
    for x in weights.flatten():
        assert small(x, 4) in text


@pytest.mark.parametrize("temperature", [10.0, 1.0, 0.3, 0.1, 0.03])
def test_the_temperature(given: tuple[Page, str], temperature: float) -> None:
    page, text = given
    weights = softmax(np.array([0.1, 1.0, 0.2]) / math.sqrt(3) / temperature)
    np.testing.assert_allclose(page.results[f"soft {temperature:g}"], weights @ V[:3], atol=1e-12)
    row = [f"{temperature:g}", *(small(w, 4) for w in weights), *(fixed(z, 4) for z in weights @ V[:3])]
    assert row in [line.split() for line in text.splitlines()]


def test_temperature_zero_is_the_exact_look_up(given: tuple[Page, str]) -> None:
    assert given[0].results["soft 0"].tolist() == [3.0, 1.0, 0.5]
