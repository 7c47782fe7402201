"""Rows and columns: the sinusoid in two dimensions, for images and fields flattened to (batch, sequence, channel)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from sightline.errors import InputError
from sightline.positions.base import add, check_input, check_positions, positive, whole, wide
from sightline.positions.sinusoidal import waves

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Grid(nn.Module):
    """Adds the row's waves to the first half of the channels and the column's waves to the second half.

    `at` is None (the whole grid, row after row), or a tensor [*batch, time, 2] of (row, column), whole or in between.

    >>> field = torch.zeros(2, 3, 4, 8)  # [batch, rows, columns, width]
    >>> Grid(8, rows=3, columns=4)(field.flatten(1, 2)).shape
    torch.Size([2, 12, 8])
    """

    acts_on = "input"

    def __init__(self, width: int, rows: int, columns: int, base: float = 10000.0) -> None:
        super().__init__()
        self.width = whole("width", width, least=2)
        self.rows = whole("rows", rows)
        self.columns = whole("columns", columns)
        self.base = positive("base", base)
        if self.width % 2:
            raise InputError(
                "a grid needs an even width",
                expected="half of the channels for the row, half for the column",
                got=f"width={width}",
                hint=f"width={width + 1}",
            )

    def forward(
        self, x: Float[Tensor, "*batch time width"], at: Float[Tensor, "*batch time 2"] | None = None
    ) -> Float[Tensor, "*batch time width"]:
        *batch, time, width = check_input("Grid", x, f"[*batch, time, {self.width}]", self.width)
        if at is None:
            row, column = self._whole_grid(time, x.device)
        else:
            row, column = self._places(at, batch, time, x.device).to(wide(x.device)).unbind(-1)
        halves = waves(row, width // 2, self.base), waves(column, width // 2, self.base)
        return add(x, torch.cat(halves, dim=-1))

    def _whole_grid(self, time: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if time != self.rows * self.columns:
            raise InputError(
                "the input is not the whole grid",
                expected=f"time {self.rows * self.columns} = {self.rows} rows x {self.columns} columns",
                got=f"time {time}",
                hint="say where the tokens stand: at=[*batch, time, 2] of (row, column)",
            )
        cell = torch.arange(time, device=device)
        row = cell.div(self.columns, rounding_mode="floor")
        return row.to(wide(device)), (cell % self.columns).to(wide(device))

    def _places(self, at: object, batch: list[int], time: int, device: torch.device) -> Tensor:
        if not isinstance(at, torch.Tensor) and hasattr(at, "__index__"):
            raise InputError(
                "a grid has no single start",
                expected="at=None for the whole grid, or a tensor [*batch, time, 2] of (row, column)",
                got=f"at={at!r}",
                hint="at=torch.tensor([[row, column], ...])",
            )
        places = check_positions(at, batch, time, device, coordinates=2)
        last = torch.tensor((self.rows - 1, self.columns - 1), device=device)
        if not bool(((places >= 0) & (places <= last)).all()):
            raise InputError(
                "a place lies outside the grid",
                expected=f"rows 0 to {self.rows - 1} and columns 0 to {self.columns - 1}",
                got=f"rows {_range(places[..., 0])} and columns {_range(places[..., 1])}",
                hint="the order is (row, column); at.flip(-1) turns it round",
            )
        return places

    def extra_repr(self) -> str:
        return f"{self.width}, rows={self.rows}, columns={self.columns}, base={self.base}"


def _range(numbers: Tensor) -> str:
    return f"{numbers.min().item():g} to {numbers.max().item():g}"
