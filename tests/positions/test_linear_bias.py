from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError, InputTypeError
from sightline.positions import Alibi, alibi


@pytest.mark.parametrize(
    "heads, exponents",
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [0.5 * i for i in range(1, 17)]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_those_of_the_paper(heads: int, exponents: list[float]) -> None:
    expected = torch.tensor([2.0**-e for e in exponents], dtype=torch.float64)
    assert alibi(heads).slopes.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_tile_is_as_exact_as_it_is_asked_to_be(dtype: torch.dtype) -> None:
    """The ninth of 12 slopes is the square root of a half: rounded once, to the precision of the call."""
    tile = alibi(12).tile(slice(0, 1), slice(0, 1), queries=4, keys=1, dtype=dtype)
    assert tile[8, 0, 0] == torch.tensor(-3 * 0.5**0.5, dtype=torch.float64).to(dtype)


def test_the_last_query_stands_at_the_last_key() -> None:
    assert (alibi(1).to_dense(2, 4)[0] * 2**8).tolist() == [[-2, -1, 0, -1], [-3, -2, -1, 0]]
    assert (alibi(1).to_dense(3, 1)[0] * 2**8).tolist() == [[-2], [-1], [0]]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), heads=st.integers(1, 9), queries=st.integers(0, 9), keys=st.integers(0, 9))
def test_tiles_are_pieces_of_the_whole(data: st.DataObject, heads: int, queries: int, keys: int) -> None:
    bias = alibi(heads)
    ends = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in (queries, keys)]
    rows, columns = (slice(*pair) for pair in ends)
    tile = bias.tile(rows, columns, queries, keys, torch.device("cpu"), torch.float64)
    dense = torch.tensor(
        [
            [[-s * abs(i + keys - queries - j) for j in range(keys)] for i in range(queries)]
            for s in bias.slopes.tolist()
        ],
        dtype=torch.float64,
    ).reshape(heads, queries, keys)
    assert tile.equal(dense[:, rows, columns])
    assert bias.to_dense(queries, keys, dtype=torch.float64).equal(dense)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_half_precision_rounds_the_bias_and_not_the_distance(dtype: torch.dtype) -> None:
    tile = alibi(8).tile(slice(4095, 4096), slice(0, 4096), 4096, 4096, "cpu", dtype)
    assert tile.dtype == dtype
    expected = -alibi(8).slopes.double()[:, None, None] * torch.arange(4095, -1, -1)
    assert tile.equal(expected.to(dtype))


def test_a_tile_of_a_long_call_costs_only_the_tile() -> None:
    tile = alibi(8).tile(slice(10**9 - 1, 10**9), slice(10**9 - 2, 10**9), 10**9, 10**9, "cpu", torch.float32)
    assert tile[0].tolist() == [[-0.5, 0.0]]


def test_is_a_value() -> None:
    assert alibi(8) == Alibi(8)
    assert hash(alibi(8)) == hash(Alibi(8))
    assert alibi(8) != alibi(4)
    assert repr(alibi(8)) == "Alibi(heads=8)"
    with pytest.raises(AttributeError):
        alibi(8).heads = 4  # type: ignore[misc]


def test_check_names_both_numbers_of_heads() -> None:
    alibi(8).check((2,), 8, 5, 7)
    with pytest.raises(
        InputError, match=r"expected: 8 heads in q, as in alibi\(8\)\n  got: 4 heads, .*\n  try: alibi\(4\)"
    ):
        alibi(8).check((2,), 4, 5, 7)


def test_bad_heads() -> None:
    with pytest.raises(InputError, match="heads is too small"):
        alibi(0)
    with pytest.raises(InputTypeError, match="heads must be a whole number"):
        alibi(2.0)  # type: ignore[arg-type]
