"""Places of the earth: each number where it belongs, the date line no border, the far side of a globe hidden."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sightline import plots
from sightline.errors import InputError
from sightline.plots.places import _seen_from

GRID = torch.cartesian_prod(torch.arange(-75.0, 76.0, 30.0), torch.arange(0.0, 360.0, 30.0))  # 6 x 12


def cells(figure: object) -> tuple[np.ndarray, np.ndarray]:
    mesh = figure.axes[0].collections[0]
    return np.asarray(mesh.get_array()), np.asarray(mesh.get_coordinates())


def test_a_grid_is_drawn_as_its_cells() -> None:
    values = torch.arange(72.0)
    table, corners = cells(plots.on_map(values, GRID))
    for value, (latitude, longitude) in zip(values.tolist(), GRID.tolist()):
        east = (longitude + 180) % 360 - 180
        inside = np.argwhere(
            (corners[:-1, :-1, 0] <= east)
            & (corners[1:, 1:, 0] > east)
            & (corners[:-1, :-1, 1] <= latitude)
            & (corners[1:, 1:, 1] > latitude)
        )
        assert len(inside) == 1
        assert table[tuple(inside[0])] == value


def test_the_order_of_the_places_does_not_matter() -> None:
    values, order = torch.rand(72), torch.randperm(72)
    one, two = cells(plots.on_map(values, GRID)), cells(plots.on_map(values[order], GRID[order]))
    np.testing.assert_array_equal(one[0], two[0])


def test_the_cells_reach_around_the_earth() -> None:
    table, corners = cells(plots.on_map(torch.rand(72), GRID))
    assert corners[..., 0].min() <= -180
    assert corners[..., 0].max() >= 180
    np.testing.assert_array_equal(table[:, 0], table[:, -1])
    assert abs(corners[..., 1]).max() <= 90


def test_stations_are_drawn_as_points() -> None:
    stations = torch.tensor([[52.5, 13.4], [-33.9, 151.2], [40.7, 286.0]])
    figure = plots.on_map([0.2, 0.3, 0.5], stations, query=(52.5, 13.4))
    points = figure.axes[0].collections[0]
    np.testing.assert_allclose(points.get_offsets(), [[13.4, 52.5], [151.2, -33.9], [-74.0, 40.7]], atol=1e-4)
    assert points.get_array().tolist() == [0.2, 0.3, 0.5]
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[13.400000000000006, 52.5]]


def test_places_that_are_twice_there_are_no_grid() -> None:
    twice = torch.tensor([[0.0, 0.0], [0.0, 0.0], [10.0, 0.0], [10.0, 10.0]])
    assert len(plots.on_map(torch.rand(4), twice).axes[0].collections[0].get_offsets()) == 4


def test_a_panel_for_each_head() -> None:
    figure = plots.on_map(torch.rand(3, 72), GRID)
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["head 0", "head 1", "head 2"]


def test_a_field_may_be_below_zero() -> None:
    field = torch.linspace(-5, 5, 72)
    mesh = plots.on_map(field, GRID, lowest=None, label="kelvin").axes[0].collections[0]
    assert mesh.get_clim() == (-5.0, 5.0)


def test_a_globe_shows_the_near_half_where_one_would_see_it() -> None:
    eye = (40.0, 20.0)
    figure = plots.on_globe(torch.arange(72.0), GRID, query=eye)
    points = figure.axes[0].collections[0]
    # By the law of cosines on the sphere, a place can be seen if it is less than a quarter turn away.
    near = [
        i
        for i, (latitude, longitude) in enumerate(GRID.tolist())
        if math.sin(math.radians(40)) * math.sin(math.radians(latitude))
        + math.cos(math.radians(40)) * math.cos(math.radians(latitude)) * math.cos(math.radians(longitude - 20))
        > 0
    ]
    assert points.get_array().tolist() == near
    assert abs(np.asarray(points.get_offsets())).max() <= 1


def test_the_eye_sees_its_place_in_the_middle_north_up_and_east_right() -> None:
    x, y, depth = _seen_from(np.array([[40.0, 20.0], [41.0, 20.0], [40.0, 21.0], [-40.0, 200.0]]), (40.0, 20.0))
    np.testing.assert_allclose([x[0], y[0], depth[0]], [0, 0, 1], atol=1e-12)
    assert abs(x[1]) < 1e-12
    assert y[1] > 0
    assert x[2] > 0
    np.testing.assert_allclose(depth[3], -1)


@pytest.mark.parametrize("draw", [plots.on_map, plots.on_globe])
@pytest.mark.parametrize(
    "values, places, words",
    [
        (torch.rand(3), torch.rand(2, 2), r"expected: \[3, 2\]"),
        (torch.rand(2), torch.tensor([[91.0, 0.0], [0.0, 0.0]]), "latitudes from -90 to 90"),
        (torch.rand(2), torch.tensor([[0.0, float("nan")], [0.0, 0.0]]), "finite longitudes"),
        (torch.rand(0), torch.rand(0, 2), "values cannot be drawn"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: object, values: object, places: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        draw(values, places)
