from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import SHORT, cases, inputs, masks, shapes
from sightline.backends import reference
from sightline.backends.call import make_call
from sightline.backends.tiles import bias_tile, fold, row_numbers, scaled_rows, score_tile, unfold, visit
from sightline.masks import as_mask
from sightline.shapes import Sizes


def sizes(queries: int, keys: int) -> Sizes:
    return Sizes((), 1, 1, queries, keys, 1, 1)


@settings(max_examples=300)
@given(shapes(SHORT).flatmap(lambda s: st.tuples(st.just(s), masks(s))), st.integers(1, 40), st.integers(1, 40))
def test_every_visible_cell_is_visited_once_and_full_tiles_hide_nothing(case, height, width):
    shape, (mask, table) = case
    seen = torch.zeros(shape.queries, shape.keys, dtype=torch.int64)
    stop = 0
    for rows, columns in visit(sizes(shape.queries, shape.keys), as_mask(mask), height, width):
        assert rows.start == stop
        stop = rows.stop
        for span, mixed in columns:
            seen[rows, span] += 1
            assert mixed or table[..., rows, span].all()
    assert stop == shape.queries
    assert (seen <= 1).all()
    assert not (table & (seen == 0)).any()


def test_without_a_mask_every_tile_is_visited():
    bands = list(visit(sizes(5, 7), None, 2, 3))
    assert [rows for rows, _ in bands] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert all([c.span for c in columns] == [slice(0, 3), slice(3, 6), slice(6, 7)] for _, columns in bands)
    assert not any(c.mixed for _, columns in bands for c in columns)


def visited(mask, n: int, height: int = 256, width: int = 512) -> int:
    return sum(
        (r.stop - r.start) * (c.span.stop - c.span.start)
        for r, cs in visit(sizes(n, n), mask, height, width)
        for c in cs
    )


def test_a_window_costs_in_proportion_to_the_window():
    n, window = 16_384, 1_024
    cells = visited(sl.window(window - 1), n)
    assert n * window * 0.9 < cells < n * (window + 256 + 2 * 512)
    assert cells < 0.2 * visited(None, n)
    assert visited(sl.window(window - 1), 2 * n) < 2.05 * cells
    assert visited(sl.window(4 * window - 1), n) > 2.5 * cells


def test_causal_costs_half_and_documents_their_squares():
    n = 16_384
    assert visited(sl.causal(), n) < 0.53 * n * n
    ids = torch.arange(n) // 2_048
    assert visited(sl.documents(ids), n) == n * 2_048
    assert visited(sl.padding(n // 4), n) == n * n // 4
    assert visited(sl.window(1_023) & sl.documents(ids), n) < visited(sl.window(1_023), n)
    assert visited(~sl.causal() & sl.causal(), n) <= 2 * 512 * n


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (4, 1), (6, 3)])
def test_fold_puts_the_rows_of_a_group_below_each_other(heads, kv_heads):
    s = Sizes((2,), heads, kv_heads, 3, 5, 4, 4)
    x = torch.randn(2, heads, 3, 4)
    folded = fold(x, s)
    assert folded.shape == (2, kv_heads, heads // kv_heads * 3, 4)
    assert torch.equal(unfold(folded, s), x)
    k = torch.randn(2, kv_heads, 5, 4)
    expected = x @ k.repeat_interleave(heads // kv_heads, 1).mT
    torch.testing.assert_close(unfold(folded @ k.mT, s), expected)


@settings(max_examples=200)
@given(cases(dtypes=(torch.float64,), rarely=(), usually=SHORT), st.integers(1, 20), st.integers(1, 20))
def test_tiles_of_scores_put_together_are_the_scores(case, height, width):
    call = make_call(case.q, case.k, case.v, **case.options)
    o = case.options
    q, k = (t[None] if t.dim() == 2 else t for t in (case.q, case.k))
    whole = reference.scores(q, k, bias=o.get("bias"), scale=o.get("scale"), softcap=o.get("softcap"))
    if case.table is not None:
        whole = whole.masked_fill(~case.table, -torch.inf)
    parts = torch.full_like(whole, -torch.inf)
    for rows, columns in visit(call.sizes, call.mask, height, width):
        q_rows = scaled_rows(call, rows)
        for column in columns:
            tile = score_tile(call, q_rows, rows, column)
            parts[..., rows, column.span] = tile.scores
            assert (tile.visible is None) == (not column.mixed)
            assert (tile.capped is None) == ("softcap" not in o)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 1, 7), (5, 1), (1, 7), (1, 1), (7,), (1,), ()], ids=str)
def test_a_tile_of_a_bias_of_any_shape(shape):
    q, k, v = inputs(2, heads=3, queries=5, keys=7)
    bias = torch.randn(shape, dtype=torch.float64)
    call = make_call(q, k, v, bias=bias)
    tile = bias_tile(call, slice(1, 4), slice(2, 7))
    whole = bias.expand(2, 3, 5, 7)[..., 1:4, 2:7]
    assert torch.equal(tile.expand(whole.shape), whole)


def test_row_numbers_count_the_visible_keys():
    q, k, v = inputs(2, queries=4, keys=6)
    assert row_numbers(make_call(q, k, v)).tolist() == [6.0] * 4
    assert row_numbers(make_call(q, k, v, mask=sl.causal())).tolist() == [3.0, 4.0, 5.0, 6.0]
