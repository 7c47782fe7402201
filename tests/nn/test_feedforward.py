"""Plain and gated feed-forward networks equal their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline import nn as slnn

FORMULAS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_it_equals_the_formula(activation, gated, bias):
    net = slnn.FeedForward(6, 10, activation=activation, gated=gated, bias=bias).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    b = (lambda linear: linear.bias) if bias else (lambda linear: 0)
    up = x @ net.up.weight.T + b(net.up)
    act = FORMULAS[activation]
    hidden = act(x @ net.gate.weight.T + b(net.gate)) * up if gated else act(up)
    torch.testing.assert_close(net(x), hidden @ net.down.weight.T + b(net.down))
    assert all((name.endswith("bias")) <= bias for name, _ in net.named_parameters())


def test_hidden_is_four_times_the_width_by_default():
    assert slnn.FeedForward(6).up.weight.shape == (24, 6)


def test_every_token_for_itself():
    net = slnn.FeedForward(6, gated=True)
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(net(x)[:, 3:4], net(x[:, 3:4]))


def test_dropout_acts_in_training_only():
    net = slnn.FeedForward(6, dropout=0.5)
    x = torch.randn(2, 5, 6)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: slnn.FeedForward(6, activation="swish"),
            "unknown activation\n  expected: one of gelu, gelu_tanh, relu, silu",
        ),
        (lambda: slnn.FeedForward(6, 0), "hidden is too small"),
        (lambda: slnn.FeedForward(6)(torch.zeros(2, 7)), "x does not fit this FeedForward"),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()
