"""Tiles at every level are the exact map: cell by cell at the ground, by sums and maxima above it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.explore import overview as overviews
from sightline.explore import pyramid as pyramids
from sightline.explore.overview import Overview, overview_level, pictures, stored
from sightline.explore.pyramid import TILE, Pyramid, top_level
from sightline.lens.requests import Picture


def tile(pyramid: Pyramid, levels: tuple[int, int], y: int, x: int, pool: str) -> np.ndarray:
    pyramid.check(levels, y, x, pool)
    plan = pyramid.plan(levels, y, x, pool)
    for step in plan.steps:
        step()
    return plan.finish()


def whole(pyramid: Pyramid, levels: tuple[int, int], pool: str) -> np.ndarray:
    """All tiles of a level, put together and cut to the map."""
    bins = [-(-n // (1 << level)) for n, level in zip((pyramid.queries, pyramid.keys), levels, strict=True)]
    rows = [
        np.concatenate([tile(pyramid, levels, y, x, pool) for x in range(-(-bins[1] // TILE))], 1)
        for y in range(-(-bins[0] // TILE))
    ]
    put = np.concatenate(rows)
    assert np.isnan(put[bins[0] :]).all()
    assert np.isnan(put[:, bins[1] :]).all()
    return put[: bins[0], : bins[1]]


def expected(weights: np.ndarray, visible: np.ndarray, levels: tuple[int, int], pool: str) -> np.ndarray:
    """The same level from the full map, in float64."""
    starts = [np.arange(0, n, 1 << level) for n, level in zip(weights.shape, levels, strict=True)]

    def bins(x: np.ndarray, add: np.ufunc) -> np.ndarray:
        return add.reduceat(add.reduceat(x, starts[0], 0), starts[1], 1)

    count = bins(visible.astype(np.float64), np.add)
    if pool == "max":
        found = bins(np.where(visible, weights, 0), np.maximum)
    else:
        found = bins(weights, np.add) / (np.maximum(count, 1) if pool == "mean" else 1)
    return np.where(count == 0, np.nan, found)


CASES = {
    "causal": (600, 600, {"mask": sl.causal()}),
    "full": (300, 300, {}),
    "window": (700, 700, {"mask": sl.window(40)}),
    "cross": (20, 900, {}),
    "more queries": (530, 260, {"mask": sl.causal()}),
    "padding": (300, 300, {"mask": sl.padding(torch.tensor([270]))}),
    "relu": (300, 300, {"mask": sl.causal(), "normalizer": "relu"}),
    "alibi": (520, 520, {"mask": sl.causal(), "bias": sl.alibi(2)}),
    "holes": (400, 400, {"mask": sl.causal() & ~sl.window(2)}),
    "softcap": (300, 300, {"softcap": 2.0}),
}


def case(name: str) -> tuple[sl.Sight, np.ndarray, np.ndarray]:
    queries, keys, options = CASES[name]
    batch = (1,) if name == "padding" else ()
    q, k = torch.randn(*batch, 2, queries, 16), torch.randn(*batch, 2, keys, 16)
    sight = sl.look(q, k, **options).select(0, [1])
    mask = sight.call.mask
    visible = torch.ones(queries, keys, dtype=torch.bool) if mask is None else mask.to_dense(queries, keys)
    exact = sl.look(q.double(), k.double(), **options).select(0, [1])
    return sight, exact.tile(slice(None), slice(None))[0].numpy(), visible.expand(1, queries, keys)[0].numpy()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pool", ["mean", "max", "sum"])
def test_tiles_of_every_level_are_the_map(name: str, pool: str) -> None:
    sight, weights, visible = case(name)
    pyramid = Pyramid(sight)
    for level in range(top_level(max(weights.shape)) + 1):
        for levels in {(level, level), (0, level)}:
            found = whole(pyramid, levels, pool)
            wanted = expected(weights, visible, levels, pool)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["causal", "cross", "padding", "relu"])
def test_tiles_from_an_overview_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits, so that a small map needs what a large one needs: patches, in any order."""
    for module, constant, value in (
        (pyramids, "DIRECT", 1 << 10),
        (overviews, "PATCH", 64),
        (pyramids, "PATCH", 64),
        (pyramids, "FINE", 128),
    ):
        monkeypatch.setattr(module, constant, value)
    sight, weights, visible = case(name)
    pyramid = Pyramid(sight)
    assert pyramid.fine is not None
    steps = list(pyramid.background())
    np.random.default_rng(0).shuffle(steps)
    for step in [*steps, *steps[:5]]:  # a step done twice changes nothing
        step()
    assert pyramid.fine.complete
    for level in range(overview_level(max(weights.shape), 128), top_level(max(weights.shape)) + 1):
        for pool in ("mean", "max", "sum"):
            found = whole(pyramid, (level, level), pool)
            np.testing.assert_allclose(found, expected(weights, visible, (level, level), pool), rtol=1e-5, atol=1e-7)
    tracks = pyramid.fine.tracks(sight)
    assert tracks is not None
    np.testing.assert_allclose(tracks[0], sight.entropy[0].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tracks[1], sight.received()[0].numpy(), rtol=1e-5, atol=1e-6)


def test_a_waiting_tile_fills_only_its_own_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, constant, value in ((pyramids, "DIRECT", 1 << 10), (pyramids, "FINE", 512)):
        monkeypatch.setattr(module, constant, value)
    for module in (pyramids, overviews):
        monkeypatch.setattr(module, "PATCH", 256)
    sight, weights, visible = case("causal")
    pyramid = Pyramid(sight)
    assert pyramid.fine is not None
    plan = pyramid.plan((1, 1), 0, 0, "mean")
    assert not plan.is_estimate
    for step in plan.steps:
        step()
    assert pyramid.fine.done[:2, :2].all()
    assert not pyramid.fine.done[2].any()
    found = plan.finish()
    np.testing.assert_allclose(found, expected(weights, visible, (1, 1), "mean")[:256, :256], rtol=1e-5, atol=1e-7)
    assert pyramid.fine.tracks(sight) is None, "not before all of the map has been seen"


@pytest.mark.parametrize("pool", ["mean", "max", "sum"])
@pytest.mark.parametrize("name", ["causal", "full", "relu", "padding", "alibi", "holes", "softcap", "cross"])
def test_an_estimate_says_so_and_is_near(name: str, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, constant, value in (
        (pyramids, "DIRECT", 1 << 10),
        (pyramids, "PATIENCE", 0),
        (pyramids, "FINE", 8),
        (overviews, "PATCH", 128),
    ):
        monkeypatch.setattr(module, constant, value)
    sight, weights, visible = case(name)
    plan = Pyramid(sight).plan((3 if name == "cross" else 7, 7), 0, 0, pool)
    assert plan.is_estimate
    for step in plan.steps:
        step()
    found, wanted = plan.finish(), expected(weights, visible, (3 if name == "cross" else 7, 7), pool)
    found = found[: wanted.shape[0], : wanted.shape[1]]
    assert (np.isnan(found) == np.isnan(wanted)).all()
    if pool == "max":
        assert (found[visible_bins(wanted)] <= wanted[visible_bins(wanted)] + 1e-7).all()
    else:
        # The diagonal of a causal map is steep inside a bin; elsewhere random rows are much alike.
        inside = visible_bins(wanted) & (np.tril(np.ones(wanted.shape), -1) > 0)
        np.testing.assert_allclose(found[inside], wanted[inside], rtol=0.9 if name == "alibi" else 0.5)


def test_an_estimate_that_sees_all_rows_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, constant, value in ((pyramids, "DIRECT", 1), (pyramids, "PATIENCE", 0), (pyramids, "FINE", 8)):
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(overviews, "PATCH", 128)
    sight, weights, visible = case("cross")
    for pool in ("mean", "max", "sum"):
        plan = Pyramid(sight).plan((2, 7), 0, 0, pool)
        assert plan.is_estimate
        for step in plan.steps:
            step()
        wanted = expected(weights, visible, (2, 7), pool)
        np.testing.assert_allclose(plan.finish()[: len(wanted), : wanted.shape[1]], wanted, rtol=1e-5)


def visible_bins(x: np.ndarray) -> np.ndarray:
    return ~np.isnan(x)


def test_a_stored_overview_is_used_and_exact(tmp_path) -> None:
    q, k = torch.randn(2, 600, 16), torch.randn(2, 600, 16)
    cells = {"cell": (8, 8)}
    sight = sl.look(q, k, mask=sl.causal(), stats=(Picture(**cells, reduce="sum"), Picture(**cells, reduce="max")))
    sight.save(tmp_path / "without.safetensors", keep_qk=False)
    pyramid = Pyramid(sl.Sight.load(tmp_path / "without.safetensors").select(0, [1]))
    assert not pyramid.exact
    assert pyramid.stored is not None
    exact = sl.look(q.double(), k.double(), mask=sl.causal()).select(0, [1]).tile(slice(None), slice(None))[0].numpy()
    visible = sl.causal().to_dense(600, 600).numpy()
    for levels in ((3, 3), (4, 3), (5, 5)):
        for pool in ("mean", "max", "sum"):
            found = whole(pyramid, levels, pool)
            np.testing.assert_allclose(found, expected(exact, visible, levels, pool), rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match="keep_qk=True"):
        pyramid.check((2, 3), 0, 0, "mean")


def test_hidden_tiles_are_known_without_looking() -> None:
    pyramid = Pyramid(case("causal")[0])
    assert pyramid.is_hidden((0, 0), 0, 1)
    assert not pyramid.is_hidden((0, 0), 1, 0)
    assert not pyramid.is_hidden((1, 1), 0, 0)
    assert not Pyramid(case("full")[0]).is_hidden((0, 0), 0, 1)


@pytest.mark.parametrize(
    "levels, y, x, pool, text",
    [
        ((0, 0), 3, 0, "mean", "y below 3 and x below 3"),
        ((0, 0), 0, -1, "mean", "no such tile"),
        ((-1, 0), 0, 0, "mean", "no such tile"),
        ((99, 0), 0, 0, "mean", "no such tile"),
        ((0, 0), 0, 0, "median", "unknown pooling"),
    ],
)
def test_tiles_that_do_not_exist_are_refused(levels: tuple[int, int], y: int, x: int, pool: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        Pyramid(case("causal")[0]).check(levels, y, x, pool)


def test_a_tile_of_too_many_cells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramids, "LARGEST", 1 << 12)
    with pytest.raises(InputError, match="too many cells"):
        Pyramid(case("causal")[0]).check((0, 0), 1, 0, "mean")


def test_what_a_run_should_keep_is_bounded() -> None:
    for queries, keys, maps in (
        (20, 20, 72),
        (2048, 2048, 270),
        (65536, 65536, 16),
        (8192, 8192, 4096),
        (20, 10**6, 9),
    ):
        both = pictures(queries, keys, maps)
        cell = both[0].cell
        assert cell is not None
        pixels = -(-queries // cell[0]) * -(-keys // cell[1])
        assert pixels * maps * 8 <= 256 << 20
        assert all(n & (n - 1) == 0 for n in cell)
    sight = sl.look(torch.randn(2, 300, 8), torch.randn(2, 300, 8), stats=tuple(pictures(300, 300, 2)))
    kept = stored(sight.select(0, [0]))
    assert kept is not None
    assert kept.complete


def test_patches_are_filled_evenly() -> None:
    overview = Overview(8192, 8192, (3, 3))
    first = [i for i, _ in list(overview.all_missing())[:8]]
    assert set(first) == {0, 2}, "rows far apart come first"
