"""What every position scheme checks: the input it is given, and where its tokens stand."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from sightline.errors import InputError, InputTypeError
from sightline.shapes import as_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def whole(name: str, value: object, *, least: int = 1) -> int:
    """A size as a plain int, or an error that says which one is wrong.

    >>> whole("width", 8)
    8
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputTypeError(
            f"{name} must be a whole number", expected="int", got=repr(value), hint=f"int({name})"
        ) from None
    if number < least:
        raise InputError(f"{name} is too small", expected=f"{least} or more", got=number, hint=f"{name}={least}")
    return number


def positive(name: str, value: object) -> float:
    """A finite number above 0 as a float, or an error that says which one is wrong.

    >>> positive("base", 10000)
    10000.0
    """
    number = as_number(value)
    if number is None:
        raise InputTypeError(f"{name} must be a number", expected="float", got=repr(value), hint=f"{name}=10000.0")
    if not 0 < number < float("inf"):
        raise InputError(
            f"{name} must be positive", expected="a finite number above 0", got=value, hint=f"{name}=10000.0"
        )
    return number


def check_input(scheme: str, x: object, layout: str, size: int) -> torch.Size:
    """The shape of x, once it is a floating tensor of at least two axes, the last of the scheme's size.

    >>> check_input("Sinusoidal", torch.zeros(2, 5, 8), "[*batch, time, 8]", 8)
    torch.Size([2, 5, 8])
    """
    if not isinstance(x, torch.Tensor):
        raise InputTypeError(
            f"{scheme} works on a tensor",
            expected=f"torch.Tensor {layout}",
            got=type(x).__name__,
            hint="torch.as_tensor(x)",
        )
    if not x.dtype.is_floating_point:
        raise InputTypeError(
            f"{scheme} works on floating-point input",
            expected="float64, float32, float16 or bfloat16",
            got=x.dtype,
            hint="x.float(), or embed the tokens first",
        )
    if x.dim() < 2 or x.shape[-1] != size:
        hint = (
            "add the missing axes, e.g. x[None]"
            if x.dim() < 2
            else f"make it for the input: {scheme}({x.shape[-1]}, ...)"
        )
        raise InputError(
            f"the input does not fit this {scheme}",
            expected=layout,
            got=f"a tensor of shape {tuple(x.shape)}",
            hint=hint,
        )
    return x.shape


def check_positions(
    at: object, batch: Sequence[int], time: int, device: torch.device, *, coordinates: int = 0
) -> Tensor:
    """Check a tensor of positions: [*batch, time], or [*batch, time, coordinates] where a place has several.

    The batch axes may be left out or be 1; time may not, since one position for many tokens is never meant.

    >>> check_positions(torch.arange(5), (2,), 5, torch.device("cpu")).shape
    torch.Size([5])
    """
    tail = (time, coordinates) if coordinates else (time,)
    axes = "[*batch, time, 2]" if coordinates else "[*batch, time]"
    if not isinstance(at, torch.Tensor):
        kinds = "a tensor" if coordinates else "None, an int (where the positions start) or a tensor"
        raise InputTypeError(
            "at cannot be read as positions",
            expected=f"{kinds} {axes}",
            got=type(at).__name__,
            hint="torch.as_tensor(at)",
        )
    if at.dtype == torch.bool or at.is_complex():
        raise InputTypeError(
            "positions must be numbers",
            expected="integers or floats",
            got=at.dtype,
            hint="at.long(), if True and False are positions 1 and 0",
        )
    fits = at.dim() >= len(tail) and at.shape[at.dim() - len(tail) :] == tail
    if fits:
        try:
            fits = torch.broadcast_shapes(at.shape, (*batch, *tail)) == (*batch, *tail)
        except RuntimeError:
            fits = False
    if not fits:
        raise InputError(
            "the positions do not fit the input",
            expected=f"{axes}, here {(*batch, *tail)} or {tail}",
            got=f"at of shape {tuple(at.shape)}",
            hint="give every token of x one position",
        )
    if at.device != device:
        raise InputError("positions must be on the device of x", expected=device, got=at.device, hint="at.to(x.device)")
    return at


def start_or_positions(at: object, batch: Sequence[int], time: int, device: torch.device) -> int | Tensor:
    """Read `at` of a sequence scheme: a start (None is 0; a tensor without axes stays one), or checked positions.

    >>> start_or_positions(None, (2,), 5, torch.device("cpu"))
    0
    """
    if at is None:
        return 0
    if isinstance(at, torch.Tensor):
        if at.dim() == 0 and at.dtype != torch.bool and not at.is_complex() and at.device == device:
            return at
        return check_positions(at, batch, time, device)
    if isinstance(at, bool) or not hasattr(at, "__index__"):
        return check_positions(at, batch, time, device)  # raises, saying what `at` may be
    return operator.index(at)


def wide(device: torch.device) -> torch.dtype:
    """The dtype of angles: float64, since position 100,000 in float32 is already wrong in the third decimal.

    >>> wide(torch.device("cpu"))
    torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64  # Apple's devices have no float64


def spread(at: int | Tensor, time: int, device: torch.device) -> Tensor:
    """Positions as wide floats: a start is counted up over time, positions stay as they are.

    >>> spread(3, 4, torch.device("cpu"))
    tensor([3., 4., 5., 6.], dtype=torch.float64)
    """
    if isinstance(at, torch.Tensor) and at.dim():
        return at.to(wide(device))
    return torch.arange(time, device=device, dtype=wide(device)) + at


def add(x: Tensor, table: Tensor) -> Tensor:
    """x + table in the shape and dtype of x; half precision is rounded once, after the sum.

    >>> add(torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3, dtype=torch.float64)).dtype
    torch.float16
    """
    return (x + table.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)
