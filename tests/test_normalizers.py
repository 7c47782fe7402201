from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline import normalizers
from sightline.errors import InputError, InputTypeError
from sightline.normalizers import NORMALIZERS, normalize

NAMES = ("softmax", "relu", "sigmoid", "uniform")


def by_hand(name: str, scores: list[float], visible: list[bool]) -> list[float]:
    """The table at the head of the module, one row, with Python's own numbers."""
    seen = [s for s, see in zip(scores, visible, strict=True) if see]
    total = sum(math.exp(s) for s in seen)
    rule = {
        "softmax": lambda s: math.exp(s) / total,
        "relu": lambda s: max(s, 0.0) / len(seen),
        "sigmoid": lambda s: 1 / (1 + math.exp(-(s - math.log(len(seen))))),
        "uniform": lambda s: 1 / len(seen),
    }[name]
    return [rule(s) if see else 0.0 for s, see in zip(scores, visible, strict=True)]


def test_there_are_four():
    assert tuple(NORMALIZERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), max_size=9))
def test_weights_are_what_the_table_says(name, row):
    scores, visible = [s for s, _ in row], [see for _, see in row]
    out = normalize(torch.tensor([scores], dtype=torch.float64), torch.tensor([visible], dtype=torch.bool), name)
    expected = torch.tensor([by_hand(name, scores, visible)], dtype=torch.float64)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_sees_nothing_has_no_weight(name):
    out = normalize(torch.randn(3, 4), torch.tensor([[True], [False], [True]]).expand(3, 4), name)
    assert out[1].tolist() == [0.0] * 4
    assert out.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "uniform"])
def test_rows_of_these_sum_to_one(name):
    visible = torch.rand(6, 9) < 0.6
    visible[:, 0] = True
    torch.testing.assert_close(normalize(torch.randn(6, 9), visible, name).sum(-1), torch.ones(6))


def test_a_sink_takes_weight_and_has_no_column():
    scores, sink = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    out = normalize(scores, torch.ones(5, 4, dtype=torch.bool), sink=sink)
    whole = torch.cat([scores, sink[:, None]], -1).softmax(-1)
    torch.testing.assert_close(out, whole[:, :4])
    assert (out.sum(-1) < 1).all()


def test_a_sink_of_minus_infinity_is_no_sink():
    scores, visible = torch.randn(2, 4), torch.tensor([[True] * 4, [False] * 4])
    with_sink = normalize(scores, visible, sink=torch.full((2,), -torch.inf))
    torch.testing.assert_close(with_sink, normalize(scores, visible))


@pytest.mark.parametrize("name", NAMES)
def test_the_slope_is_the_derivative_with_the_rows_number_held_fixed(name):
    rule = NORMALIZERS[name]
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    row = torch.rand(3, 1, dtype=torch.float64) + 2
    visible = torch.rand(3, 5) < 0.7
    weights = rule.weights(scores.masked_fill(~visible, -torch.inf), row, visible)
    expected = torch.zeros_like(scores)
    if weights.requires_grad:
        (expected,) = torch.autograd.grad(weights.sum(), scores)
    hidden = scores.detach().masked_fill(~visible, -torch.inf)
    slope = rule.slope(weights.detach(), hidden, row, visible)
    slope = torch.zeros_like(hidden) if slope is None else slope * visible
    torch.testing.assert_close(slope.to(expected.dtype), expected)


@pytest.mark.parametrize("name", NAMES)
def test_large_scores_do_not_overflow(name):
    out = normalize(torch.tensor([[1e4, -1e4, 0.0]]), torch.ones(1, 3, dtype=torch.bool), name)
    assert out.isfinite().all()


def test_an_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(InputError) as caught:
        normalizers.get("softmin")
    text = str(caught.value)
    for fact in ("unknown normalizer", "expected: one of softmax, relu, sigmoid, uniform", "got: 'softmin'", "try: "):
        assert fact in text


def test_a_normalizer_is_given_by_name():
    with pytest.raises(InputTypeError, match=r"given by name(.|\n)*expected: one of softmax(.|\n)*got: NoneType"):
        normalizers.get(None)
