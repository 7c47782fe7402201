from __future__ import annotations

import pytest
import torch

from sightline.errors import InputError, InputTypeError
from sightline.positions.base import add, check_positions, positive, spread, start_or_positions, whole

CPU = torch.device("cpu")


def test_whole_takes_what_can_index() -> None:
    assert whole("rows", torch.tensor(3)) == 3
    with pytest.raises(InputTypeError, match=r"rows must be a whole number\n  expected: int\n  got: 2.5"):
        whole("rows", 2.5)
    with pytest.raises(InputTypeError, match="got: True"):
        whole("rows", True)
    with pytest.raises(InputError, match=r"rows is too small\n  expected: 1 or more\n  got: 0"):
        whole("rows", 0)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_positive_refuses_what_is_not(value: float) -> None:
    with pytest.raises(InputError, match="base must be positive"):
        positive("base", value)


def test_positive_wants_a_number() -> None:
    with pytest.raises(InputTypeError, match="base must be a number"):
        positive("base", "10000")


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 5), (3, 1, 5), (3, 2, 5)])
def test_positions_may_leave_batch_axes_out(shape: tuple[int, ...]) -> None:
    assert check_positions(torch.zeros(shape), (3, 2), 5, CPU).shape == shape


@pytest.mark.parametrize("shape", [(4,), (1,), (2, 1), (3, 5), (4, 3, 2, 5)])
def test_positions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InputError, match=r"the positions do not fit the input\n  expected: \[\*batch, time\], here \(3, 2, 5\)"
    ):
        check_positions(torch.zeros(shape), (3, 2), 5, CPU)


def test_positions_must_be_numbers_in_a_tensor() -> None:
    with pytest.raises(InputTypeError, match="positions must be numbers"):
        start_or_positions(torch.ones(5, dtype=torch.bool), (), 5, CPU)
    with pytest.raises(InputTypeError, match=r"at cannot be read as positions(.|\n)*try: torch.as_tensor\(at\)"):
        start_or_positions([0, 1, 2], (), 3, CPU)
    with pytest.raises(InputTypeError, match="got: bool"):
        start_or_positions(True, (), 3, CPU)
    with pytest.raises(InputTypeError, match="got: float"):
        start_or_positions(2.5, (), 3, CPU)


def test_positions_must_be_on_the_same_device() -> None:
    with pytest.raises(InputError, match="positions must be on the device of x"):
        check_positions(torch.zeros(5, device="meta"), (), 5, CPU)


def test_a_tensor_without_axes_is_a_start() -> None:
    at = start_or_positions(torch.tensor(7), (2,), 3, CPU)
    assert spread(at, 3, CPU).tolist() == [7.0, 8.0, 9.0]


def test_add_rounds_half_precision_once() -> None:
    # A little over half of bfloat16's step at 1 rounds up; rounded first, the little is lost and the tie goes to 1.
    x = torch.tensor([1.0], dtype=torch.bfloat16)
    table = torch.tensor([2**-8 + 2**-20], dtype=torch.float64)
    assert add(x, table).item() == 1 + 2**-7
    assert (x + table.bfloat16()).item() == 1
