"""What is asked for together is computed together, once, and nothing else is."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from cases import inputs
from lens_cases import gap
from sightline.backends.call import make_call
from sightline.lens import plan
from sightline.lens.cpu import plan as cpu_plan
from sightline.lens.levels import Levels
from sightline.lens.rows import rows_only


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every walk, as the names of the accumulators it feeds."""
    seen: list[list[str]] = []
    walk = plan.walk

    def counted(levels: object, accumulators: list, *args: object, **options: object) -> None:
        seen.append(sorted(type(a).__name__ for a in accumulators))
        walk(levels, accumulators, *args, **options)

    monkeypatch.setattr(plan, "walk", counted)
    return seen


@pytest.fixture
def sight() -> sl.Sight:
    q, k, _ = inputs(1, queries=50, keys=70, dtype=torch.float32)
    return sl.look(q, k, mask=sl.causal())


def test_together_is_one_walk(sight: sl.Sight, walks: list) -> None:
    sight.prepare("entropy", "received", sl.Top(8), sl.Picture(64, 64))
    assert walks == [["Pixels", "Received", "RowSums", "Strongest"]]
    _ = sight.entropy, sight.received(), sight.top(8), sight.picture(size=(64, 64))
    sight.prepare("entropy", "received", "top", sl.Picture(64, 64))
    assert len(walks) == 1


def test_observe_takes_one_walk(walks: list) -> None:
    q, k, v = inputs(1)
    sight = sl.observe(q, k, v, stats=("entropy", "distance", "max_score", "received", "top", "picture"))[1]
    assert len(walks) == 1
    _ = sight.entropy, sight.distance, sight.max_score, sight.received(), sight.top(), sight.picture(), sight.lse
    assert len(walks) == 1


def test_nothing_asked_for_is_no_walk(walks: list) -> None:
    q, k, v = inputs(1)
    sight = sl.observe(q, k, v)[1]
    _ = sight.lse, sight.sink_share, sight.shape
    sight.prepare()
    sight.prepare("lse")
    sight.tile(slice(0, 2), slice(0, 2))
    assert walks == []


def test_the_sum_of_a_softmax_row_is_measured(sight: sl.Sight, walks: list) -> None:
    sight.prepare("total")
    sight.prepare("total")
    assert walks == [["RowSums"]]
    assert torch.allclose(sight.total, torch.ones(1, 2, 50), atol=1e-6)


@pytest.mark.parametrize("name", ["entropy", "distance", "max_score"])
def test_only_what_is_asked_for_is_summed(name: str, sight: sl.Sight, walks: list) -> None:
    getattr(sight, name)
    assert walks == [["RowSums"]]
    assert set(sight.kept) == {name}
    getattr(sight, name)
    assert len(walks) == 1


def test_each_first_question_is_one_walk(sight: sl.Sight, walks: list) -> None:
    sight.received()
    sight.top(3)
    sight.picture(size=(5, 5))
    sight.top(3)
    sight.top(4)
    assert walks == [["Received"], ["Strongest"], ["Pixels"], ["Strongest"]]


def test_asked_twice_in_one_go_is_computed_once(sight: sl.Sight, walks: list) -> None:
    sight.prepare("entropy", "entropy", "top", sl.Top(8), sl.Picture(5), sl.Picture(5, 5))
    assert walks == [["Pixels", "RowSums", "Strongest"]]


def test_mean_and_sum_share_their_pixels(sight: sl.Sight, walks: list) -> None:
    sight.prepare(sl.Picture(5, 7), sl.Picture(5, 7, reduce="sum"), sl.Picture(5, 7, reduce="max"))
    assert walks == [["Pixels", "Pixels"]]
    assert gap(sight.picture(size=(5, 7)) * 100, sight.picture(size=(5, 7), reduce="sum")) <= 1e-6
    assert len(walks) == 1


@pytest.mark.parametrize(
    "rows, columns",
    [
        (slice(0, 50), slice(0, 70)),
        (slice(None), slice(0, None)),
        (slice(3, 20), slice(10, None)),
        (slice(-9, None), slice(0, -1)),
        (slice(0, -1), slice(-70, None)),
    ],
)
def test_a_picture_prepared_is_the_picture_asked_for(rows: slice, columns: slice, sight: sl.Sight, walks: list) -> None:
    """However its rectangle is written."""
    sight.prepare(sl.Picture(6, 8, rows=rows, columns=columns))
    assert len(walks) == 1
    found = sight.picture(rows, columns, size=(6, 8))
    assert len(walks) == 1
    fresh = sl.look(sight.call.q, sight.call.k, mask=sl.causal()).picture(rows, columns, size=(6, 8))
    assert gap(found, fresh) <= 1e-6


def test_a_picture_of_a_part_shows_that_part() -> None:
    q, k, _ = inputs(heads=1, queries=6, keys=6)
    plain = sl.look(q, k)
    sight = sl.look(q, k, stats=sl.Picture(5, 4, rows=slice(0, -1), columns=slice(0, 4)))
    (found,) = sight.kept.values()
    assert gap(found, plain.tile(slice(0, 5), slice(0, 4))) <= 1e-12


def test_a_picture_of_a_part_walks_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_plan, "can", lambda call: False)  # it has a test of its own
    q, k, _ = inputs(1, queries=2048, keys=2048, dtype=torch.float32)
    sight = sl.look(q, k, mask=sl.causal())
    tiles = []
    add = plan.Pixels.add
    monkeypatch.setattr(plan.Pixels, "add", lambda self, tile: (tiles.append(tile), add(self, tile))[1])
    sight.picture(slice(1000, 1100), slice(200, 300), size=(10, 10))
    assert 100 * 100 <= sum(t.weights.shape[-2] * t.weights.shape[-1] for t in tiles) <= 2 * 100 * 100
    before = len(tiles)
    sight.picture(slice(100, 200), slice(1000, 1100), size=(10, 10))  # above the diagonal: all of it is hidden
    assert len(tiles) == before


def test_several_pictures_of_parts_share_a_walk(sight: sl.Sight, walks: list) -> None:
    parts = [(slice(0, 9), slice(50, 70)), (slice(30, 50), slice(1, 8)), (slice(20, 21), slice(0, 70))]
    sight.prepare(
        *(sl.Picture(5, 5, rows=a, columns=b) for a, b in parts),
        *(sl.Picture(cell=(4, 3), rows=a, columns=b) for a, b in parts),
    )
    assert len(walks) == 1
    for a, b in parts:
        alone = sl.look(sight.call.q, sight.call.k, mask=sl.causal())
        assert gap(sight.picture(a, b, size=(5, 5)), alone.picture(a, b, size=(5, 5))) <= 1e-6
        assert gap(sight.picture(a, b, cell=(4, 3)), alone.picture(a, b, cell=(4, 3))) <= 1e-6


def test_weights_are_not_kept(sight: sl.Sight, walks: list) -> None:
    first = sight.received(torch.ones(1, 2, 50))
    second = sight.received(torch.full((1, 2, 50), 2.0))
    assert torch.equal(2 * first, second)
    assert len(walks) == 2
    assert sight.kept == {}


def test_statistics_in_any_company_are_the_same(sight: sl.Sight) -> None:
    q, k = sight.call.q, sight.call.k
    together = sl.look(q, k, mask=sl.causal(), stats=("entropy", "distance", "max_score", "received", "top"))
    for name in ("entropy", "distance", "max_score"):
        assert torch.equal(getattr(sight, name), getattr(together, name))
    assert torch.equal(sight.received(), together.received())
    assert torch.equal(sight.top().keys, together.top().keys)


@pytest.mark.parametrize("keys", [40, 300])
def test_a_default_device_is_not_where_anything_goes(keys):
    """`torch.set_default_device` is a mode: every tensor that is made without a device would lie there."""
    q, k = torch.randn(1, 2, 40, 16), torch.randn(1, 1, keys, 16)
    wanted = ["entropy", "received", sl.Picture(5, 4), sl.Picture(5, 4, reduce="max"), sl.Top(3)]
    for options in ({"mask": sl.window(9)}, {"mask": torch.rand(40, keys) > 0.5}, {"sinks": torch.zeros(2)}):
        found = []
        for device in ("cpu", "meta"):
            with torch.device(device):
                call = make_call(q, k, k, **options)
                found.append(plan.compute(Levels(call, rows_only(call)), list(wanted)))
        for name in wanted:
            torch.testing.assert_close(found[1][name], found[0][name])
