from __future__ import annotations

import pytest
import torch

from sightline.errors import InputError, InputTypeError
from sightline.positions import Learned


@pytest.fixture
def scheme() -> Learned:
    torch.manual_seed(0)
    return Learned(4, length=6)


def test_adds_the_rows_of_its_table(scheme: Learned) -> None:
    x = torch.randn(2, 5, 4)
    assert scheme(x).equal(x + scheme.weight[:5])
    assert list(scheme.state_dict()) == ["weight"]
    assert scheme.weight.shape == (6, 4)


def test_is_small_at_the_start() -> None:
    torch.manual_seed(0)
    assert Learned(64, length=512).weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_a_step_is_a_slice_of_the_whole(scheme: Learned) -> None:
    x = torch.randn(2, 6, 4)
    whole = scheme(x)
    for t in range(6):
        assert scheme(x[:, t : t + 1], at=t).equal(whole[:, t : t + 1])
        assert scheme(x[:, t : t + 1], at=torch.tensor(t)).equal(whole[:, t : t + 1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_positions_of_every_row(scheme: Learned, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 4)
    at = torch.tensor([[0, 1, 2], [5, 3, 5]])
    assert scheme(x, at=at.to(dtype)).equal(x + scheme.weight[at])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_of_the_input_stays(scheme: Learned, dtype: torch.dtype) -> None:
    assert scheme(torch.zeros(2, 3, 4, dtype=dtype)).dtype == dtype
    assert scheme.to(dtype)(torch.zeros(2, 3, 4, dtype=dtype)).equal(scheme.weight[:3].expand(2, 3, 4))


def test_gradient_goes_to_the_rows_used(scheme: Learned) -> None:
    scheme(torch.zeros(2, 2, 4), at=torch.tensor([1, 4])).sum().backward()
    assert scheme.weight.grad is not None
    assert scheme.weight.grad[:, 0].tolist() == [0, 2, 0, 0, 2, 0]


def test_no_time_is_no_position(scheme: Learned) -> None:
    assert scheme(torch.zeros(2, 0, 4), at=6).shape == (2, 0, 4)


@pytest.mark.parametrize("time, at, got", [(7, None, "0 to 6"), (2, 5, "5 to 6"), (1, torch.tensor([6]), "6 to 6")])
def test_a_position_past_the_end_names_the_length(scheme: Learned, time: int, at: object, got: str) -> None:
    with pytest.raises(
        InputError, match=rf"expected: positions 0 to 5 \(length=6\)\n  got: positions {got}\n  try: .*length=7"
    ):
        scheme(torch.zeros(time, 4), at=at)


@pytest.mark.parametrize("at", [-1, torch.tensor([-1])])
def test_a_position_before_the_start(scheme: Learned, at: object) -> None:
    with pytest.raises(InputError, match=r"got: positions -1 to -1\n  try: count positions from 0"):
        scheme(torch.zeros(1, 4), at=at)


def test_positions_in_between_are_refused(scheme: Learned) -> None:
    with pytest.raises(InputTypeError, match=r"learned positions are rows of a table(.|\n)*got: torch.float32"):
        scheme(torch.zeros(1, 4), at=torch.tensor([0.5]))
