"""How long and how wide: one budget for all rungs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sightline.lessons.ladder.rungs import Sizes
from sightline.positions.base import whole

EVALUATIONS = 12
CHECKPOINTS = 16


@dataclass(frozen=True)
class Settings:
    """The budget of a ladder. Every rung gets the same steps, the same batches, and the same learning rates.

    >>> Settings().characters  # that each rung reads
    2048000
    >>> Settings(steps=0)
    Traceback (most recent call last):
    ...
    sightline.errors.InputError: steps is too small
      expected: 1 or more
      got: 0
      try: steps=1
    """

    steps: int = 1000
    batch: int = 32
    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 4
    learning_rate: float = 3e-3
    sample: int = 240  # characters that each rung writes at the end
    seed: int = 0
    threads: int = 1  # the models are small: two threads gain little, and on a busy machine they wait for each other
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "width", "heads", "layers", "sample", "threads"):
            whole(name, getattr(self, name))
        whole("seed", self.seed, least=0)

    @property
    def characters(self) -> int:
        """How many characters a rung reads in training."""
        return self.steps * self.batch * self.context

    @property
    def sizes(self) -> Sizes:
        """The sizes of the models."""
        return Sizes(self.width, self.heads, self.layers)

    @property
    def evaluations(self) -> list[int]:
        """After which steps the held-out part is looked at: closer together at the start, where curves are steep.

        >>> Settings(steps=800).evaluations
        [6, 23, 50, 89, 139, 200, 273, 356, 450, 556, 673, 800]
        """
        return sorted({math.ceil(self.steps * (i / EVALUATIONS) ** 2) for i in range(1, EVALUATIONS + 1)})

    @property
    def stops(self) -> list[int]:
        """After which steps a checkpoint is written."""
        every = max(1, self.steps // CHECKPOINTS)
        return sorted({*self.evaluations, *range(every, self.steps, every)})

    def rate(self, step: int) -> float:
        """The learning rate of a step: up over the first twentieth, then half a cosine down to a twentieth.

        >>> settings = Settings(steps=800)
        >>> [round(settings.rate(step), 6) for step in (0, 39, 799)]
        [7.5e-05, 0.002983, 0.00015]
        """
        warm = max(1, self.steps // 20)
        fall = 0.05 + 0.95 * (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.learning_rate * fall * min(1.0, (step + 1) / warm)

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)


# Seconds instead of minutes: the same machinery on small sizes and the beginning of the text, for a first look.
QUICK_CHARACTERS = 40_000
QUICK = {"steps": 24, "batch": 8, "context": 32, "width": 16, "heads": 2, "layers": 2, "sample": 80}
