from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.positions import Rotary

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 8,
    "factor": 4.0,
}


def turned(row: list[float], position: float, base: float = 10000.0, interleaved: bool = False) -> list[float]:
    """One row of channels by complex numbers: each pair times e ** (i * angle)."""
    half = len(row) // 2
    result = [0.0] * len(row)
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        angle = position * base ** (-2 * i / len(row))
        z = complex(row[a], row[b]) * complex(math.cos(angle), math.sin(angle))
        result[a], result[b] = z.real, z.imag
    return result


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("interleaved", [False, True])
def test_is_a_product_of_complex_numbers(interleaved: bool) -> None:
    x = random(5, 8)
    expected = [turned(row, t, 500.0, interleaved) for t, row in enumerate(x.tolist())]
    got = Rotary(8, base=500.0, interleaved=interleaved)(x)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_default_is_rotate_half_of_llama() -> None:
    x = random(2, 3, 5, 8)
    angles = torch.arange(5)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = torch.cat((angles, angles), dim=-1)
    rotate_half = torch.cat((-x[..., 4:], x[..., :4]), dim=-1)
    torch.testing.assert_close(Rotary(8)(x), x * angles.cos() + rotate_half * angles.sin(), rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    i=st.integers(0, 100_000),
    j=st.integers(0, 100_000),
    shift=st.integers(-100_000, 1_000_000),
    interleaved=st.booleans(),
    rotary_dim=st.sampled_from([None, 2, 6, 8]),
)
def test_scores_depend_only_on_the_distance(
    i: int, j: int, shift: int, interleaved: bool, rotary_dim: int | None
) -> None:
    rotary = Rotary(8, interleaved=interleaved, rotary_dim=rotary_dim)
    q, k = random(2, 1, 8)
    here = rotary(q, at=i) @ rotary(k, at=j).T
    there = rotary(q, at=i + shift) @ rotary(k, at=j + shift).T
    torch.testing.assert_close(here, there, rtol=0, atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(position=st.floats(-1e6, 1e6), interleaved=st.booleans())
def test_lengths_stay(position: float, interleaved: bool) -> None:
    x = random(3, 1, 8)
    got = Rotary(8, interleaved=interleaved)(x, at=torch.tensor([position], dtype=torch.float64))
    torch.testing.assert_close(got.norm(dim=-1), x.norm(dim=-1))
    assert Rotary(8, interleaved=interleaved)(x, at=0).equal(x)


def test_only_the_first_channels_turn() -> None:
    x = random(3, 5, 8)
    got = Rotary(8, rotary_dim=4)(x)
    assert got[..., 4:].equal(x[..., 4:])
    assert got[..., :4].equal(Rotary(4)(x[..., :4]))
    assert Rotary(8, scaling={"rope_type": "default", "partial_rotary_factor": 0.5})(x).equal(got)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}])
def test_a_step_is_a_slice_of_the_whole(scaling: dict | None) -> None:
    x = random(2, 3, 9, 8, dtype=torch.float32)
    rotary = Rotary(8, scaling=scaling)
    for t in range(9):
        step = x[..., t : t + 1, :]
        assert rotary(step, at=t).equal(rotary(x)[..., t : t + 1, :])
        assert rotary(step, at=torch.tensor(t)).equal(rotary(x)[..., t : t + 1, :])
        assert rotary(step, at=torch.tensor([t])).equal(rotary(x)[..., t : t + 1, :])


@pytest.mark.parametrize("scaling", [None, DYNAMIC, LONGROPE])
def test_a_batch_of_positions_equals_its_members(scaling: dict | None) -> None:
    x = random(2, 3, 4, 8)
    at = torch.tensor([[0, 1, 2, 3], [20, 5, 6, 30]])
    rotary = Rotary(8, scaling=scaling)
    got = rotary(x, at=at)
    for b in range(2):
        torch.testing.assert_close(got[b], rotary(x[b], at=at[b]), rtol=0, atol=1e-14)
        for h in range(3):
            torch.testing.assert_close(got[b, h], rotary(x[b, h], at=at[b]), rtol=0, atol=1e-14)


def test_several_batch_axes() -> None:
    x = random(5, 2, 3, 4, 8)
    at = torch.arange(8).reshape(2, 4)
    assert Rotary(8)(x, at=at)[3].equal(Rotary(8)(x[3], at=at))
    assert Rotary(8)(x, at=at.expand(5, 2, 4)).equal(Rotary(8)(x, at=at))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_dtype_stays_and_is_rounded_once(dtype: torch.dtype, interleaved: bool) -> None:
    x = random(2, 3, 50, 8, dtype=dtype)
    got = Rotary(8, interleaved=interleaved)(x, at=100_000)
    assert got.dtype == dtype
    expected = Rotary(8, interleaved=interleaved)(x.double(), at=100_000)
    # Two products of at most |x| and their sum, each rounded in float32 at least, then once to dtype.
    eps = torch.finfo(dtype).eps / 2 + 4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    torch.testing.assert_close(got.double(), expected, rtol=eps, atol=eps * x.abs().max().item())


def test_a_cast_of_the_model_does_not_round_the_frequencies() -> None:
    x = random(2, 50, 8, dtype=torch.bfloat16)
    assert Rotary(8).bfloat16()(x, at=1000).equal(Rotary(8)(x, at=1000))
    assert copy.deepcopy(Rotary(8))(x).equal(Rotary(8)(x))
    assert Rotary(8).state_dict() == {}


def test_made_on_the_meta_device_it_works_elsewhere() -> None:
    with torch.device("meta"):
        rotary = Rotary(8)
    x = random(2, 5, 8)
    assert rotary(x).equal(Rotary(8)(x))
    assert rotary(x.to("meta")).shape == x.shape
    assert rotary(x).equal(Rotary(8)(x))


def test_gradient_turns_back() -> None:
    x = random(2, 5, 8).requires_grad_()
    upstream = random(2, 5, 8)
    Rotary(8)(x).backward(upstream)
    back = Rotary(8)(upstream, at=-torch.arange(5))
    torch.testing.assert_close(x.grad, back, rtol=0, atol=1e-12)


def test_no_time_is_no_position() -> None:
    for scaling in (None, DYNAMIC, LONGROPE):
        assert Rotary(8, scaling=scaling)(torch.zeros(2, 0, 8)).shape == (2, 0, 8)
        at = torch.zeros(0, dtype=torch.long)
        assert Rotary(8, scaling=scaling)(torch.zeros(2, 0, 8), at=at).shape == (2, 0, 8)


def test_rope_parameters_say_the_base_too() -> None:
    x = random(5, 8)
    told = Rotary(8, scaling={"rope_type": "default", "rope_theta": 500000.0})
    assert told.base == 500000.0
    assert told(x).equal(Rotary(8, base=500000.0)(x))
    assert Rotary(8, base=500000.0, scaling={"rope_theta": 500000.0})(x).equal(told(x))


def test_bad_inputs() -> None:
    with pytest.raises(
        InputError, match=r"does not fit this Rotary\n  expected: \[\*batch, heads, time, 8\]\n  got: .*\(2, 5, 6\)"
    ):
        Rotary(8)(torch.zeros(2, 5, 6))
    with pytest.raises(InputTypeError, match="works on floating-point input"):
        Rotary(8)(torch.zeros(5, 8, dtype=torch.int32))
    with pytest.raises(
        InputError, match=r"expected: \[\*batch, time\], here \(2, 5\) or \(5,\)\n  got: at of shape \(3, 5\)"
    ):
        Rotary(8)(torch.zeros(2, 3, 5, 8), at=torch.zeros(3, 5))
    with pytest.raises(
        InputError, match=r"even rotary_dim of at most dim=8\n  got: rotary_dim=10\n  try: rotary_dim=8"
    ):
        Rotary(8, rotary_dim=10)
    with pytest.raises(InputError, match=r"got: rotary_dim=7\n  try: rotary_dim=6"):
        Rotary(7)
    with pytest.raises(InputError, match="rotary_dim is too small"):
        Rotary(8, rotary_dim=0)
    with pytest.raises(
        InputError, match=r"base is said twice\n  expected: base=500.0, as rope_theta in scaling says\n  got: base=20.0"
    ):
        Rotary(8, base=20.0, scaling={"rope_theta": 500.0})
    with pytest.raises(InputError, match="rotary_dim is said twice"):
        Rotary(8, rotary_dim=6, scaling={"rope_theta": 500.0, "partial_rotary_factor": 0.5})
    with pytest.raises(InputTypeError, match="scaling must be a dictionary"):
        Rotary(8, scaling="linear")  # type: ignore[arg-type]


def test_repr_says_how_it_was_made() -> None:
    assert repr(Rotary(8)) == "Rotary(8, base=10000.0, scaling=None, interleaved=False, rotary_dim=8)"


@pytest.mark.parametrize("at", [None, 7, torch.tensor(3), torch.arange(5) * 2, torch.arange(10).view(2, 5)], ids=str)
@pytest.mark.parametrize(
    "rotary",
    [Rotary(8), Rotary(8, interleaved=True), Rotary(8, rotary_dim=4), Rotary(8, scaling=DYNAMIC)],
    ids=str,
)
def test_turns_made_once_serve_queries_and_keys(rotary: Rotary, at: object) -> None:
    q, k = random(2, 6, 5, 8, dtype=torch.float32), random(2, 3, 5, 8, dtype=torch.float32)
    turns = rotary.turns(at, (2,), 5, q.device, q.dtype)
    assert torch.equal(rotary(q, at=turns), rotary(q, at=at))
    assert torch.equal(rotary(k, at=turns), rotary(k, at=at))


def test_turns_of_other_inputs_are_refused() -> None:
    turns = Rotary(8).turns(None, (), 1, torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match="turns of 5 tokens"):
        Rotary(8)(random(2, 5, 8), at=turns)
