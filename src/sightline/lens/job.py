"""One pass over the map: what it is to compute, worked out before anything is."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sightline.lens import geometry
from sightline.lens.requests import Picture, Request, Top


class Weighted:
    """A request for `received` with a weight for every query; never the same as another."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights


class Job(NamedTuple):
    """What one pass has to find: names of row statistics, the pixels of pictures, and the rest."""

    rows: set[str]
    received: list[Request | Weighted]
    tops: list[Top]
    grids: dict[tuple, tuple[geometry.Axis, geometry.Axis]]
    pictures: list[Picture]
