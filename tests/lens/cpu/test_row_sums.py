"""Sums over rows do not depend on how the columns are cut, wherever the rows stand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import SEEDS, generator
from lens_cases import gap
from sightline.lens.cpu.row_sums import BandSums, RowSums, Scales, Tile

ALL = {"largest", "entropy", "total", "distance"}


def swept(
    sums: RowSums, logs: torch.Tensor, places: torch.Tensor, left: int, cuts: list[int]
) -> dict[str, torch.Tensor]:
    band = BandSums(sums, places.numpy(), int(places.min()), int(places.max()))
    band.begin()
    for a, b in pairwise(cuts):
        part = logs[:, a:b].clone(memory_format=torch.contiguous_format)
        weights = part.exp2()
        for step in band.steps(Tile(part, weights), left + a, left + b):
            step()
    found = {name: places.new_empty(len(places)) for name in sums.wanted}
    for name, line in found.items():
        band.result(name, line.numpy())
    return found


def exact(logs: torch.Tensor, places: torch.Tensor, left: int) -> dict[str, torch.Tensor]:
    weights = logs.exp2()
    gaps = (places[:, None] - torch.arange(left, left + logs.shape[1])).abs()
    return {
        "largest": logs.amax(-1),
        "entropy": (weights * logs).sum(-1),
        "total": weights.sum(-1),
        "distance": (weights * gaps).sum(-1),
    }


@settings(max_examples=100)
@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 30), st.integers(-20, 60), SEEDS, st.data())
def test_they_do_not_depend_on_the_cuts(
    rows: int, columns: int, left: int, first: int, seed: int, data: st.DataObject
) -> None:
    """Rows before, across and after the columns, in any order; the memory is used for two bands."""
    random = generator(seed)
    sums = RowSums(ALL, 20, 30, Scales.of(200, torch.float64))
    for height in (rows, max(1, rows - 3)):
        logs = -5 * torch.rand(height, columns, generator=random, dtype=torch.float64)
        places = torch.randperm(height, generator=random).double() + first
        cuts = sorted({0, columns, *data.draw(st.lists(st.integers(1, columns), max_size=4))})
        found, truth = swept(sums, logs, places, left, cuts), exact(logs, places, left)
        assert set(found) == ALL
        for name in ALL:
            assert gap(found[name], truth[name]) <= 1e-13, name


@pytest.mark.parametrize("name", sorted(ALL))
def test_only_what_is_wanted(name: str) -> None:
    logs, places = -torch.rand(5, 9, generator=generator(0), dtype=torch.float64), torch.arange(5).double()
    sums = RowSums({name}, 5, 3, Scales.of(20, torch.float64))
    found = swept(sums, logs, places, 0, [0, 4, 9])
    assert set(found) == {name}
    assert gap(found[name], exact(logs, places, 0)[name]) <= 1e-14


def test_nearby_keys_of_a_far_row_keep_their_distance() -> None:
    """In float32, a million rows out, with nearly all weight on the row itself: nothing cancels."""
    first, rows = 1_000_000, 64
    places = torch.arange(first, first + rows, dtype=torch.float32)
    logs = torch.full((rows, 256), -20.0)
    logs[torch.arange(rows), torch.arange(rows) + 128] = 0.0
    sums = RowSums({"distance"}, rows, 4, Scales.of(2_000_001, torch.float32))
    found = swept(sums, logs, places, first - 128, [0, 64, 160, 256])["distance"]
    assert gap(found, exact(logs.double(), places.double(), first - 128)["distance"]) <= 1e-6
