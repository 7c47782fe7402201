from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Shape, leaves, masks, shapes
from sightline.errors import InputTypeError
from sightline.masks import EMPTY, FULL, MIXED, as_mask, edges, spans

CPU = torch.device("cpu")
drawn = shapes().flatmap(lambda shape: st.tuples(st.just(shape), masks(shape)))


def tiles_of(draw, length: int) -> np.ndarray:
    """Edges of tiles of a length, all of the same size or at any place."""
    if draw(st.booleans()) or length < 2:
        return edges(length, draw(st.integers(1, 40)))
    inner = draw(st.sets(st.integers(1, length - 1), max_size=5))
    return np.array([0, *sorted(inner), length])


@settings(max_examples=120)
@given(drawn)
def test_the_mask_is_the_table_it_means(case):
    shape, (mask, table) = case
    mask = as_mask(mask)
    mask.check(*shape, CPU)
    assert torch.equal(mask.to_dense(shape.queries, shape.keys).expand(shape.full), table)


@settings(max_examples=120)
@given(drawn, st.data())
def test_every_tile_is_a_slice_of_the_whole(case, data):
    shape, (mask, table) = case
    for rows in spans(tiles_of(data.draw, shape.queries)):
        for columns in spans(tiles_of(data.draw, shape.keys)):
            tile = as_mask(mask).tile(rows, columns, shape.queries, shape.keys, CPU)
            part = table[..., rows, columns]
            assert torch.equal(tile.expand(part.shape), part)


@settings(max_examples=150)
@given(drawn, st.data())
def test_empty_and_full_are_true_of_every_cell(case, data):
    shape, (mask, table) = case
    row_edges, column_edges = tiles_of(data.draw, shape.queries), tiles_of(data.draw, shape.keys)
    kinds = as_mask(mask).kinds(row_edges, column_edges, shape.queries, shape.keys)
    assert kinds.shape == (len(row_edges) - 1, len(column_edges) - 1)
    for i, rows in enumerate(spans(row_edges)):
        for j, columns in enumerate(spans(column_edges)):
            part = table[..., rows, columns]
            assert kinds[i, j] in (EMPTY, MIXED, FULL)
            assert not (kinds[i, j] == EMPTY and part.any())
            assert not (kinds[i, j] == FULL and not part.all())


@settings(max_examples=120)
@given(drawn)
def test_visible_counts_the_keys_of_each_row(case):
    shape, (mask, table) = case
    count = as_mask(mask).visible(shape.queries, shape.keys, CPU)
    assert torch.equal(count.expand(shape.full[:-1]), table.sum(-1))


@settings(max_examples=20)
@given(st.data())
def test_visible_counts_over_several_tiles(data):
    shape = Shape((2,), 1, data.draw(st.sampled_from((513, 700))), data.draw(st.sampled_from((600, 1100))))
    mask, table = data.draw(masks(shape, depth=1))
    count = as_mask(mask).visible(shape.queries, shape.keys, CPU)
    assert torch.equal(count.expand(shape.full[:-1]), table.sum(-1))


@settings(max_examples=120)
@given(drawn)
def test_the_rule_for_cells_is_the_table_cell_by_cell(case):
    shape, (mask, table) = case
    flat = table.reshape(table.shape[:-3].numel(), *table.shape[-3:])
    if not flat.numel():
        return
    mod = as_mask(mask).mod(shape.batch, shape.queries, shape.keys, CPU)
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in flat.shape), indexing="ij")
    assert torch.equal(mod(b, h, i, j).expand(flat.shape), flat)
    last = tuple(torch.tensor(n - 1) for n in flat.shape)
    assert bool(mod(*last)) == bool(flat[-1, -1, -1, -1])


@settings(max_examples=100)
@given(shapes().flatmap(lambda shape: st.tuples(st.just(shape), leaves(shape), leaves(shape))))
def test_de_morgan(case):
    shape, a, b = case
    a, b = as_mask(a.mask), as_mask(b.mask)

    def dense(mask):
        return mask.to_dense(shape.queries, shape.keys).expand(shape.full)

    assert torch.equal(dense(~(a & b)), dense(~a | ~b))
    assert torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert torch.equal(dense(~~a), dense(a))


def test_a_combination_of_kinds_keeps_what_it_knows():
    row_edges, column_edges = edges(8, 4), edges(8, 4)
    causal, after = sl.causal(), ~sl.causal()
    assert causal.kinds(row_edges, column_edges, 8, 8).tolist() == [[MIXED, EMPTY], [FULL, MIXED]]
    assert after.kinds(row_edges, column_edges, 8, 8).tolist() == [[MIXED, FULL], [EMPTY, MIXED]]
    assert (causal & after).kinds(row_edges, column_edges, 8, 8).tolist() == [[MIXED, EMPTY], [EMPTY, MIXED]]
    assert (causal | after).kinds(row_edges, column_edges, 8, 8).tolist() == [[MIXED, FULL], [FULL, MIXED]]


def test_the_kind_of_a_rectangle_has_a_name():
    mask = sl.causal()
    assert mask.kind(slice(0, 4), slice(4, 8), queries=8, keys=8) == "empty"
    assert mask.kind(slice(4, 8), slice(0, 4), queries=8, keys=8) == "full"
    assert mask.kind(slice(None), slice(None), queries=8, keys=8) == "mixed"


def test_a_tensor_is_a_dense_mask_on_either_side_of_a_sign():
    table = torch.rand(3, 4) < 0.5
    assert torch.equal((sl.causal() & table).to_dense(3, 4), sl.causal().to_dense(3, 4) & table)
    assert torch.equal((sl.causal() | table).to_dense(3, 4), sl.causal().to_dense(3, 4) | table)


@pytest.mark.parametrize("thing", ["causal", 3, [[True]], object()])
def test_another_thing_is_no_mask(thing):
    with pytest.raises(InputTypeError) as caught:
        as_mask(thing)
    text = str(caught.value)
    for fact in (
        "cannot be used as a mask",
        "expected: a sightline mask or a boolean tensor",
        type(thing).__name__,
        "try: sl.causal()",
    ):
        assert fact in text


def test_masks_say_what_they_are():
    mask = (sl.causal() & ~sl.padding([3])) | sl.prefix(2)
    assert repr(mask) == "((causal() & ~padding(<1>)) | prefix(2))"


def test_edges_and_spans():
    assert edges(5, 2).tolist() == [0, 2, 4, 5]
    assert edges(4, 2).tolist() == [0, 2, 4]
    assert edges(0, 2).tolist() == [0]
    assert spans(edges(0, 2)) == []
    assert spans(edges(3, 8)) == [slice(0, 3)]
