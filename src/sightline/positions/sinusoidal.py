"""Fixed waves added to the input, the positions of the first transformer (https://arxiv.org/abs/1706.03762)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from sightline.positions.base import add, check_input, positive, spread, start_or_positions, whole

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def waves(positions: Float[Tensor, "*batch time"], width: int, base: float) -> Float[Tensor, "*batch time width"]:
    """Sine in the even columns, cosine in the odd ones; the pair 2i, 2i + 1 turns by base ** (-2i / width) a step.

    >>> waves(torch.zeros(1), 4, 10000.0)
    tensor([[0., 1., 0., 1.]])
    """
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=positions.dtype)
    angles = positions[..., None] * base ** (-pairs / width)  # [*batch, time, pairs]
    # An odd width ends in a sine without its cosine.
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]


class Sinusoidal(nn.Module):
    """Adds sines and cosines of the position; nothing is learned, and there is no maximum length.

    `at` is None (positions 0, 1, ...), an int (they start there), or a tensor [*batch, time] of any numbers.

    >>> Sinusoidal(8)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    >>> Sinusoidal(8)(torch.zeros(1, 1, 8), at=4).equal(Sinusoidal(8)(torch.zeros(1, 5, 8))[:, 4:])
    True
    """

    acts_on = "input"

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.width = whole("width", width)
        self.base = positive("base", base)

    def forward(
        self, x: Float[Tensor, "*batch time width"], at: int | Float[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "*batch time width"]:
        *batch, time, width = check_input("Sinusoidal", x, f"[*batch, time, {self.width}]", self.width)
        positions = spread(start_or_positions(at, batch, time, x.device), time, x.device)
        return add(x, waves(positions, width, self.base))

    def extra_repr(self) -> str:
        return f"{self.width}, base={self.base}"
