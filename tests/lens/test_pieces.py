"""Pieces of a map, put together in any order, are the map."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.errors import InputError
from sightline.lens.pieces import Tracks, piece_of, rows_at, visible_in

EVERYTHING = slice(None), slice(None)
LEFT = torch.tensor([[False] * 4 + [True] * 27, [True] * 31])  # padded at the left
OPTIONS = {
    "plain": {},
    "left padding": {"mask": sl.causal() & sl.padding(LEFT)},
    "sinks": {"mask": sl.causal(), "sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])},
    "relu": {"normalizer": "relu", "mask": sl.window(9)},
    "softcap": {"softcap": 2.0, "scale": 0.7},
}


def sight_of(**options: object) -> sl.Sight:
    torch.manual_seed(3)
    return sl.look(torch.randn(2, 4, 23, 8), torch.randn(2, 2, 31, 8), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_pieces_in_any_order_are_the_map(options: dict) -> None:
    sight, stats = sight_of(**options), ("entropy", "max_score")
    tracks, sums = Tracks(sight, stats), torch.zeros(2, 4, 6, 5)
    maxima = torch.zeros_like(sums)
    places = [(i, j) for i in range(3) for j in range(3)]
    random.Random(0).shuffle(places)
    for i, j in places:
        rows, columns = slice(8 * i, min(8 * i + 8, 23)), slice(14 * j, min(14 * j + 14, 31))
        piece = piece_of(sight, rows, columns, (4, 7), stats)
        here = (..., slice(2 * i, 2 * i + 2), slice(2 * j, 2 * j + 2))
        sums[here], maxima[here] = piece.sums, piece.maxima
        tracks.add(piece)
    torch.testing.assert_close(sums, sight.picture(cell=(4, 7), reduce="sum"))
    torch.testing.assert_close(maxima, sight.picture(cell=(4, 7), reduce="max"))
    torch.testing.assert_close(tracks.received.float(), sight.received())
    for name, found in tracks.rows().items():
        torch.testing.assert_close(found.float(), sight.statistic(name), atol=1e-5, rtol=1e-5)


def test_a_piece_that_was_not_asked_for_its_rows_adds_nothing() -> None:
    sight = sight_of()
    tracks = Tracks(sight, ["entropy"])
    tracks.add(piece_of(sight, slice(0, 23), slice(0, 31), (1, 1)))
    assert not tracks.received.any()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_rows_here_and_there(options: dict) -> None:
    sight, queries, columns = sight_of(**options), torch.tensor([22, 3, 3, 11]), slice(2, 29)
    whole = sight.tile(*EVERYTHING)
    if "mask" not in options:
        visible: Tensor | None = None
    else:
        visible = options["mask"].tile(slice(0, 23), slice(0, 31), 23, 31, torch.device("cpu"))[..., queries, columns]
    torch.testing.assert_close(rows_at(sight, queries, columns, visible), whole[..., queries, columns])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("keep", [True, False])
def test_visible_cells_are_counted(options: dict, keep: bool, tmp_path) -> None:
    sight = sight_of(**options)
    sight.save(tmp_path / "x.sight", keep_qk=keep)
    found = visible_in(sl.Sight.load(tmp_path / "x.sight"), slice(0, 23), slice(3, 31), (23, 28))
    mask = options.get("mask", sl.dense(torch.ones(23, 31, dtype=torch.bool)))
    cells = mask.to_dense(23, 31)[..., 3:].sum((-1, -2))
    assert torch.equal(found[..., 0, 0].expand(2, 1), cells.expand(2, 1))


def test_what_cannot_be_read_is_refused(tmp_path) -> None:
    sight = sight_of()
    sight.save(tmp_path / "x.sight", keep_qk=False)
    without = sl.Sight.load(tmp_path / "x.sight")
    for ask in (
        lambda: piece_of(without, slice(0, 4), slice(0, 4), (2, 2)),
        lambda: rows_at(without, torch.tensor([3]), slice(0, 4), None),
    ):
        with pytest.raises(InputError, match="needs q and k, which were not kept"):
            ask()
    sight.call.q.mul_(2)
    with pytest.raises(InputError, match="q was changed after the call"):
        piece_of(sight, slice(0, 4), slice(0, 4), (2, 2))
