"""Which cells a pixel covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from lens_cases import stretches
from sightline.errors import InputError, InputTypeError
from sightline.lens import geometry


def covered(axis: geometry.Axis) -> list[tuple[int, int]]:
    """The cells of every pixel that an axis shows."""
    bins = list(zip(axis.edges.tolist(), axis.edges.tolist()[1:], strict=False))
    return bins if axis.shown is None else [bins[i] for i in axis.shown.tolist()]


@given(st.integers(0, 50), st.integers(1, 3000), st.integers(1, 700))
def test_pixels_of_a_size(start: int, length: int, size: int) -> None:
    axis = geometry.axis(slice(start, start + length), size, None)
    assert covered(axis) == stretches(start, start + length, size, None)
    assert (axis.start, axis.stop) == (start, start + length)


@given(st.integers(0, 50), st.integers(1, 3000), st.integers(1, 700))
def test_pixels_of_a_cell(start: int, length: int, cell: int) -> None:
    axis = geometry.axis(slice(start, start + length), None, cell)
    pixels = covered(axis)
    assert pixels == stretches(start, start + length, None, cell)
    assert all(b - a == cell for a, b in pixels[:-1])
    assert 1 <= pixels[-1][1] - pixels[-1][0] <= cell


@given(st.integers(0, 50), st.integers(1, 300), st.integers(1, 80))
def test_regular_means_that_all_pixels_are_of_one_size(start: int, length: int, size: int) -> None:
    for axis in (
        geometry.axis(slice(start, start + length), size, None),
        geometry.axis(slice(start, start + length), None, size),
    ):
        if axis.regular:
            bins = [b - a for a, b in zip(axis.edges.tolist(), axis.edges.tolist()[1:], strict=False)]
            assert set(bins[:-1]) <= {axis.regular}
            assert bins[-1] <= axis.regular


def test_a_very_long_axis() -> None:
    axis = geometry.axis(slice(0, 1 << 40), 1 << 12, None)
    assert axis.edges[1] == 1 << 28
    assert axis.stop == 1 << 40


@given(st.integers(0, 20), st.none() | st.integers(-25, 25), st.none() | st.integers(-25, 25))
def test_slices_mean_what_they_mean_in_python_or_are_refused(length: int, start: int | None, stop: int | None) -> None:
    whole = range(length)
    part = slice(start, stop)
    inside = (start is None or -length <= start <= length) and (stop is None or -length <= stop <= length)
    a, b, _ = part.indices(length)
    if inside and a <= b:
        assert list(whole[geometry.resolve("rows", part, length)]) == list(whole[part])
    else:
        with pytest.raises(InputError, match="the rows are not a part of the map"):
            geometry.resolve("rows", part, length)


def test_a_number_is_one_row() -> None:
    assert geometry.resolve("rows", 3, 5) == slice(3, 4)
    assert geometry.resolve("rows", -1, 5) == slice(4, 5)
    assert geometry.resolve("rows", None, 5) == slice(0, 5)
    for number in (5, -6):
        with pytest.raises(InputError, match="a slice inside 0:5"):
            geometry.resolve("rows", number, 5)


def test_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="the columns are not a part of the map") as caught:
        geometry.resolve("columns", slice(0, 4, 2), 5)
    assert "got: slice(0, 4, 2)" in str(caught.value)
    assert "try: columns=slice(0, 5)" in str(caught.value)


@pytest.mark.parametrize("span", [(0, 3), "0:3", 2.0, slice(0.0, 3.0)])
def test_what_is_no_slice_is_refused(span: object) -> None:
    with pytest.raises(InputTypeError, match="rows"):
        geometry.resolve("rows", span, 5)


def test_a_picture_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="a picture of no rows"):
        geometry.axes(sl.Picture(4, rows=slice(2, 2)), 5, 5)
    with pytest.raises(InputError, match="a picture of no columns"):
        geometry.axes(sl.Picture(4), 5, 0)
