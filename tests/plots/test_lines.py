"""Curves: the points that were given, and a name beside every end, none over another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline import plots
from sightline.errors import InputError
from sightline.plots.lines import _spread

LINES = {
    "no communication": [(1, 4.0), (10, 3.0), (20, 2.4)],
    "average": [(1, 4.0), (10, 2.9), (20, 2.3)],
    "weight-free": [(1, 4.0), (10, 2.9), (20, 2.3)],
}


def test_points_and_names() -> None:
    figure = plots.curves(LINES, title="the ladder")
    axes = figure.axes[0]
    for line, points in zip(axes.lines, LINES.values(), strict=True):
        np.testing.assert_array_equal(np.asarray(line.get_xydata()), np.array(points))
    assert [line.get_label() for line in axes.lines] == list(LINES)
    assert [text.get_text() for text in axes.texts] == [
        "no communication  2.400",
        "average  2.300",
        "weight-free  2.300",
    ]
    assert (axes.get_xlabel(), axes.get_title(loc="left")) == ("step", "the ladder")


def test_no_name_covers_another() -> None:
    figure = plots.curves(LINES)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_a_curve_that_went_astray_is_drawn_all_the_same() -> None:
    figure = plots.curves({"good": [(1, 2.0), (2, 1.0)], "bad": [(1, 2.0), (2, float("nan"))]})
    assert [text.get_text() for text in figure.axes[0].texts] == ["good  1.000", "bad  nan"]


def test_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="no curves to draw"):
        plots.curves({})
    with pytest.raises(InputError, match=r"empty cannot be drawn\n  expected: \[points, 2\]"):
        plots.curves({"empty": []})


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.floats(0.01, 0.7))
def test_places_are_apart_in_order_and_inside(wanted: list[float], gap: float) -> None:
    places = _spread(wanted, 0.0, 10.0, gap)
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(sorted(places)))
    assert min(places) >= -1e-9
    assert max(places) <= 10 + 1e-9
    for i, j in itertools.combinations(range(len(wanted)), 2):
        if wanted[i] != wanted[j]:
            assert (places[i] < places[j]) == (wanted[i] < wanted[j])


def test_a_place_with_room_is_the_one_that_was_wanted() -> None:
    assert _spread([1.0, 5.0, 9.0], 0.0, 10.0, 0.5) == [1.0, 5.0, 9.0]
