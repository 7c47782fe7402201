"""Sums between spans, and what a rule would keep: exact, per example, and refused where they mean nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Case, cases, generator, inputs, masks
from cases import Shape as Sized
from lens_cases import lift, whole_map
from sightline.errors import InputError, InputTypeError

ALL = slice(None)


@settings(max_examples=40)
@given(cases((torch.float64,), rarely=(), usually=(1, 5, 17, 64)), st.data())
def test_spans_are_sums_of_the_map(case: Case, data: Any) -> None:
    g = torch.randn(*case.q.shape[:-1], case.v.shape[-1], generator=generator(1), dtype=torch.float64)
    sight = sl.look(case.q, case.k, case.v, grad=g, **case.options)
    *_, queries, keys = sight.shape
    cut = data.draw(st.integers(0, keys))
    spans = {"start": slice(0, cut), "odd": [j for j in range(cut, keys) if j % 2]}
    rows = {"begin": slice(0, queries // 2), "end": [queries - 1]}
    # The first row is not in a span of its own where there is but one.
    rows = rows if queries > 1 else {"end": [0]}
    softmax = case.options.get("normalizer", "softmax") == "softmax"
    sees = whole_map(case).visible.any(-1) if not softmax else sight.row > -torch.inf
    sees = sees[0] if case.q.dim() == 2 else sees
    for of in ("weights", "norms", "influence", *(["pull"] if softmax else [])):
        found, cells = sight.spans(spans, rows, of=of), sight.tile(ALL, ALL, of=of)
        assert found.queries == tuple(rows)
        names = ("start", "odd", "rest", *(["sink"] if "sinks" in case.options else []))
        assert found.keys == names
        inside = {"start": list(range(cut)), "odd": spans["odd"]}
        inside["rest"] = [j for j in range(keys) if j not in inside["start"] and j not in inside["odd"]]
        for i, row in enumerate(rows.values()):
            for j, name in enumerate(("start", "odd", "rest")):
                block = cells[..., row, :][..., inside[name]].sum((-1, -2))
                if of in ("weights", "norms"):
                    block = block / sees[..., row].sum(-1).clamp_min(1)
                torch.testing.assert_close(found.table[..., i, j], block, atol=1e-11, rtol=1e-9)
    table = sight.spans(spans, reduce="sum").table
    if softmax:
        torch.testing.assert_close(
            sight.spans(spans).table.sum(-1)[..., 0], sees.any(-1).to(table), atol=1e-11, rtol=1e-9
        )
        if "sinks" in case.options and sees.numel() and bool(sees.all()):
            total = sight.spans(spans, of="pull").table.sum((-1, -2))
            assert total.abs().max() < 1e-10  # with what a higher sink would take


def test_spans_that_differ_from_example_to_example() -> None:
    q, k, _ = inputs(2, heads=3, queries=8, keys=8)
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2]])
    names = {name: ids == i for i, name in enumerate(("system", "document", "question"))}
    found = sl.look(q, k, mask=sl.causal()).spans(names, {"question": names["question"]})
    for b in range(2):
        one = {name: where[b] for name, where in names.items()}
        alone = sl.look(q[b], k[b], mask=sl.causal()).spans(one, {"question": one["question"]})
        torch.testing.assert_close(found.table[b], alone.table)
    torch.testing.assert_close(found.table.sum(-1), torch.ones_like(found.table[..., 0]))
    assert (found.table[..., -1] == 0).all()


def test_long_maps_are_summed_map_by_map() -> None:
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=400, keys=300, dtype=torch.float32)
    sight = sl.look(q, k, v, mask=sl.causal())
    where = torch.arange(300) < torch.tensor([[100], [30]])
    table = sight.spans({"begin": where}, {"end": slice(390, 400)}, of="norms", reduce="sum").table
    cells = sight.tile(slice(390, 400), ALL, of="norms").sum(-2)
    want = torch.stack([(cells * where[:, None]).sum(-1), (cells * ~where[:, None]).sum(-1)], -1)
    torch.testing.assert_close(table[..., 0, :], want)


@pytest.mark.parametrize(
    "keys, words",
    [
        ({}, "keys are spans by name"),
        ([slice(0, 3)], "keys are spans by name"),
        ({"a": slice(0, 3), "b": [2, 4]}, "two spans of keys overlap"),
        ({"a": [6]}, "keys['a'] is not a part of the map"),
        ({"a": slice(0, 7)}, "not a part of the map"),
        ({"a": [0.5]}, "keys['a'] is not a part of the map"),
        ({"a": torch.ones(5, dtype=torch.bool)}, "keys['a'] is not a part of the map"),
        ({"a": object()}, "keys['a'] is not a part of the map"),
        ({"rest": [0]}, "the name 'rest' is taken"),
        ({"sink": [0]}, "the name 'sink' is taken"),
    ],
)
def test_spans_that_mean_nothing_are_refused(keys: Any, words: str) -> None:
    q, k, _ = inputs(queries=5, keys=6)
    with pytest.raises((InputError, InputTypeError)) as caught:
        sl.look(q, k).spans(keys)
    assert words in str(caught.value)


def test_spans_without_positions_and_unknown_reductions() -> None:
    q, k, _ = inputs(queries=5, keys=6)
    found = sl.look(q, k).spans({"none": [], "last": -1}, {"nobody": slice(0, 0)})
    assert (found.table == 0).all()
    with pytest.raises(InputError, match="unknown reduction"):
        sl.look(q, k).spans({"a": 0}, reduce="max")
    with pytest.raises(InputError) as caught:
        sl.look(q, k).spans({"one": [1, 2], "two": [-4]})
    assert caught.value.got == "2 in 'one' and in 'two'"


@settings(max_examples=60)
@given(cases(rarely=(), usually=(1, 5, 17, 64)), st.data())
def test_a_share_is_the_sum_of_what_the_rule_allows(case: Case, data: Any) -> None:
    m = whole_map(case)
    *_, queries, keys = m.weights.shape
    drawn = data.draw(masks(Sized(tuple(m.weights.shape[:-3]), m.weights.shape[-3], queries, keys)))
    sight = sl.look(case.q, case.k, **case.options)
    want = (m.weights * drawn.table).sum(-1)
    found = lift(sight.share(drawn.mask), case).double()
    assert found.shape == want.shape
    bound = (1e-12 if case.q.dtype == torch.float64 else 2e-5) * max(1.0, m.magnitude / 32)
    size = max(1.0, float(m.weights.sum(-1).max())) if m.weights.numel() else 1.0
    assert not want.numel() or float((found - want).abs().max()) <= bound * size


def test_shares_of_what_is_hidden_by_a_large_bias() -> None:
    """Of rows whose number is too large to be exact the rest is measured, over all their keys."""
    q, k, _ = inputs(queries=5, keys=6, dtype=torch.float32)
    bias = torch.zeros(5, 6)
    bias[2] = -1e9
    sight = sl.look(q, k, bias=bias)
    assert torch.equal(sight.share(sl.prefix(0) | ~sl.prefix(0)), sight.share(None))
    torch.testing.assert_close(sight.share(None), torch.ones(2, 5))
    torch.testing.assert_close(
        sight.share(sl.padding(torch.tensor([True] * 3 + [False] * 3)))[:, 2], torch.full((2,), 0.5)
    )
    with pytest.raises(InputError):
        sight.share(sl.dense(torch.ones(4, 6, dtype=torch.bool)))


def test_shares_at_a_length_whose_map_nobody_holds() -> None:
    """What a window and the first keys with it would keep of 16,384 tokens, of which the rule visits little."""
    n = 16_384
    q = torch.randn(1, n, 8, generator=generator(0))
    sight = sl.look(q, q, mask=sl.window(200))
    kept = sight.share(sl.window(64))
    torch.testing.assert_close(sight.share(sl.window(64) | sl.window(64)), kept)
    rows = sight.tile(slice(9_000, 9_004), slice(8_700, 9_004))
    near = sl.window(64).tile(slice(9_000, 9_004), slice(8_700, 9_004), n, n, torch.device("cpu"))
    torch.testing.assert_close(kept[:, 9_000:9_004], (rows * near).sum(-1))
