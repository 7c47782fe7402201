from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import HUGE, Shape, bands, inputs, prefixes
from sightline.errors import InputError, InputTypeError
from sightline.masks import EMPTY, FULL, MIXED, Band, edges, positional, spans

CPU = torch.device("cpu")

DRAWINGS = {
    "causal()": sl.causal(),
    'causal(align="start")': sl.causal(align="start"),
    "window(1)": sl.window(1),
    "window(1, 1)": sl.window(1, 1),
    "prefix(2)": sl.prefix(2),
}


def drawing(name: str) -> list[list[int]]:
    """A drawing of the module's docstring, read off the page."""
    lines = positional.__doc__.split("```")[1].strip().splitlines()
    at = lines[0].index(f"{name} ") if f"{name} " in lines[0] else lines[0].rindex(name)
    return [[int(cell) for cell in line[at : at + 11].split()] for line in lines[1:]]


@pytest.mark.parametrize("name", DRAWINGS)
def test_masks_are_as_drawn(name):
    assert DRAWINGS[name].to_dense(4, 6).int().tolist() == drawing(name)


def test_the_drawings_are_those_that_were_settled():
    assert drawing("causal()") == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1] * 6]
    assert drawing('causal(align="start")')[0] == [1, 0, 0, 0, 0, 0]
    assert drawing("window(1)")[-1] == [0, 0, 0, 0, 1, 1]
    assert drawing("window(1, 1)")[0] == [0, 1, 1, 1, 0, 0]
    assert drawing("prefix(2)") == drawing("causal()")


def test_prefix_with_as_many_queries_as_keys():
    assert sl.prefix(2).to_dense(4, 4).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_more_queries_than_keys_leaves_the_first_rows_empty():
    assert sl.causal().to_dense(4, 2).int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert sl.causal(align="start").to_dense(4, 2).int().tolist() == [[1, 0], [1, 1], [1, 1], [1, 1]]


@pytest.mark.parametrize("left, right", [(0, 0), (3, 0), (0, 2), (None, 0), (2, None), (None, None)])
def test_a_window_always_contains_the_position_itself(left, right):
    assert sl.window(left, right).to_dense(9, 9).diagonal().all()


def test_a_window_without_limits():
    assert torch.equal(sl.window(None).to_dense(3, 5), sl.causal().to_dense(3, 5))
    assert sl.window(None, None).to_dense(3, 5).all()
    assert sl.window(1, None).to_dense(3, 3).int().tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1]]


simple = st.tuples(st.integers(0, 70), st.integers(0, 70)).flatmap(
    lambda n: st.tuples(st.just(n), st.one_of(bands(Shape((), 1, *n)), prefixes(Shape((), 1, *n))))
)


@settings(max_examples=200)
@given(simple, st.integers(1, 20), st.integers(1, 20))
def test_kinds_are_exact(case, height, width):
    (queries, keys), (mask, table) = case
    row_edges, column_edges = edges(queries, height), edges(keys, width)
    kinds = mask.kinds(row_edges, column_edges, queries, keys)
    expected = [
        [
            FULL if part.all() else MIXED if part.any() else EMPTY
            for part in (table[0, rows, c] for c in spans(column_edges))
        ]
        for rows in spans(row_edges)
    ]
    assert kinds.tolist() == np.array(expected, dtype=int).reshape(kinds.shape).tolist()


@settings(max_examples=200)
@given(st.integers(0, 40), st.integers(0, 40), st.data())
def test_two_bands_are_one_band_where_they_are_aligned_alike(queries, keys, data):
    a, b = data.draw(bands(Shape((), 1, queries, keys))), data.draw(bands(Shape((), 1, queries, keys)))
    both = a.mask & b.mask
    assert isinstance(both, Band) == (a.mask.align == b.mask.align)
    assert torch.equal(both.to_dense(queries, keys), (a.table & b.table)[0])


def test_equal_masks_are_equal():
    assert sl.causal() == sl.window(None)
    assert hash(sl.causal()) == hash(sl.window(None))
    assert sl.causal() != sl.causal(align="start")
    assert sl.prefix(2) == sl.prefix(2)
    assert sl.prefix(2) != sl.prefix(3)
    assert len({sl.prefix(1), sl.prefix(1), sl.window(1)}) == 2


def test_masks_repeat_what_was_asked():
    assert [repr(mask) for mask in DRAWINGS.values()] == [
        "causal()",
        "causal(align='start')",
        "window(1, 0)",
        "window(1, 1)",
        "prefix(2)",
    ]


@pytest.mark.parametrize(
    "make, kind, facts",
    [
        (lambda: sl.causal(align="middle"), InputError, ["unknown alignment", "'end' or 'start'", "'middle'"]),
        (lambda: sl.causal("END"), InputError, ["unknown alignment", "'END'"]),
        (lambda: sl.window(-1), InputError, ["window's left must not be negative", "0 or more", "-1"]),
        (lambda: sl.window(1, -2), InputError, ["window's right must not be negative", "-2"]),
        (lambda: sl.window(1.5), InputTypeError, ["window's left must be a whole number", "int", "float"]),
        (lambda: sl.window("3"), InputTypeError, ["whole number", "str"]),
        (lambda: sl.window(True), InputTypeError, ["whole number", "bool"]),
        (lambda: sl.prefix(-1), InputError, ["prefix must not be negative", "-1"]),
        (lambda: sl.prefix(None), InputTypeError, ["prefix must be a whole number", "NoneType"]),
    ],
)
def test_what_cannot_be_is_said(make, kind, facts):
    with pytest.raises(kind) as caught:
        make()
    text = str(caught.value)
    for fact in ("expected: ", "got: ", "try: ", *facts):
        assert fact in text


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("queries, keys", [(5, 5), (3, 7), (7, 3), (1, 4)])
def test_a_limit_beyond_any_length_is_no_limit(huge: int, queries: int, keys: int) -> None:
    """On every path: tiles, kinds of tiles, stretches, single cells, and what is left of a causal row."""
    for mask, same in (
        (sl.window(huge, huge), sl.window(None, None)),
        (sl.window(huge), sl.causal()),
        (sl.causal() & sl.window(huge, huge), sl.causal()),
        (~sl.window(2, huge), ~sl.window(2, None)),
        (sl.prefix(huge), sl.window(None, None)),
    ):
        assert torch.equal(mask.to_dense(queries, keys), same.to_dense(queries, keys))
        edges = np.arange(queries + 1), np.arange(keys + 1)
        assert np.array_equal(mask.kinds(*edges, queries, keys), same.kinds(*edges, queries, keys))
        assert torch.equal(mask.visible(queries, keys, CPU), same.visible(queries, keys, CPU))
        stretch = mask.intervals(queries, keys, CPU)
        if stretch is not None:
            assert all(torch.equal(a, b) for a, b in zip(stretch, same.intervals(queries, keys, CPU), strict=True))
        i, j = torch.arange(queries)[:, None], torch.arange(keys)
        assert torch.equal(
            mask.mod((), queries, keys, CPU)(i * 0, i * 0, i, j), same.mod((), queries, keys, CPU)(i * 0, i * 0, i, j)
        )
        q, k, v = inputs(1, queries=queries, keys=keys)
        for backend in ("auto", "streaming", "reference"):
            torch.testing.assert_close(
                sl.attention(q, k, v, mask=mask, backend=backend), sl.attention(q, k, v, mask=same, backend=backend)
            )
        assert torch.equal(sl.look(q, k, mask=mask).top(2).keys, sl.look(q, k, mask=same).top(2).keys)


def test_numbers_of_numpy_are_numbers() -> None:
    mask = sl.window(np.int64(2), np.uint8(1))
    assert mask == sl.window(2, 1)
    assert repr(mask) == "window(2, 1)"
    assert sl.prefix(np.int32(3)) == sl.prefix(3)
    assert type(sl.prefix(np.int32(3)).n) is int
    for wrong in (np.float64(2.0), np.bool_(True), np.array([1, 2])):
        with pytest.raises(TypeError, match="must be a whole number"):
            sl.window(wrong)
