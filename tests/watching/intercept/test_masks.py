"""Masks of other people's making: transformers' functions, tables of numbers, functions of cells, stacked parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import masking_utils as theirs

import sightline as sl
from sightline.masks import EMPTY, FULL, Band, edges, spans
from sightline.masks.functions import ModBias, ModMask, Stacked
from sightline.watching.intercept import mask_tables
from sightline.watching.intercept.lse_capture import Catch
from sightline.watching.intercept.mask_tables import Tables, read
from sightline.watching.intercept.transformers_masks import LazyMask, Span, read_mask, read_used, translate
from sightline.watching.record.chosen_keys import weights_at

CPU = torch.device("cpu")


def functions(length):
    """Every mask function of transformers, over sequences of a length."""
    draw = torch.Generator().manual_seed(length)
    packed = torch.randint(0, 3, (2, length), generator=draw).sort(-1).values
    blocks = torch.randint(-1, 2, (2, length), generator=draw)
    left = torch.tensor([0, 2])
    return {
        "causal": theirs.causal_mask_function,
        "bidirectional": theirs.bidirectional_mask_function,
        "window": theirs.sliding_window_causal_mask_function(3),
        "window both ways": theirs.sliding_window_bidirectional_mask_function(2),
        "chunks": theirs.chunked_causal_mask_function(4, left),
        "packed": theirs.and_masks(theirs.causal_mask_function, theirs.packed_sequence_mask_function(packed)),
        "blocks": theirs.or_masks(theirs.causal_mask_function, theirs.blockwise_overlay(blocks)),
        "own": theirs.and_masks(theirs.causal_mask_function, lambda b, h, i, j: (i + j + b) % 3 > 0),
    }


@given(
    name=st.sampled_from(list(functions(4))),
    queries=st.integers(1, 6),
    before=st.integers(0, 5),
    spare=st.integers(0, 4),
    first_key=st.integers(0, 3),
    padded=st.booleans(),
)
def test_a_mask_function_is_read_as_a_rule(name, queries, before, spare, first_key, padded):
    # Queries stand after `before` keys; the cache may be longer than what it holds, and may have lost its first keys.
    first_key = min(first_key, before)
    keys = before + queries + spare - first_key
    function = functions(before + queries + spare)[name]
    span = Span(2, queries, keys, before, first_key, CPU)
    mask = None
    if padded:
        mask = torch.ones(2, before + queries, dtype=torch.bool)
        mask[1, :2] = False
    table = theirs.sdpa_mask(
        2,
        queries,
        keys,
        before,
        first_key,
        function,
        mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
    )
    rule = read_mask(function, mask, span)
    got = torch.ones(1, dtype=torch.bool) if rule is None else rule.to_dense(queries, keys)
    assert torch.equal(got.expand(2, 1, queries, keys), table.expand(2, 1, queries, keys))
    used, shorter = read_used(function, mask, span)
    if shorter.keys < keys:
        assert not table[..., shorter.keys :].any(), "what is left out is hidden"
    got = torch.ones(1, dtype=torch.bool) if used is None else used.to_dense(queries, shorter.keys)
    assert torch.equal(got.expand(2, 1, queries, shorter.keys), table.expand(2, 1, queries, keys)[..., : shorter.keys])


def test_known_functions_become_rules_that_are_never_asked_cell_by_cell():
    span = Span(2, 8, 8, 0, 0, CPU)
    kinds = {name: str(translate(function, span)) for name, function in functions(8).items()}
    assert kinds["causal"] == "causal()"
    assert kinds["bidirectional"] == "None"
    assert kinds["window"] == "window(2, 0)"
    assert kinds["window both ways"] == "window(2, 2)"
    assert kinds["packed"] == "(causal() & documents(<2 x 8>))"
    assert kinds["chunks"] == "(documents(<2 x 8>) & causal())"
    assert kinds["own"] == "(causal() & mask_mod(<lambda>))"


def test_a_lazy_mask_is_written_when_somebody_works_on_it():
    made = []

    def make():
        made.append(1)
        return torch.ones(2, 1, 3, 4, dtype=torch.bool).tril()

    mask = LazyMask.of(sl.causal(), Span(2, 3, 4, 1, 0, CPU), 4, make, torch.bool)
    assert (mask.shape, mask.dtype, mask.ndim, mask.device) == ((2, 1, 3, 4), torch.bool, 4, CPU)
    assert "LazyMask(causal()" in repr(mask)
    assert not made
    assert mask[:, :, :, :2].shape == (2, 1, 3, 2)
    assert torch.where(mask, 0.0, -1.0).sum() == -(24 - 12)
    assert (~mask & mask).sum() == 0
    q = torch.randn(2, 1, 3, 4)
    out = torch.nn.functional.scaled_dot_product_attention(q, torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4), mask)
    assert out.shape == q.shape
    assert made == [1]


@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    block=st.integers(2, 9),
)
def test_kinds_of_a_function_with_blocks(queries, keys, height, width, block):
    table = np.zeros((-(-queries // block), -(-keys // block)), dtype=np.int8)
    cells = torch.ones(queries, keys, dtype=torch.bool).tril(3)
    for i, j in np.ndindex(*table.shape):
        part = cells[i * block : (i + 1) * block, j * block : (j + 1) * block]
        table[i, j] = FULL if part.all() else EMPTY if not part.any() else 1
    mask = ModMask(lambda b, h, i, j: j <= i + 3, 1, 1, (table, (block, block)))
    rows, columns = edges(queries, height), edges(keys, width)
    kinds = mask.kinds(rows, columns, queries, keys)
    for i, band in enumerate(spans(rows)):
        for j, span in enumerate(spans(columns)):
            part = cells[band, span]
            assert kinds[i, j] != FULL or part.all()
            assert kinds[i, j] != EMPTY or not part.any()
    assert torch.equal(mask.to_dense(queries, keys)[0, 0], cells)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4), st.integers(1, 5))
def test_stacked_masks(parts, height):
    stacked, rows, end = [], [], 0
    total = sum(n for n, _ in parts)
    for n, first in parts:
        end += n
        first = min(first, end - 1)
        stacked.append((sl.causal() if n > 1 else None, n, first, end))
        table = torch.zeros(n, total, dtype=torch.bool)
        inner = sl.causal().to_dense(n, end - first) if n > 1 else torch.ones(1, end - first, dtype=torch.bool)
        table[:, first:end] = inner
        rows.append(table)
    mask, want = Stacked(stacked), torch.cat(rows)
    assert torch.equal(mask.to_dense(total, total), want)
    i, j = torch.meshgrid(torch.arange(total), torch.arange(total), indexing="ij")
    zero = torch.zeros_like(i)
    assert torch.equal(mask.mod((1,), total, total, CPU)(zero, zero, i, j), want)
    kinds = mask.kinds(edges(total, height), edges(total, height), total, total)
    for a, band in enumerate(spans(edges(total, height))):
        for b, span in enumerate(spans(edges(total, height))):
            assert kinds[a, b] != FULL or want[band, span].all()
            assert kinds[a, b] != EMPTY or not want[band, span].any()


def test_tables_are_read_once():
    tables, mask = Tables(), torch.rand(5, 5) < 0.5
    first = tables.read(mask, (1, 1, 5, 5))
    assert tables.read(mask, (1, 1, 5, 5)) is first
    mask[0, 0] = ~mask[0, 0]
    assert tables.read(mask, (1, 1, 5, 5)) is not first, "it was changed in place"
    tables.clear()
    assert tables._kept == []


def test_a_table_of_a_graph_is_known_by_its_number():
    tables, shape = Tables(), (1, 1, 3, 3)
    every, causal, layers = (
        torch.ones(3, 3, dtype=torch.bool),
        torch.ones(3, 3).tril().bool(),
        [object() for _ in range(3)],
    )
    written = causal & torch.tensor([True, True, False])
    assert tables.read_numbered(-1, written, shape, layers[0]).mask.table.data_ptr() == written.data_ptr()
    copied = tables.read_numbered(1, written, shape, layers[1])
    assert torch.equal(copied.mask.table[0, 0], written)
    assert copied.mask.table.data_ptr() != written.data_ptr(), "the graph may write over it"
    assert tables.read_numbered(1, written.clone(), shape, layers[2]) is copied
    # The graph runs again: a module comes again, or the first of them says so.
    assert tables.read_numbered(1, causal, shape, layers[1]).mask == Band(None, 0)
    tables.forget_numbered(1)
    assert tables.read_numbered(1, every, shape, layers[2]) == (None, None, None)
    # Another call of the same, other tables, and those that nobody knows.
    assert tables.read_numbered(1, causal[:1], (1, 1, 1, 3), layers[0]).mask is not None
    assert tables.read_numbered(2, causal, shape, layers[0]).mask == Band(None, 0)
    for table in (causal, every):
        assert (tables.read_numbered(0, table, shape, layers[0]).mask is None) == (table is every)
    low = torch.zeros(3, 3).masked_fill(~written, torch.finfo(torch.float32).min)
    low[0] = torch.finfo(torch.float32).min
    assert tables.read_numbered(3, low, shape, layers[0]).bias is not None
    assert tables.read_numbered(3, low, shape, layers[1], hides=True).mask is not None
    tables.clear()
    assert tables._graph == {}


@pytest.mark.parametrize("name", ["everything", "padding", "causal", "dense", "blind", "numbers"])
def test_a_gpu_is_asked_about_a_table_once(name, monkeypatch):
    """What is found out is the same, whether questions are put one by one or all at once."""
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    real = torch.tensor([[True] * 4, [False, True, True, False]])[:, None, None]
    tables = {
        "everything": torch.ones(2, 1, 4, 4, dtype=torch.bool),
        "padding": real.expand(2, 1, 4, 4),
        "causal": triangle,
        "dense": triangle.flip(0),
        "blind": triangle & real,
        "numbers": torch.randn(4, 4).masked_fill(~triangle, -torch.inf),
    }
    waits, tolist = [], torch.Tensor.tolist
    one_by_one = read(tables[name], (2, 1, 4, 4))
    made = mask_tables._Asked.__init__

    def together(self, *given, **questions):
        made(self, *given, **questions)
        self._together = True

    monkeypatch.setattr(mask_tables._Asked, "__init__", together)
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: waits.append(0) or tolist(x))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda _: pytest.fail("waits for one answer"))
    at_once = read(tables[name], (2, 1, 4, 4))
    monkeypatch.undo()
    assert len(waits) == 1
    assert repr(at_once) == repr(one_by_one)
    assert (at_once.sees is not None) == (name == "blind")


def test_what_a_table_means():
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    shape = (2, 3, 4, 4)
    assert read(triangle, shape).mask == Band(None, 0)
    assert read(torch.ones(4, 4, dtype=torch.bool), shape) == (None, None, None)
    assert str(read(torch.tensor([True, True, False, True])[None, None, None], shape).mask) == "padding(<1 x 4>)"
    numbers = torch.full((4, 4), -3.0)
    assert read(numbers, shape).bias is not None
    low = torch.where(triangle, 0.0, torch.finfo(torch.float32).min)
    assert read(low, shape).mask == Band(None, 0)
    low[0] = torch.finfo(torch.float32).min
    assert read(low, shape).bias is not None, "a row of the least number is uniform, not empty"
    nothing = triangle.clone()
    nothing[2] = False
    assert read(nothing, shape).sees.tolist() == [[[True, True, False, True]]]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [None, "dense", "alibi", "function"])
def test_single_cells_are_those_of_the_map(groups, bias):
    heads = 4
    q, k = torch.randn(2, heads, 9, 8), torch.randn(2, heads // groups, 11, 8)
    table = torch.randn(2, heads, 9, 11)
    bias = {
        None: None,
        "dense": table,
        "alibi": sl.alibi(heads),
        "function": ModBias(lambda b, h, i, j: 0.1 * (h + 1) * (i - j), 2, heads),
    }[bias]
    mask = sl.causal() & sl.padding(torch.rand(2, 11) < 0.8)
    sight = sl.look(q, k, mask=mask, bias=bias, softcap=3.0, sinks=torch.randn(heads))
    keys = torch.randint(-2, 11, (2, 9))
    got = weights_at(sight._levels, keys)
    tile = sight.tile(slice(0, 9), slice(0, 11))
    want = tile.gather(-1, keys.clamp_min(0)[:, None, :, None].expand(2, heads, 9, 1))[..., 0]
    torch.testing.assert_close(got, want * (keys >= 0)[:, None], atol=1e-6, rtol=1e-5)


def test_single_cells_step_by_step(monkeypatch):
    from sightline.watching.record import chosen_keys

    monkeypatch.setattr(chosen_keys, "_BYTES", 1)
    sight = sl.look(torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), mask=sl.causal())
    got = weights_at(sight._levels, torch.zeros(1, 9, dtype=torch.long))
    torch.testing.assert_close(got, sight.tile(slice(0, 9), 0)[..., 0])


def test_masks_and_biases_of_some_heads():
    table = torch.rand(2, 4, 5, 6) < 0.5
    mask = (sl.dense(table) | sl.causal()) & ~sl.window(0)
    part = mask.select(heads=[1, 3])
    assert torch.equal(part.to_dense(5, 6), mask.to_dense(5, 6)[:, [1, 3]])
    by_head = ModMask(lambda b, h, i, j: i + h > j, 1, 4)
    assert torch.equal(by_head.select(heads=[0, 2]).to_dense(5, 6), by_head.to_dense(5, 6)[:, [0, 2]])
    for bias in (sl.alibi(4), ModBias(lambda b, h, i, j: (h * (i - j)).float(), 1, 4)):
        some = bias.select(heads=[0, 3]).writable(5, 6)
        assert torch.equal(some, bias.to_dense(5, 6)[..., [0, 3], :, :])


def test_a_copy_of_a_mask_does_not_follow_its_tensors():
    real = torch.ones(2, 6, dtype=torch.bool)
    mask = sl.causal() & sl.padding(real) & ~sl.documents(torch.zeros(2, 6, dtype=torch.long), torch.ones(2, 6).long())
    copy = mask.to("cpu", copy=True)
    before = copy.to_dense(6, 6)
    real[:] = False
    assert torch.equal(copy.to_dense(6, 6), before)
    assert torch.equal(
        Stacked([(sl.causal(), 3, 0, 3)]).to("cpu", copy=True).to_dense(3, 3), sl.causal().to_dense(3, 3)
    )


def test_a_large_function_is_not_written_out(monkeypatch):
    from sightline import portable
    from sightline.errors import InputError

    monkeypatch.setattr(portable, "_WRITTEN", 10)
    for what in (
        lambda: ModMask(lambda b, h, i, j: i >= j, 1).writable(4, 4),
        lambda: ModBias(lambda b, h, i, j: i - j, 1, 1).writable(4, 4),
    ):
        with pytest.raises(InputError, match="too large to be written out"):
            what()


def test_the_lse_is_caught_beside_the_output():
    q, k, v = torch.randn(3, 2, 4, 7, 8).unbind()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with Catch() as caught:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(out, plain)
    want = sl.look(q, k, mask=sl.causal("start")).lse
    torch.testing.assert_close(caught.lse, want, atol=1e-6, rtol=1e-6)
    with Catch() as caught:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert caught.lse is None, "the kernel that drops weights gives none"


def test_rows_beside_which_scores_are_lost_are_not_left_to_the_kernels(monkeypatch):
    """They measure such rows in another rounding than single cells are computed in."""
    from sightline.lens.gpu import plan as gpu_plan

    q, k = (torch.randn(1, 2, 9, 8) for _ in "qk")
    bias = torch.zeros(9, 9)
    bias[2:5] = -1e9
    sight = sl.look(q, k, bias=bias)
    monkeypatch.setattr(gpu_plan, "can", lambda call: True)
    monkeypatch.setattr(gpu_plan, "rest", lambda levels: torch.full_like(levels.row, 64.0))
    got = weights_at(sight._levels, 0)
    torch.testing.assert_close(got, sight.tile(slice(0, 9), slice(0, 9)).diagonal(dim1=-2, dim2=-1))
