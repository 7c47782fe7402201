"""What a sight says of itself, plain or kept: whoever shows one need not know which it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import sightline as sl
from cases import Case, cases
from lens_cases import whole_map
from sightline.errors import InputError
from sightline.lens.kept import KeptSight

EVERYTHING = slice(None), slice(None)
LEFT = torch.tensor([[False] * 3 + [True] * 8, [True] * 11])


def plain(**options: object) -> sl.Sight:
    torch.manual_seed(1)
    return sl.look(torch.randn(2, 4, 7, 8), torch.randn(2, 2, 11, 8), **options)  # type: ignore[arg-type]


def kept(sight: sl.Sight, with_qk: bool = True) -> KeptSight:
    call = sight.call if with_qk else sight.call.replace(q=None, k=None, v=None)
    return KeptSight(call, sight.row, sight.kept)


def test_its_call_is_what_was_asked_for() -> None:
    mask, sinks = sl.causal() & sl.padding(LEFT), torch.randn(4)
    sight = plain(mask=mask, scale=0.3, softcap=5.0, sinks=sinks)
    for one in (sight, kept(sight), sight.select(heads=[0, 1, 2, 3])):
        call = one.call
        assert str(one.mask) == str(call.mask) == str(mask)
        assert (call.scale, call.softcap, call.normalizer.name) == (0.3, 5.0, "softmax")
        assert torch.equal(call.sinks, sinks)
        assert one.has_qk
        assert one.has_cells
        assert one.mask_known
        assert one.row.shape == (2, 4, 7)
    assert plain().mask is None


def test_what_was_computed_can_be_read_and_not_written() -> None:
    sight = plain(stats=("entropy", sl.Top(3)))
    assert set(sight.kept) == {"entropy", sl.Top(3)}
    with pytest.raises(TypeError):
        sight.kept["entropy"] = 1  # type: ignore[index]
    copy = kept(sight)
    copy.prepare("received")
    assert "received" not in sight.kept, "each has its own"


def test_a_value_is_computed_once_and_found_again() -> None:
    sight = plain()
    picture = sl.Picture(3, 4, rows=slice(0, 7), columns=slice(2, None))
    first = sight.value(picture)
    assert sight.value(sl.Picture(3, 4, columns=slice(2, 11))) is first
    torch.testing.assert_close(first, sight.picture(columns=slice(2, 11), size=(3, 4)))
    keys, weights = sight.value(sl.Top(2))
    assert torch.equal(keys, sight.top(2).keys)
    assert torch.equal(weights, sight.top(2).weights)


def test_what_is_computed_for_somebody_else_is_kept_nowhere() -> None:
    for sight in (plain(), kept(plain())):
        found = sight.compute(["entropy", sl.Top(2)])
        assert not sight.kept
        assert torch.equal(found["entropy"], sight.entropy)


@given(cases(dtypes=(torch.float64,), rarely=()))
@settings(max_examples=60, deadline=None)
def test_scores_are_those_of_the_definition(case: Case) -> None:
    sight, want = sl.look(case.q, case.k, **case.options), whole_map(case).scores
    want = want[0] if case.q.dim() == 2 else want
    *_, queries, keys = sight.shape
    rows, columns = slice(queries // 3, queries), slice(0, keys - keys // 4)
    torch.testing.assert_close(sight.scores(rows, columns), want[..., rows, columns])


def test_scores_without_q_and_k_are_refused() -> None:
    whole = kept(plain(stats=(sl.Picture(cell=(1, 1), reduce="sum"),)), with_qk=False)
    assert not whole.has_qk
    assert whole.has_cells, "the map was kept cell by cell"
    torch.testing.assert_close(whole.tile(*EVERYTHING), plain().tile(*EVERYTHING))
    with pytest.raises(InputError, match="scores needs q and k"):
        whole.scores(0, 0)
    assert not kept(plain(stats="entropy"), with_qk=False).has_cells


@pytest.mark.parametrize("options", [{}, {"sinks": torch.ones(4)}, {"normalizer": "relu"}], ids=str)
def test_what_is_due_is_the_sum_of_the_weights(options: dict) -> None:
    mask = sl.causal() & ~sl.padding(torch.tensor([9, 3]))  # rows that see nothing
    sight = plain(mask=mask, **options)
    torch.testing.assert_close(sight.due, sight.tile(*EVERYTHING).sum(-1))
    assert (sight.due == 0).any()


def test_a_single_map_has_no_axis_of_heads() -> None:
    sight = sl.look(torch.randn(5, 8), torch.randn(7, 8))
    assert sight.due.shape == (5,)
    assert sight.scores(slice(1, 4), 2).shape == (3, 1)
    assert sight.row.shape == (1, 5)
