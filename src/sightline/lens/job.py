"""One pass over the map: what it is to compute, worked out before anything is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sightline.lens import geometry
from sightline.lens.requests import Picture, Request, Top
from sightline.masks import Mask
from sightline.portable import one_member, some_heads


class Weighted:
    """A request for `received` with a weight for every query; never the same as another."""

    def __init__(self, weights: Tensor, of: str = "weights", reduce: str = "sum") -> None:
        self.weights, self.of, self.reduce = weights, of, reduce

    def select(self, member: tuple[int, ...], heads: Sequence[int]) -> Weighted:
        """The same of one member of the batch and some heads."""
        return Weighted(one_member(some_heads(self.weights, heads, 1), member, 2), self.of, self.reduce)


class Between:
    """A request for sums between spans of queries and spans of keys; never the same as another.

    `keys` `[*batch, 1, keys, spans]` and `queries` `[*batch, 1, spans, queries]` are 1 where a position is in a span;
    batch axes may be missing.
    """

    def __init__(self, keys: Tensor, queries: Tensor, of: str) -> None:
        self.keys, self.queries, self.of = keys, queries, of

    def select(self, member: tuple[int, ...], heads: Sequence[int]) -> Between:
        """The same of one member of the batch; all heads have the same spans."""
        return Between(one_member(self.keys, member, 3), one_member(self.queries, member, 3), self.of)


class Allowed:
    """A request for the sum over those keys of each row that a rule allows; never the same as another."""

    of = "weights"

    def __init__(self, rule: Mask) -> None:
        self.rule = rule

    def select(self, member: tuple[int, ...], heads: Sequence[int]) -> Allowed:
        """The same of one member of the batch and some heads."""
        return Allowed(self.rule.select(member, heads))


class Job(NamedTuple):
    """What one pass has to find: names of row statistics, the pixels of pictures, and the rest."""

    rows: set[str]
    received: list[Request | Weighted | Between | Allowed]
    tops: list[Top]
    grids: dict[tuple, tuple[geometry.Axis, geometry.Axis]]
    pictures: list[Picture]
