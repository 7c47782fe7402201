from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Shape, documents, inputs, paddings, tables
from sightline.errors import InputError, InputTypeError
from sightline.masks import EMPTY, FULL, MIXED, as_mask, edges, spans

CPU = torch.device("cpu")
ints = st.integers(1, 40)


def kinds_of(table: torch.Tensor, row_edges: np.ndarray, column_edges: np.ndarray) -> list[list[int]]:
    return [
        [
            FULL if part.all() else MIXED if part.any() else EMPTY
            for part in (table[..., rows, c] for c in spans(column_edges))
        ]
        for rows in spans(row_edges)
    ]


def test_the_drawings():
    assert sl.documents([0, 0, 1, 1]).to_dense(4, 4)[0].int().tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2
    assert sl.padding([3]).to_dense(2, 5)[0, 0].int().tolist() == [[1, 1, 1, 0, 0]] * 2


def test_fewer_queries_than_ids_are_the_last_ones():
    whole = sl.documents([0, 0, 1, 1, 2]).to_dense(5, 5)
    assert torch.equal(sl.documents([0, 0, 1, 1, 2]).to_dense(2, 5), whole[..., 3:, :])


def test_two_sequences_with_ids_of_their_own():
    assert sl.documents([5, 7], [7, 5, 5]).to_dense(2, 3)[0].int().tolist() == [[0, 1, 1], [1, 0, 0]]


def test_lengths_and_booleans_say_the_same():
    lengths = torch.tensor([0, 2, 4])
    real = torch.arange(4) < lengths[:, None]
    assert torch.equal(sl.padding(lengths).to_dense(3, 4), sl.padding(real).to_dense(3, 4))
    assert not sl.padding(lengths).to_dense(3, 4)[0].any()


@settings(max_examples=200)
@given(ints, ints, st.integers(1, 20), st.integers(1, 20), st.data())
def test_kinds_of_padding_are_exact(queries, keys, height, width, data):
    mask, table = data.draw(paddings(Shape((3,), 1, queries, keys)))
    row_edges, column_edges = edges(queries, height), edges(keys, width)
    assert mask.kinds(row_edges, column_edges, queries, keys).tolist() == kinds_of(table, row_edges, column_edges)


@settings(max_examples=200)
@given(ints, ints, st.integers(1, 20), st.integers(1, 20), st.data())
def test_kinds_of_tables_are_exact(queries, keys, height, width, data):
    mask, table = data.draw(tables(Shape((2,), 3, queries, keys)))
    row_edges, column_edges = edges(queries, height), edges(keys, width)
    assert as_mask(mask).kinds(row_edges, column_edges, queries, keys).tolist() == kinds_of(
        table, row_edges, column_edges
    )


@settings(max_examples=200)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 20), st.integers(0, 60))
def test_kinds_of_documents_in_order_are_exact(ids, height, width, skipped):
    ids, keys = sorted(ids), len(ids)
    queries = keys - min(skipped, keys - 1)
    mask = sl.documents(ids)
    row_edges, column_edges = edges(queries, height), edges(keys, width)
    table = torch.tensor(ids)[keys - queries :, None] == torch.tensor(ids)
    assert mask.kinds(row_edges, column_edges, queries, keys).tolist() == kinds_of(table, row_edges, column_edges)


@settings(max_examples=200)
@given(st.data())
def test_documents_of_two_batches_that_broadcast_to_one(data):
    """ids of (2, 1) and key_ids of (1, 2) meet in four pairs, not two."""
    shape = Shape((2, 2), 1, data.draw(ints), data.draw(ints))
    mask, table = data.draw(documents(shape))
    row_edges, column_edges = edges(shape.queries, 7), edges(shape.keys, 9)
    kinds = mask.kinds(row_edges, column_edges, shape.queries, shape.keys)
    for i, rows in enumerate(spans(row_edges)):
        for j, columns in enumerate(spans(column_edges)):
            part = table[..., rows, columns]
            assert not (kinds[i, j] == EMPTY and part.any())
            assert not (kinds[i, j] == FULL and not part.all())


def test_documents_of_crossing_batches():
    mask = sl.documents(torch.tensor([[[0]], [[1]]]), torch.tensor([[[0], [1]]]))
    q = torch.zeros(2, 2, 1, 1, 1)
    v = torch.ones(2, 2, 1, 1, 1)
    out = sl.attention(q, q, v, mask=mask, backend="streaming")
    assert out.flatten().tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_dense_mask_may_be_larger_than_the_tile_edges_ask():
    table = torch.rand(1, 1, 40, 50) < 0.5
    part = sl.dense(table).tile(slice(3, 9), slice(40, 50), 40, 50, CPU)
    assert torch.equal(part, table[..., 3:9, 40:50])


@pytest.mark.parametrize(
    "make, kind, facts",
    [
        (lambda: sl.padding([3, -1]), InputError, ["must not be negative", "0 or more", "-1"]),
        (lambda: sl.padding([1.5]), InputTypeError, ["lengths must be whole numbers", "torch.float32"]),
        (lambda: sl.padding(True), InputError, ["one boolean per key", "a single boolean"]),
        (lambda: sl.documents(torch.ones(3)), InputTypeError, ["ids must be whole numbers", "torch.float32"]),
        (lambda: sl.documents([1], torch.ones(3)), InputTypeError, ["key_ids must be whole numbers"]),
        (lambda: sl.documents([True, False]), InputTypeError, ["ids must be whole numbers", "torch.bool"]),
        (lambda: sl.documents(3), InputError, ["ids needs a time axis", "a single number"]),
        (lambda: sl.dense([[True]]), InputTypeError, ["must be a tensor", "list"]),
        (
            lambda: sl.dense(torch.ones(3, 3, dtype=torch.int64)),
            InputTypeError,
            ["must be boolean", "torch.int64", "mask.bool()"],
        ),
        (lambda: sl.dense(torch.zeros(3, 3)), InputTypeError, ["must be boolean", "torch.float32", "bias="]),
        (lambda: sl.dense(torch.ones(3, dtype=torch.bool)), InputError, ["at least two axes", "(3,)", "mask[None]"]),
    ],
)
def test_what_cannot_be_is_said(make, kind, facts):
    with pytest.raises(kind) as caught:
        make()
    text = str(caught.value)
    for fact in ("expected: ", "got: ", "try: ", *facts):
        assert fact in text


BOOL = {"dtype": torch.bool}


@pytest.mark.parametrize(
    "mask, facts",
    [
        (sl.padding([4, 9]), ["longer than the keys", "at most 6", "9"]),
        (sl.padding([1, 2, 3]), ["padding does not fit", "batch (2,)", "lengths (3,)"]),
        (sl.padding(torch.ones(2, 5, **BOOL)), ["padding does not fit", "6 keys", "(2, 5)"]),
        (sl.padding(torch.ones(3, 6, **BOOL)), ["padding does not fit", "(3, 6)"]),
        (sl.documents([0] * 5), ["documents do not fit", "4 queries", "6 keys", "ids (5,)"]),
        (sl.documents([0] * 5, [0] * 6), ["documents do not fit", "ids (5,)", "key_ids (6,)"]),
        (sl.documents(torch.zeros(3, 6, dtype=torch.int64)), ["documents do not fit", "ids (3, 6)"]),
        (sl.dense(torch.ones(4, 5, **BOOL)), ["mask does not fit", "(2, 3, 4, 6)", "(4, 5)"]),
        (sl.dense(torch.ones(2, 4, 6, **BOOL)), ["mask does not fit", "[*batch, heads, queries, keys]", "(2, 4, 6)"]),
        (sl.dense(torch.ones(1, 2, 3, 4, 6, **BOOL)), ["mask does not fit", "(1, 2, 3, 4, 6)"]),
        (sl.dense(torch.ones(4, 6, device="meta", **BOOL)), ["on another device", "cpu", "meta", "mask.to(q.device)"]),
    ],
    ids=str,
)
def test_what_does_not_fit_the_call_is_said(mask, facts):
    for nested in (mask, ~mask, mask & sl.causal(), sl.causal() | mask):
        with pytest.raises(InputError) as caught:
            nested.check((2,), 3, 4, 6, CPU)
        text = str(caught.value)
        for fact in ("expected: ", "got: ", "try: ", *facts):
            assert fact in text


def test_padding_changed_in_place_is_seen():
    lengths = torch.tensor([2, 6])
    mask = sl.padding(lengths)
    q = torch.randn(2, 1, 6, 4)
    first = sl.attention(q, q, q, mask=mask)
    lengths[0] = 4
    assert not torch.equal(sl.attention(q, q, q, mask=mask)[0], first[0])
    torch.testing.assert_close(sl.attention(q, q, q, mask=mask), sl.attention(q, q, q, mask=mask, backend="reference"))


def test_padding_used_in_inference_mode_can_be_trained_with():
    mask, q = sl.padding([2, 6]), torch.randn(2, 1, 6, 4, requires_grad=True)
    with torch.inference_mode():
        sl.attention(q, q, q, mask=mask)
    sl.attention(q, q, q, mask=mask).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("kind", ["array", "from_numpy", "numpy called"])
def test_what_numpy_changes_afterwards_is_noticed_or_copied(kind):
    """torch does not count such changes: what was given by numpy is copied, and what numpy got is not kept."""

    def given(array):
        return array if kind == "array" else torch.from_numpy(array)

    q, k, v = inputs(2, queries=4, keys=6)
    array = np.array([2, 6])
    lengths = torch.tensor([2, 6]) if kind == "numpy called" else given(array)
    mask = sl.padding(lengths)
    first = sl.attention(q, k, v, mask=mask)
    held = np.array([2, 6])
    if kind == "numpy called":
        held = array = lengths.numpy()
    array[0] = 5
    expected = sl.attention(q, k, v, mask=sl.padding([int(held[0]), 6]))
    torch.testing.assert_close(sl.attention(q, k, v, mask=mask), expected)
    torch.testing.assert_close(sl.look(q, k, mask=mask).lse, sl.look(q, k, mask=sl.padding([int(held[0]), 6])).lse)
    assert (kind == "numpy called") != torch.equal(expected, first)

    if kind != "numpy called":
        real, ids = np.array([True, True, False]), np.array([0, 0, 1])
        masks = sl.padding(given(real)), sl.documents(given(ids))
        real[:], ids[:] = False, 7
        assert masks[0].to_dense(1, 3).flatten().tolist() == [True, True, False]
        assert masks[1].to_dense(1, 3).flatten().tolist() == [False, False, True]


def test_a_table_that_numpy_changes_is_looked_at_anew():
    q, k, _ = inputs(1, queries=3, keys=3)
    array = np.ones((3, 3), dtype=bool)
    mask = torch.from_numpy(array)
    assert sl.look(q, k, mask=mask).lse.isfinite().all()
    array[1] = False
    assert (sl.look(q, k, mask=mask).lse[..., 1] == -torch.inf).all()


def test_lengths_changed_in_place_are_noticed():
    q, k, v = inputs(2, queries=4, keys=6)
    lengths = torch.tensor([2, 6])
    mask = sl.padding(lengths)
    sl.attention(q, k, v, mask=mask)
    lengths[0] = 5
    assert torch.equal(sl.attention(q, k, v, mask=mask), sl.attention(q, k, v, mask=sl.padding([5, 6])))
