"""The walk shows every tile of its rectangle once, and skips the ones a mask leaves empty."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Case, cases, inputs
from lens_cases import gap, lift, limit, whole_map
from sightline.backends.call import Call, make_call
from sightline.lens.levels import Levels
from sightline.lens.rows import rows_only
from sightline.lens.tiles import walk
from sightline.lens.tiles.accumulators import Accumulator, Seen


class Recorder(Accumulator):
    """Remembers every tile."""

    def __init__(self) -> None:
        self.tiles: list[Seen] = []

    def add(self, tile: Seen) -> None:
        self.tiles.append(tile)


def record(call: Call, *args: slice | None, **options: tuple[int, int]) -> list[Seen]:
    recorder = Recorder()
    walk.walk(Levels(call, rows_only(call)), [recorder], *args, **options)
    return recorder.tiles


def make(queries: int, keys: int, heads: int = 1, **options: object) -> Call:
    q, k, v = inputs(1, heads=heads, queries=queries, keys=keys, dtype=torch.float32)
    return make_call(q, k, v, **options)


@settings(max_examples=40)
@given(
    cases((torch.float64, torch.float32), rarely=(300, 700)), st.sampled_from(((1, 1), (3, 7), (100, 30), (5000, 2)))
)
def test_tiles_are_the_map_and_what_is_skipped_is_zero(case: Case, align: tuple[int, int]) -> None:
    call, m = make_call(case.q, case.k, case.v, **case.options), whole_map(case)
    found = torch.zeros_like(m.weights)
    count = torch.zeros(m.weights.shape[-2:], dtype=torch.int64)
    for tile in record(call, align=align):
        found[..., tile.rows, tile.columns] += tile.weights
        count[tile.rows, tile.columns] += 1
        if tile.visible is not None:
            shown = m.visible[..., tile.rows, tile.columns]
            assert torch.equal(tile.visible.expand(shown.shape), shown)
    assert gap(found, m.weights) <= limit(case.q.dtype, m.magnitude)
    assert bool((count <= 1).all())
    if case.table is None:
        assert bool((count == 1).all())


def test_tiles_come_band_by_band_and_left_to_right() -> None:
    tiles = record(make(700, 1300))
    corners = [(tile.rows.start, tile.columns.start) for tile in tiles]
    assert len(corners) > 4
    assert corners == sorted(corners)


@pytest.mark.parametrize(
    "mask",
    [
        sl.window(64),
        sl.window(10, 20),
        sl.documents(torch.arange(2048) // 300),
        sl.causal(),
        sl.causal() & sl.padding([700]),
    ],
    ids=str,
)
def test_empty_tiles_are_skipped(mask: sl.Mask) -> None:
    call = make(2048, 2048, mask=mask)
    visible = mask.to_dense(2048, 2048).expand(1, 1, 2048, 2048)[0, 0]
    tiles = record(call)
    everything = len(record(make(2048, 2048)))
    for tile in tiles:
        assert bool(visible[tile.rows, tile.columns].any()), f"{tile.rows} x {tile.columns} is empty"
    assert len(tiles) < 0.8 * everything
    assert sum(int(visible[t.rows, t.columns].sum()) for t in tiles) == int(visible.sum())


def test_empty_tiles_of_unequal_lengths_are_skipped() -> None:
    few, many = record(make(2048, 300, mask=sl.causal())), record(make(300, 2048, mask=sl.window(20)))
    assert min(tile.rows.stop for tile in few) > 2048 - 300
    assert min(tile.columns.stop for tile in many) > 2048 - 300 - 20


def test_full_tiles_are_not_looked_at_cell_by_cell() -> None:
    tiles = record(make(2048, 2048, mask=sl.causal()))
    below = [tile for tile in tiles if tile.columns.stop <= tile.rows.start]
    assert below
    assert all(tile.visible is None for tile in below)


def test_a_rectangle_costs_only_that_rectangle() -> None:
    call = make(2048, 2048)
    tiles = record(call, slice(1000, 1100), slice(3, 700))
    assert min(t.rows.start for t in tiles) == 1000
    assert max(t.rows.stop for t in tiles) == 1100
    assert min(t.columns.start for t in tiles) == 3
    assert max(t.columns.stop for t in tiles) == 700
    assert sum(t.weights.shape[-2] * t.weights.shape[-1] for t in tiles) == 100 * 697


def test_many_heads_make_small_tiles() -> None:
    for heads in (1, 64, 512):
        tiles = record(make(300, 300, heads=heads))
        assert max(tile.weights.numel() for tile in tiles) <= max(1 << 19, heads * 64 * 64)


def test_a_row_that_sees_nothing_is_zero_and_never_nan() -> None:
    table = torch.ones(4, 4, dtype=torch.bool)
    table[1] = False
    for tile in record(make(4, 4, mask=table)):
        assert tile.weights[..., 1, :].eq(0).all()
        assert tile.weights.isfinite().all()


def test_nothing_to_walk_over() -> None:
    assert record(make(0, 5)) == []
    assert record(make(5, 0)) == []


def test_tile_of_a_sight_is_the_walks() -> None:
    q, k, _ = inputs(heads=2, queries=40, keys=50)
    case = Case(q, k, k, {})
    assert gap(lift(sl.look(q, k).tile(slice(None), slice(None)), case), whole_map(case).weights) <= 1e-12
