"""Numbers as a reader sees them: the same digits in the terminal and on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor


def number(x: float, digits: int | None = None) -> str:
    """A score: two decimals if not told otherwise; very large ones in powers of ten.

    >>> number(12.345), number(-0.001), number(-math.inf), number(123456.0), number(0.25, 4)
    ('12.35', '0.00', '-inf', '1.2e+05', '0.2500')
    """
    digits = 2 if digits is None else digits
    if not math.isfinite(x):
        return str(x)
    if abs(x) >= 1e5:
        return f"{x:.1e}"
    text = f"{x:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text  # no -0.00


def weight(x: float, digits: int | None = None) -> str:
    """A weight: three decimals, and what would round to nothing in powers of ten.

    >>> weight(0.8142), weight(0.00002), weight(0.0)
    ('0.814', '2e-05', '0.000')
    """
    digits = 3 if digits is None else digits
    return f"{x:.0e}" if 0 < abs(x) < 0.5 * 10**-digits else number(x, digits)


def vector(x: Tensor, count: int = 3, digits: int | None = None) -> str:
    """The first numbers of a vector.

    >>> import torch
    >>> vector(torch.tensor([0.3, 1.2, 2.2, 9.0]))
    '0.30 1.20 2.20 …'
    """
    numbers = " ".join(number(value, digits) for value in x[:count].tolist())
    return numbers if len(x) <= count else f"{numbers} …" if count else ""


def enough(many: Sequence[Tensor], digits: int | None) -> int | None:
    """As few decimals as show the vectors exactly, if that is fewer: 0.3 and not 0.3000.

    >>> import torch
    >>> (
    ...     enough([torch.tensor([0.3, 1.2])], 4),
    ...     enough([torch.tensor([0.3, 1.25])], 4),
    ...     enough([torch.tensor(1 / 3)], 4),
    ... )
    (1, 2, 4)
    """
    for fewer in range(1, digits or 0):
        if all(bool(((x - x.round(decimals=fewer)).abs() <= 1e-6 * x.abs()).all()) for x in many):
            return fewer
    return digits


def vectors(many: list[Tensor | None], count: int = 3, digits: int | None = None) -> list[str]:
    """The first numbers of several vectors, one below the other: each number has a column of its own.

    >>> import torch
    >>> vectors([torch.tensor([0.5, -11.25]), None, torch.tensor([1.0, 2.0])])
    ['0.50 -11.25', '', '1.00   2.00']
    """
    rows = [None if x is None else [number(value, digits) for value in x[:count].tolist()] for x in many]
    places = zip(*(row for row in rows if row), strict=False)
    widths = [max(map(len, place)) for place in places]
    return ["" if row is None else " ".join(map(str.rjust, row, widths)) for row in rows]
