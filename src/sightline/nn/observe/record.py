"""What a monitor has recorded: numbers for each head, as tensors, as text, and flat for any logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.nn.observe.tap import Counted


class Reading(NamedTuple):
    """What the heads of one module did in one step: float32 on the CPU, one number per head.

    As `Monitor.series` gives it, there is one row per record: `[records, heads]`.

    >>> reading = Reading(torch.tensor([1.5]), torch.tensor([4.0]), torch.tensor([0.25]))
    >>> reading.first_share
    tensor([0.2500])
    """

    entropy: Float[Tensor, "*records heads"]
    max_score: Float[Tensor, "*records heads"]
    first_share: Float[Tensor, "*records heads"]

    def heads(self) -> list[dict[str, float]]:
        """The numbers of each head by name.

        >>> Reading(torch.tensor([1.5]), torch.tensor([4.0]), torch.tensor([0.25])).heads()
        [{'entropy': 1.5, 'max_score': 4.0, 'first_share': 0.25}]
        """
        columns = (part.tolist() for part in self)
        return [dict(zip(self._fields, numbers, strict=True)) for numbers in zip(*columns, strict=True)]


class Record(dict[str, Reading]):
    """The readings of one step, by the name of the module; `step` counts from 0.

    `scalars()` has them flat for a logger, and `print(record)` as a table of text.

    >>> record = Record(200)
    >>> record["attention"] = Reading(torch.tensor([1.5]), torch.tensor([4.0]), torch.tensor([0.25]))
    >>> record.step, record.scalars()["attention/attention/entropy/head0"]
    (200, 1.5)
    >>> print(record)
    step 200   head  entropy  max_score  first_share
    attention     0     1.50       4.00         0.25
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def scalars(self, prefix: str = "attention") -> dict[str, float]:
        """Every number by a name of its own: `attention/<module>/<entropy, max_score or first_share>/head<number>`."""
        return {
            "/".join(filter(None, (prefix, name, what, f"head{head}"))): number
            for name, reading in self.items()
            for head, numbers in enumerate(reading.heads())
            for what, number in numbers.items()
        }

    def __repr__(self) -> str:
        return f"Record(step={self.step}, {', '.join(self) or 'empty'})"

    def __str__(self) -> str:
        rows = [[f"step {self.step}", "head", *Reading._fields]]
        for name, reading in self.items():
            for head, numbers in enumerate(reading.heads()):
                rows.append(
                    [
                        "" if head else name,
                        str(head),
                        *(f"{number:.4g}" if abs(number) >= 1e4 else f"{number:.2f}" for number in numbers.values()),
                    ]
                )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )


def table(records: list[Record]) -> list[dict[str, Any]]:
    """One row for each step, module and head."""
    return [
        {"step": record.step, "module": name, "head": head, **numbers}
        for record in records
        for name, reading in record.items()
        for head, numbers in enumerate(reading.heads())
    ]


def read(found: Mapping[str, Counted], first: int) -> dict[str, Reading]:
    """The numbers of a record, of what was counted on any device: one copy from each GPU, whatever the modules."""
    parts = {name: _numbers(counted, first) for name, counted in found.items()}
    readings: dict[str, Reading] = {}
    for device in dict.fromkeys(part.device for part in parts.values()):
        here = {name: part for name, part in parts.items() if part.device == device}
        together = torch.cat([part.flatten() for part in here.values()]).cpu()
        each = together.split([part.numel() for part in here.values()])
        readings |= {name: Reading(*part.view(3, -1).unbind()) for name, part in zip(here, each, strict=True)}
    return {name: readings[name] for name in found}


def _numbers(counted: Counted, first: int) -> Float[Tensor, "3 heads"]:
    part, total = counted.received[:, :first].sum(1), counted.received.sum(1)
    share = torch.where(total != 0, part / total, 0.0)
    return torch.stack([x.to(torch.float32) for x in (counted.entropy, counted.max_score, share)])
