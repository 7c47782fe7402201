"""What every module checks: its sizes and names when it is made, its input when it is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from sightline.errors import InputError, InputTypeError
from sightline.shapes import as_number

if TYPE_CHECKING:
    from sightline.positions import Alibi


def check_sequence(module: nn.Module, name: str, x: object, width: int) -> None:
    """Raise unless x is a floating tensor `[*batch, time, width]`."""
    if isinstance(x, Tensor) and x.is_floating_point() and x.dim() >= 2 and x.shape[-1] == width:
        return
    who = type(module).__name__
    if not isinstance(x, Tensor):
        raise InputTypeError(
            f"{name} of {who} must be a tensor",
            expected="torch.Tensor",
            got=type(x).__name__,
            hint=f"torch.as_tensor({name})",
        )
    if not x.is_floating_point():
        raise InputTypeError(
            f"{name} of {who} must be floating point",
            expected="float64, float32, float16 or bfloat16",
            got=x.dtype,
            hint="embed token ids first, e.g. with torch.nn.Embedding",
        )
    if x.dim() < 2 or x.shape[-1] != width:
        raise InputError(
            f"{name} does not fit this {who}",
            expected=f"[*batch, time, {width}]",
            got=tuple(x.shape),
            hint=f"{name}[None], if that is one token" if x.dim() < 2 else f"project {name} to width {width}",
        )


def share(name: str, value: object) -> float:
    """A dropout as a float, or an error.

    >>> share("dropout", 0.1)
    0.1
    """
    number = as_number(value)
    if number is None:
        raise InputTypeError(f"{name} must be a number", expected="float", got=type(value).__name__, hint=f"{name}=0.1")
    if not 0 <= number < 1:
        raise InputError(
            f"{name} must be a probability below 1", expected="0 <= dropout < 1", got=value, hint=f"{name}=0.1"
        )
    return number


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Raise unless the name is one of the known ones.

    >>> check_name("norm", "rms", ("layer", "rms"))
    """
    known = tuple(known)
    if name not in known:
        raise InputError(
            f"unknown {what}", expected=f"one of {', '.join(known)}", got=repr(name), hint=f"{what}={known[0]!r}"
        )


def acts_on(positions: nn.Module | Alibi | None) -> str | None:
    """Where a position scheme acts: on the `"input"`, on `"query_key"` or on the `"score"`; None without a scheme."""
    if positions is None:
        return None
    where = getattr(positions, "acts_on", None)
    if where not in ("input", "query_key", "score"):
        raise InputTypeError(
            "this is not a position scheme",
            expected="one of sl.positions, or sl.alibi(heads)",
            got=type(positions).__name__,
            hint="positions=sl.positions.Rotary(head_dim)",
        )
    return str(where)


def check_positions_fit(positions: nn.Module | Alibi | None, heads: int, head_dim: int) -> None:
    """Raise unless a position scheme acts inside attention, and on heads of these sizes."""
    where = acts_on(positions)
    if where == "input":
        raise InputError(
            "this position scheme is added to the input",
            expected="one for queries and keys (Rotary) or for scores (alibi)",
            got=type(positions).__name__,
            hint="give it to Encoder or Decoder, or add it to x before the first layer",
        )
    name, size = ("heads", heads) if where == "score" else ("dim", head_dim)
    if getattr(positions, name, size) != size:
        raise InputError(
            "the positions do not fit the heads",
            expected=f"{name}={size}",
            got=f"{name}={getattr(positions, name)}",
            hint=f"sl.alibi({size})" if where == "score" else f"sl.positions.Rotary({size})",
        )
