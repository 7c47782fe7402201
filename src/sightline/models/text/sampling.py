"""Which token comes next: the likeliest, or one drawn by chance among the likely ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.positions.base import whole
from sightline.shapes import as_number, as_whole

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Sampler:
    """Chooses a token of each row of logits.

    Logits are divided by the temperature, then only the `top_k` likeliest tokens are kept, and of these the fewest
    that together have probability `top_p`; one of them is drawn. Row i of a batch draws with seed + i, so that it
    draws what the same prompt alone draws with that seed.

    Args:
        rows: how many rows there are.
        temperature: 0 takes the likeliest token; 1 draws by the model's own probabilities, more flattens them.
        top_k: how many tokens are kept; all if not given.
        top_p: the probability that the kept tokens have together, at least; 1 keeps all.
        seed: where chance begins; drawn from torch's own generator if not given.

    >>> Sampler(1)(torch.tensor([[0.1, 2.0, 0.3]]))
    tensor([1])
    """

    def __init__(
        self,
        rows: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self.temperature = _between("temperature", temperature, 0.0, math.inf)
        self.top_k = None if top_k is None else whole("top_k", top_k)
        self.top_p = _between("top_p", top_p, 0.0, 1.0)
        if not self.top_p:
            raise InputError(
                "top_p keeps nothing", expected="above 0", got=top_p, hint="temperature=0 for the likeliest"
            )
        self.generators: list[torch.Generator] = []
        if self.temperature:
            start = int(torch.randint(1 << 62, ())) if seed is None else _seed(seed)
            self.generators = [torch.Generator().manual_seed((start + row) % (1 << 63)) for row in range(rows)]

    def __call__(self, logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
        """The chosen token of each row. Every call draws one number for each row, whatever becomes of it."""
        if not self.temperature:
            return logits.argmax(-1)
        draws = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in self.generators])
        scaled = logits.double() / self.temperature
        tokens = None
        if self.top_k is not None or self.top_p < 1:
            kept = scaled.shape[-1] if self.top_k is None else min(self.top_k, scaled.shape[-1])
            scaled, tokens = scaled.topk(kept)  # likeliest first
        chances = scaled.softmax(-1)
        if self.top_p < 1:
            before = chances.cumsum(-1) - chances
            chances = chances.masked_fill(before >= self.top_p, 0.0)
        reached = chances.cumsum(-1)
        target = draws.to(reached.device)[:, None] * reached[:, -1:]
        # Right of equal sums: a token without any chance is never chosen.
        place = torch.searchsorted(reached, target, right=True).clamp_max(reached.shape[-1] - 1)
        return (place if tokens is None else tokens.gather(-1, place)).squeeze(-1)


def _between(name: str, value: object, low: float, high: float) -> float:
    number = as_number(value)
    if number is None:
        raise InputTypeError(f"{name} must be a number", expected="float", got=type(value).__name__, hint=f"{name}=1.0")
    if not low <= number <= high or math.isinf(number):
        raise InputError(
            f"{name} is out of range",
            expected=f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}",
            got=value,
            hint=f"{name}=1.0",
        )
    return number


def _seed(seed: object) -> int:
    number = as_whole(seed)
    if number is None:
        raise InputTypeError("a seed must be a whole number", expected="int", got=type(seed).__name__, hint="seed=0")
    return number % (1 << 63)
