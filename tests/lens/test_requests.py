"""What can be asked for, as values that are equal when they mean the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.errors import InputError, InputTypeError
from sightline.lens import requests
from sightline.lens.requests import parse


def test_names_and_defaults() -> None:
    assert requests.names() == ("entropy", "max_score", "distance", "received", "top", "picture")
    assert parse(()) == []
    assert parse("entropy") == ["entropy"]
    assert parse(sl.Top(3)) == [sl.Top(3)]
    assert parse(["top", "picture"]) == [sl.Top(8), sl.Picture(512, 512)]
    assert parse(requests.names()) == ["entropy", "max_score", "distance", "received", sl.Top(8), sl.Picture()]


def test_equal_requests_are_equal() -> None:
    assert sl.Top() == sl.Top(8)
    assert sl.Picture(64) == sl.Picture(64, 64)
    assert sl.Picture(64, rows=slice(None)) == sl.Picture(64)
    assert sl.Picture(cell=(2, 3)) == sl.Picture(100, 7, cell=(2, 3))
    different = [
        sl.Picture(64),
        sl.Picture(64, 65),
        sl.Picture(64, reduce="max"),
        sl.Picture(64, reduce="sum"),
        sl.Picture(64, visible_only=True),
        sl.Picture(64, rows=slice(0, 3)),
        sl.Picture(64, columns=slice(0, 3)),
        sl.Picture(64, rows=slice(0, -1)),
        sl.Picture(cell=(64, 64)),
    ]
    assert len(set(different)) == len(different)


def test_the_last_row_is_not_the_end() -> None:
    assert sl.Picture(5, rows=slice(0, -1)) != sl.Picture(5, rows=slice(0, None))


def test_unknown_names() -> None:
    with pytest.raises(InputError) as caught:
        parse(("entropy", "kurtosis"))
    assert str(caught.value) == (
        "unknown statistic\n"
        "  expected: one of entropy, max_score, distance, received, top, picture, sl.Top(n), sl.Picture(…) or "
        "sl.Received(…)\n"
        "  got: 'kurtosis'\n"
        '  try: stats=("entropy", "received")'
    )


@pytest.mark.parametrize("stats", [None, 3, {"entropy": 1}, 2.5, object()])
def test_the_wrong_kind_of_stats(stats: object) -> None:
    with pytest.raises(InputTypeError, match="stats is a tuple of what to compute") as caught:
        parse(stats)
    assert f"got: {type(stats).__name__}" in str(caught.value)


@pytest.mark.parametrize("n, error", [(0, InputError), (-1, InputError), (2.0, InputTypeError), (True, InputTypeError)])
def test_top_counts_from_one(n: object, error: type) -> None:
    with pytest.raises(error, match="n "):
        sl.Top(n)


def test_pictures_that_cannot_be() -> None:
    for size in ((0,), (4, 0), (-1, 4)):
        with pytest.raises(InputError, match="size is too small"):
            sl.Picture(*size)
    with pytest.raises(InputTypeError, match="size must be a whole number"):
        sl.Picture(4.0)
    for cell in ((1,), [2, 2], 3, (1, 2, 3)):
        with pytest.raises(InputTypeError, match="cell is two whole numbers"):
            sl.Picture(cell=cell)
    with pytest.raises(InputError, match="cell is too small"):
        sl.Picture(cell=(1, 0))
    with pytest.raises(InputError, match="unknown reduction") as caught:
        sl.Picture(reduce="min")
    assert "expected: one of mean, max, sum" in str(caught.value)
    assert "got: 'min'" in str(caught.value)


@pytest.mark.parametrize("rows", [5, (0, 5), "all", slice(0, 5, 2), slice(0.0, 2.0)])
def test_rows_are_a_slice(rows: object) -> None:
    with pytest.raises(InputTypeError, match="rows is a slice without a step") as caught:
        sl.Picture(rows=rows)
    assert "try: rows=slice(0, 1024)" in str(caught.value)
    with pytest.raises(InputTypeError, match="columns is a slice without a step"):
        sl.Picture(columns=rows)


def test_numbers_of_numpy_are_numbers() -> None:
    assert sl.Top(np.int64(3)) == sl.Top(3)
    assert type(sl.Top(np.int64(3)).n) is int
    assert sl.Picture(np.int32(8), np.int64(9)) == sl.Picture(8, 9)
    assert sl.Picture(cell=(np.int8(2), 3)) == sl.Picture(cell=(2, 3))
    assert sl.Picture(rows=slice(np.int64(1), np.int64(3))) == sl.Picture(rows=slice(1, 3))
    sight = sl.look(torch.eye(4), torch.eye(4))
    assert torch.equal(sight.top(np.int64(2)).keys, sight.top(2).keys)
    assert torch.equal(sight.tile(slice(np.int64(1), np.int64(3)), slice(None)), sight.tile(slice(1, 3), slice(None)))
    assert torch.equal(sight.picture(size=(np.int64(2), 2)), sight.picture(size=(2, 2)))
