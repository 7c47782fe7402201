"""Positions against formulas written down again in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lesson_cases import give
from sightline.lessons import Page


@pytest.fixture(scope="module")
def page() -> Page:
    return give("positions")[0]


def waves(position: float, width: int = 64) -> np.ndarray:
    angles = [position * 10000 ** (-2 * i / width) for i in range(width // 2)]
    return np.array([f(a) for a in angles for f in (math.sin, math.cos)])


def test_waves(page: Page) -> None:
    table = np.stack([waves(i) for i in range(12)])
    np.testing.assert_allclose(page.results["sinusoidal"], table, atol=1e-12)
    np.testing.assert_allclose(page.results["alike"], table @ table.T / 32, atol=1e-12)


def test_order_is_seen_only_with_positions(page: Page) -> None:
    changes = page.results["changes"]
    assert (changes > 1e-4).all()
    assert changes[2] == changes.min()  # the word in the middle stays where it is
    # Where a word gives itself nearly all of the weight, it moves as its place does.
    on_itself = page.results["on itself"]
    for word in (1, 2, 4):
        place = np.abs(waves(word) - waves(4 - word)).max()
        assert on_itself[word] > 0.99
        assert changes[word] == pytest.approx(place, abs=2.5 * (1 - float(on_itself[word])))


def test_three_of_four_parts_of_the_middle_word_stay(page: Page) -> None:
    changes = page.results["parts"]
    assert [change > 1e-9 for change in changes.values()] == [False, True, False, False]
    assert changes["its word, the other's place"] > 0.3


def test_west_and_east_differ_by_the_wave_that_was_cut(page: Page) -> None:
    beside = page.results["beside"]
    assert list(beside) == [64, 66]
    assert beside[64] == pytest.approx((11.479, 10.885), abs=5e-4)
    west, east = beside[66]
    assert abs(west - east) < 0.03 * abs(beside[64][0] - beside[64][1])

    # By hand: the fastest wave has a sine of y without its cosine, and that sine is the difference.
    def point(longitude: float) -> float:
        return math.cos(math.radians(50)) * math.sin(math.radians(longitude))

    sines = [math.sin(3 * point(175)) * math.sin(3 * point(side)) for side in (165, 185)]
    assert math.exp(0.5 * (sines[0] - sines[1])) == pytest.approx(beside[64][0] / beside[64][1], rel=0.002)


def test_rotary_scores_know_the_distance(page: Page) -> None:
    q, k = (x.numpy().reshape(8) for x in page.results["rotary inputs"])

    def score(distance: int) -> float:
        total = 0.0
        for pair in range(4):
            angle = distance * 10000 ** (-2 * pair / 8)
            a, b, c, d = q[pair], q[pair + 4], k[pair], k[pair + 4]
            total += (a * c + b * d) * math.cos(angle) + (b * c - a * d) * math.sin(angle)
        return total / math.sqrt(8)

    for where, value in page.results["rotary"].items():
        i, j = (int(part.split()[-1]) for part in where.split(","))
        assert value == pytest.approx(score(j - i), abs=1e-9)


def test_alibi(page: Page) -> None:
    np.testing.assert_allclose(page.results["alibi"], [[-abs(i - j) / 2 for j in range(5)] for i in range(5)])


def test_the_grid(page: Page) -> None:
    place = [np.concatenate((waves(i, 32), waves(j, 32))) for i in range(7) for j in range(9)]
    expected = [place[3 * 9 + 4] @ other / 32 for other in place]
    np.testing.assert_allclose(page.results["grid"].flatten(), expected, atol=1e-12)


def test_the_globe(page: Page) -> None:
    places, table, weights = (page.results[name].numpy() for name in ("places", "table", "globe"))
    assert places.shape == (35 * 72, 2)
    here = next(i for i, place in enumerate(places) if tuple(place) == (50, 175))
    scores = 0.5 * table @ table[here]
    expected = np.exp(scores - scores.max())
    np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-12)
    # Where a point stands on the sphere, by hand: nearer in space is heavier, across the date line too.
    lat, lon = np.radians(places).T
    points = np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), -1)
    apart = np.degrees(np.arccos(np.clip(points @ points[here], -1, 1)))
    assert weights.argmax() == here
    assert weights[apart < 10].min() > weights[apart > 40].max()
    assert places[apart < 10][:, 1].min() < -170  # some of them lie beyond the date line
