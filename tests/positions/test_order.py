"""What positions add: without them attention cannot tell one order of its input from another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline import positions

TIME, WIDTH = 12, 16
PLACES = torch.stack((torch.linspace(-80, 80, TIME), torch.linspace(0, 330, TIME)), dim=-1)


def attend(x: Tensor, turn: Callable[[Tensor], Tensor] = lambda t: t, bias: Tensor | None = None) -> Tensor:
    """Two heads of self-attention with fixed weights, in plain torch."""
    weights = torch.randn(3, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1), dtype=x.dtype) / WIDTH**0.5
    q, k, v = ((x @ w).unflatten(-1, (2, -1)).transpose(-2, -3) for w in weights)  # [2, time, 8]
    return F.scaled_dot_product_attention(turn(q)[None], turn(k)[None], v[None], attn_mask=bias)[0]


def adding(scheme: torch.nn.Module, **where: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: attend(scheme(x, **where))


def learned() -> positions.Learned:
    torch.manual_seed(0)
    scheme = positions.Learned(WIDTH, length=TIME).double()
    torch.nn.init.normal_(scheme.weight)
    return scheme


SCHEMES = {
    "Sinusoidal": adding(positions.Sinusoidal(WIDTH)),
    "Learned": adding(learned()),
    "Grid": adding(positions.Grid(WIDTH, rows=3, columns=4)),
    "LatLon": adding(positions.LatLon(WIDTH), at=PLACES),
    "Rotary": lambda x: attend(x, turn=positions.Rotary(WIDTH // 2)),
    "alibi": lambda x: attend(x, bias=positions.alibi(2).to_dense(TIME, TIME, dtype=x.dtype)),
}


@pytest.fixture
def x() -> Tensor:
    return torch.randn(TIME, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def shuffle() -> Tensor:
    return torch.randperm(TIME, generator=torch.Generator().manual_seed(2))


def test_without_positions_a_shuffled_input_gives_the_shuffled_output(x: Tensor, shuffle: Tensor) -> None:
    torch.testing.assert_close(attend(x[shuffle]), attend(x)[:, shuffle], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SCHEMES)
def test_with_positions_it_does_not(name: str, x: Tensor, shuffle: Tensor) -> None:
    output = SCHEMES[name]
    difference = (output(x[shuffle]) - output(x)[:, shuffle]).abs().max()
    assert difference > 1e-2


def test_every_scheme_says_what_it_acts_on() -> None:
    said = {name: getattr(positions, name).acts_on for name in positions.__all__ if name != "alibi"}
    assert said == {
        "Sinusoidal": "input",
        "Learned": "input",
        "Grid": "input",
        "LatLon": "input",
        "Rotary": "query_key",
        "Alibi": "score",
    }
