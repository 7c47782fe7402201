"""One head equals the formula (S0.4, S2.3), and learns nothing but W_q, W_k, W_v (S3.4)."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline import nn as slnn


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_head_equals_the_formula(masked, batch):
    head = slnn.AttentionHead(12, head_size=5, masked=masked).double()
    x = torch.randn(*batch, 7, 12, dtype=torch.float64)
    q, k, v = (x @ w.weight.T for w in (head.query, head.key, head.value))
    scores = q @ k.mT / 5**0.5
    if masked:
        scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(head(x), scores.softmax(-1) @ v)


def test_only_the_three_matrices_are_learned():
    head = slnn.AttentionHead(12, head_size=5)
    assert {name: tuple(p.shape) for name, p in head.named_parameters()} == {
        "query.weight": (5, 12),
        "key.weight": (5, 12),
        "value.weight": (5, 12),
    }
    head(torch.randn(2, 7, 12)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in head.parameters())


def test_masked_head_does_not_see_the_future_and_bidirectional_does():
    x = torch.randn(2, 6, 12)
    changed = x.clone()
    changed[:, 4:] = torch.randn(2, 2, 12)
    for masked in (True, False):
        head = slnn.AttentionHead(12, head_size=4, masked=masked)
        same = torch.equal(head(x)[:, :4], head(changed)[:, :4])
        assert same == masked


@pytest.mark.parametrize("masked", [False, True])
def test_padding_of_a_batch_equals_its_members(masked):
    head = slnn.AttentionHead(12, head_size=4, masked=masked)
    x = torch.randn(2, 6, 12)
    out = head(x, mask=sl.padding([6, 4]))
    torch.testing.assert_close(out[1, :4], head(x[1, :4]))


def test_normalizer_is_handed_on():
    head = slnn.AttentionHead(12, head_size=4, masked=True, normalizer="uniform")
    x = torch.randn(2, 5, 12)
    average = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(head(x), average @ head.value(x))


def test_dropout_acts_in_training_only():
    head = slnn.AttentionHead(12, head_size=4, dropout=0.5)
    x = torch.randn(2, 6, 12)
    assert not torch.equal(head(x), head(x))
    head.eval()
    assert torch.equal(head(x), head(x))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: slnn.AttentionHead(0, 4), "width is too small"),
        (lambda: slnn.AttentionHead(8, 2.5), "head_size must be a whole number"),
        (lambda: slnn.AttentionHead(8, 4, dropout=1.0), "dropout must be a probability below 1"),
        (lambda: slnn.AttentionHead(8, 4, dropout="high"), "dropout must be a number"),
        (lambda: slnn.AttentionHead(8, 4, normalizer="hardmax"), "unknown normalizer"),
        (lambda: slnn.AttentionHead(8, 4)(torch.zeros(2, 3, 9)), r"expected: \[\*batch, time, 8\]\n  got: \(2, 3, 9\)"),
        (lambda: slnn.AttentionHead(8, 4)(torch.zeros(8)), r"x does not fit this AttentionHead"),
        (
            lambda: slnn.AttentionHead(8, 4)(torch.zeros(3, 8).long()),
            "must be floating point.*\n.*\n.*\n.*embed token ids",
        ),
        (lambda: slnn.AttentionHead(8, 4)([[1.0] * 8]), "x of AttentionHead must be a tensor"),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()
