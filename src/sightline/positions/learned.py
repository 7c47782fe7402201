"""One learned vector for every position, added to the input, as in BERT and GPT-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from sightline.errors import InputError, InputTypeError
from sightline.positions.base import add, check_input, start_or_positions, whole

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Learned(nn.Module):
    """Adds row `position` of a learned table; the table ends at `length`, and so do the positions it knows.

    `at` is None (positions 0, 1, ...), an int (they start there), or a tensor [*batch, time] of integers.

    >>> Learned(8, length=512)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    >>> Learned(8, length=4)(torch.zeros(2, 5, 8))
    Traceback (most recent call last):
    ...
    sightline.errors.InputError: a position lies outside the learned table
      expected: positions 0 to 3 (length=4)
      got: positions 0 to 4
      try: a shorter input, or Learned(8, length=5) trained anew
    """

    acts_on = "input"

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.width = whole("width", width)
        self.length = whole("length", length)
        self.weight = nn.Parameter(torch.empty(self.length, self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew, small beside the embeddings it is added to."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "*batch time width"], at: int | Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "*batch time width"]:
        *batch, time, _width = check_input("Learned", x, f"[*batch, time, {self.width}]", self.width)
        where = start_or_positions(at, batch, time, x.device)
        if isinstance(where, torch.Tensor):
            if where.is_floating_point():
                raise InputTypeError(
                    "learned positions are rows of a table",
                    expected="integer positions",
                    got=where.dtype,
                    hint="at.long(), or Sinusoidal, which has values in between",
                )
            if where.dim() == 0:
                where = int(where)
        if not time:
            return x
        if isinstance(where, int):
            self._check(where, where + time - 1)
            return add(x, self.weight[where : where + time])
        if where.numel():
            self._check(int(where.min()), int(where.max()))
        return add(x, self.weight[where.long()])

    def _check(self, first: int, last: int) -> None:
        if first < 0 or last >= self.length:
            raise InputError(
                "a position lies outside the learned table",
                expected=f"positions 0 to {self.length - 1} (length={self.length})",
                got=f"positions {first} to {last}",
                hint=f"a shorter input, or Learned({self.width}, length={last + 1}) trained anew"
                if last >= self.length
                else "count positions from 0",
            )

    def extra_repr(self) -> str:
        return f"{self.width}, length={self.length}"
