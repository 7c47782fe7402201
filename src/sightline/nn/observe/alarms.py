"""Bounds that a head may cross while it is trained: each crossing is told once, until the head is back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sightline.errors import InputError
from sightline.nn.observe.record import Reading, Record

Bounds = Mapping[str, "tuple[float | None, float | None]"]

# A head that has collapsed onto one key, and scores as large as those from which QK-clip keeps them.
BOUNDS: dict[str, tuple[float | None, float | None]] = {"entropy": (0.01, None), "max_score": (None, 100.0)}


class Alarm(NamedTuple):
    """A number of a head that is beyond its bound, or not a number.

    >>> print(Alarm(50, "layers.3.self_attn", 7, "max_score", 512.0, 100.0))
    step 50: max_score of head 7 in layers.3.self_attn is 512, beyond 100
    """

    step: int
    module: str
    head: int
    what: str
    value: float
    bound: float

    def __str__(self) -> str:
        where = f"head {self.head}" + (f" in {self.module}" if self.module else "")
        return f"step {self.step}: {self.what} of {where} is {self.value:.4g}, beyond {self.bound:.4g}"


class Alarms:
    """What stands beyond its bound now.

    >>> import torch
    >>> alarms, calm, wild = Alarms({"max_score": (None, 9.0)}), Record(0), Record(1)
    >>> calm[""], wild[""] = (Reading(*torch.tensor([[1.0], [x], [0.5]])) for x in (8.0, 12.0))
    >>> [len(alarms.of(record)) for record in (calm, wild, wild, calm, wild)]
    [0, 1, 0, 0, 1]
    """

    def __init__(self, bounds: Bounds | None) -> None:
        self.bounds = BOUNDS if bounds is None else {name: _pair(name, pair) for name, pair in bounds.items()}
        self.standing: dict[tuple[str, int, str], Alarm] = {}

    def of(self, record: Record) -> list[Alarm]:
        """Those that are new with a record; a head that is back within its bounds can alarm again."""
        new = []
        for module, reading in record.items():
            for head, numbers in enumerate(reading.heads()):
                if numbers["max_score"] == -math.inf:
                    continue  # no query saw a key
                for what, (low, high) in self.bounds.items():
                    value, key = numbers[what], (module, head, what)
                    bound = _crossed(value, low, high)
                    if bound is None:
                        self.standing.pop(key, None)
                    elif key not in self.standing:
                        self.standing[key] = Alarm(record.step, module, head, what, value, bound)
                        new.append(self.standing[key])
        return new


def _crossed(value: float, low: float | None, high: float | None) -> float | None:
    if low is not None and (value < low or math.isnan(value)):
        return low
    if high is not None and (value > high or math.isnan(value)):
        return high
    return None


def _pair(name: str, pair: Any) -> tuple[float | None, float | None]:
    fits = isinstance(pair, tuple | list) and len(pair) == 2
    if name not in Reading._fields or not fits or not all(x is None or isinstance(x, int | float) for x in pair):
        raise InputError(
            "these are no bounds",
            expected=f"for any of {', '.join(Reading._fields)} a lowest and a highest number, None for none",
            got=f"{name!r}: {pair!r}",
            hint='bounds={"entropy": (0.01, None), "max_score": (None, 100.0)}',
        )
    return pair[0], pair[1]
