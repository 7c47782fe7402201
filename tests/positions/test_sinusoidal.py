from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError, InputTypeError
from sightline.positions import Sinusoidal


def table(positions: list[float], width: int, base: float = 10000.0) -> torch.Tensor:
    """The formula of the paper, number by number."""
    return torch.tensor(
        [
            [(math.cos if c % 2 else math.sin)(p / base ** ((c - c % 2) / width)) for c in range(width)]
            for p in positions
        ],
        dtype=torch.float64,
    )


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 12),
    start=st.integers(-5, 200_000),
    time=st.integers(0, 6),
    base=st.sampled_from([100.0, 10000.0]),
)
def test_is_the_formula_at_any_position(width: int, start: int, time: int, base: float) -> None:
    x = torch.ones(2, time, width, dtype=torch.float64)
    expected = x + table([start + t for t in range(time)], width, base).reshape(time, width)
    torch.testing.assert_close(Sinusoidal(width, base)(x, at=start), expected, rtol=0, atol=1e-9)


def test_a_step_is_a_slice_of_the_whole() -> None:
    x = torch.randn(2, 9, 8)
    whole = Sinusoidal(8)(x)
    for t in range(9):
        assert Sinusoidal(8)(x[:, t : t + 1], at=t).equal(whole[:, t : t + 1])


def test_positions_of_every_row() -> None:
    x = torch.randn(2, 3, 8)
    at = torch.tensor([[0, 1, 2], [5, 3, 9]])
    got = Sinusoidal(8)(x, at=at)
    assert got[0].equal(Sinusoidal(8)(x[0]))
    assert got[1].equal(Sinusoidal(8)(x[1], at=at[1]))
    torch.testing.assert_close(
        Sinusoidal(8)(x, at=torch.tensor([0.5, 1.5, 2.5])) - x, table([0.5, 1.5, 2.5], 8).float().expand(2, 3, 8)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_stays_and_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(2, 50, 8).to(dtype)
    got = Sinusoidal(8).to(dtype)(x)
    assert got.dtype == dtype
    expected = x.double() + table(list(range(50)), 8)
    # The sum is rounded to dtype (through float32 if that is narrower); the angle itself, below 50, in float64.
    eps = torch.finfo(dtype).eps / 2 + 2 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    torch.testing.assert_close(got.double(), expected, rtol=eps, atol=eps + 50 * torch.finfo(torch.float64).eps)


def test_gradient_goes_to_the_input() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    Sinusoidal(4)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.equal(torch.ones_like(x))


def test_bad_inputs() -> None:
    with pytest.raises(
        InputError,
        match=r"does not fit this Sinusoidal\n  expected: \[\*batch, time, 8\]\n  got: a tensor of shape \(2, 5, 6\)",
    ):
        Sinusoidal(8)(torch.zeros(2, 5, 6))
    with pytest.raises(InputError, match=r"try: add the missing axes"):
        Sinusoidal(8)(torch.zeros(8))
    with pytest.raises(InputTypeError, match="works on floating-point input"):
        Sinusoidal(8)(torch.zeros(2, 8, dtype=torch.long))
    with pytest.raises(InputTypeError, match="works on a tensor"):
        Sinusoidal(8)([[0.0] * 8])
    with pytest.raises(InputError, match="width is too small"):
        Sinusoidal(0)


def test_repr_says_how_it_was_made() -> None:
    assert repr(Sinusoidal(8)) == "Sinusoidal(8, base=10000.0)"
