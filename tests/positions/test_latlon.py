from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.positions import LatLon

latitudes = st.floats(-90, 90)
longitudes = st.floats(-720, 720)


def codes(places: list[tuple[float, float]], width: int = 24, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return LatLon(width)(torch.zeros(len(places), width, dtype=dtype), at=torch.tensor(places, dtype=torch.float64))


def apart(a: tuple[float, float], b: tuple[float, float]) -> float:
    first, second = codes([a, b])
    return (first - second).norm().item()


def test_is_sines_and_cosines_of_the_point_on_the_sphere() -> None:
    latitude, longitude = math.radians(52.5), math.radians(13.4)
    point = (math.cos(latitude) * math.cos(longitude), math.cos(latitude) * math.sin(longitude), math.sin(latitude))
    fastest = (math.pi / 2) / math.radians(1.0)
    speeds = [1.0, fastest ** (1 / 3), fastest ** (2 / 3), fastest]
    expected = [wave(speed * p) for speed in speeds for wave in (math.sin, math.cos) for p in point]
    torch.testing.assert_close(
        codes([(52.5, 13.4)])[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(longitude=longitudes, other=longitudes, pole=st.sampled_from([90.0, -90.0]))
def test_at_a_pole_every_longitude_is_the_same_place_exactly(longitude: float, other: float, pole: float) -> None:
    here, there = codes([(pole, longitude), (pole, other)])
    assert here.equal(there)


@settings(max_examples=50, deadline=None)
@given(latitude=latitudes)
def test_both_sides_of_the_date_line_are_the_same_meridian_exactly(latitude: float) -> None:
    west, east, again = codes([(latitude, -180.0), (latitude, 180.0), (latitude, 540.0)])
    assert west.equal(east)
    assert west.equal(again)


@settings(max_examples=50, deadline=None)
@given(latitude=st.integers(-90, 90), longitude=st.integers(-720, 720), turns=st.integers(-3, 3))
def test_whole_turns_do_not_matter(latitude: int, longitude: int, turns: int) -> None:
    here, there = codes([(latitude, longitude), (latitude, longitude + 360 * turns)])
    assert here.equal(there)


def test_neighbours_across_the_date_line_are_as_near_as_any_others() -> None:
    across = apart((10.0, 179.9), (10.0, -179.9))
    assert across == pytest.approx(apart((10.0, -0.1), (10.0, 0.1)), rel=0.2)
    assert across < 0.1 * apart((10.0, 179.9), (10.0, 140.0))


def test_longitudes_converge_towards_the_poles() -> None:
    distances = [apart((latitude, 0.0), (latitude, 1.0)) for latitude in (0, 30, 60, 80, 89, 90)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] == 0
    assert distances[-2] < 0.05 * distances[0]


def test_every_place_of_a_grid_has_its_own_code() -> None:
    places = [(float(a), float(b)) for a in range(-85, 90, 5) for b in range(-180, 180, 5)]
    for width in (3, 8, 64):
        table = codes(places, width)
        assert torch.pdist(table).min() > 1e-4


@pytest.mark.parametrize("width", [3, 5, 6, 7, 64, 100])
def test_any_width_from_three(width: int) -> None:
    assert codes([(1.0, 2.0)], width).shape == (1, width)


def test_finest_sets_the_fastest_wave() -> None:
    at = torch.tensor([[0.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
    x = torch.zeros(2, 24, dtype=torch.float64)
    coarse, fine = (LatLon(24, finest=finest)(x, at=at).diff(dim=0).norm() for finest in (10.0, 0.1))
    assert fine > 5 * coarse


def test_places_of_every_row_of_the_batch() -> None:
    at = torch.tensor([[[0, 1], [2, 3]], [[-90, 0], [45, 200]]])
    x = torch.randn(2, 2, 24)
    got = LatLon(24)(x, at=at)
    for b in range(2):
        assert got[b].equal(LatLon(24)(x[b], at=at[b]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_of_the_input_stays(dtype: torch.dtype) -> None:
    got = codes([(52.5, 13.4), (-33.9, 151.2)], dtype=dtype)
    assert got.dtype == dtype
    assert got.equal(codes([(52.5, 13.4), (-33.9, 151.2)]).to(dtype))


def test_bad_inputs() -> None:
    scheme, x = LatLon(24), torch.zeros(2, 24)
    for at in (None, 3):
        with pytest.raises(
            InputError,
            match=rf"expected: a tensor \[\*batch, time, 2\] of \(latitude, longitude\) in degrees\n  got: at={at}",
        ):
            scheme(x, at=at)
    with pytest.raises(
        InputError, match=r"latitudes from -90 to 90 degrees\n  got: latitudes from 13.4 to 151.2\n  try: .*at.flip"
    ):
        scheme(x, at=torch.tensor([[13.4, 52.5], [151.2, -33.9]]))
    with pytest.raises(InputError, match="beyond the poles"):
        scheme(x, at=torch.tensor([[float("nan"), 0.0], [0.0, 0.0]]))
    with pytest.raises(InputError, match="a longitude is not a number"):
        scheme(x, at=torch.tensor([[0.0, float("inf")], [0.0, 0.0]]))
    with pytest.raises(InputError, match=r"at of shape \(2, 3\)"):
        scheme(x, at=torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"width is too small\n  expected: 3 or more"):
        LatLon(2)
