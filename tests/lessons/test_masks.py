"""Masks drawn by rules written down again, and the two kinds of heads by numpy."""

from __future__ import annotations

import numpy as np
import pytest

from lesson_cases import give, softmax
from sightline.lessons import Page
from sightline.lessons.masks import make_heads
from sightline.steps import embed_words


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("masks")


def test_both_heads(given: tuple[Page, str]) -> None:
    x = embed_words("I am not interested in this workshop now".split(), width=32).numpy()  # noqa: SIM905
    head = make_heads()[0]
    q, k = (x @ linear.weight.detach().numpy().T for linear in (head.query, head.key))
    scores = q @ k.T / 4
    np.testing.assert_allclose(given[0].results["bidirectional"], softmax(scores), atol=1e-12)
    masked = np.where(np.tril(np.ones((8, 8))), scores, -np.inf)
    np.testing.assert_allclose(given[0].results["masked"], softmax(masked), atol=1e-12)


def test_nothing_comes_back_from_the_future(given: tuple[Page, str]) -> None:
    moves = given[0].results["moves"]
    assert moves["masked"][:-1].tolist() == [0] * 7
    assert moves["masked"][-1] > 0.1
    assert (moves["bidirectional"] > 0.01).all()


@pytest.mark.parametrize(
    "name, rule",
    [
        ("causal()", lambda i, j: j <= i),
        ("window(2)", lambda i, j: i - 2 <= j <= i),
        ("window(1, 1)", lambda i, j: abs(i - j) <= 1),
        ("prefix(3)", lambda i, j: j <= i or j < 3),
        ("padding([4])", lambda i, j: j < 4),
        ("documents(ids)", lambda i, j: (i < 3) == (j < 3)),
        ("documents(ids) & causal()", lambda i, j: (i < 3) == (j < 3) and j <= i),
    ],
)
def test_rules(given: tuple[Page, str], name: str, rule) -> None:
    expected = [[int(rule(i, j)) for j in range(6)] for i in range(6)]
    assert given[0].results[name].tolist() == expected
    drawn = given[1].split(f"    {name}: ")[1].splitlines()[1:7]
    assert [line.split() for line in drawn] == [[str(x) for x in row] for row in expected]


def test_the_last_query_stands_at_the_last_key(given: tuple[Page, str]) -> None:
    assert given[0].results["late"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
