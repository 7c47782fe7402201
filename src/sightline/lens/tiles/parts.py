"""What a walk gathers of the cells of a map beside keys, queries and pixels: spans, rules, and other readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.lens.job import Allowed, Between, Weighted
from sightline.lens.readings import SIGNED
from sightline.lens.requests import Top
from sightline.lens.tiles.accumulators import Accumulator, Largest, Received, Seen, Strongest
from sightline.masks import EMPTY, FULL

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.readings import Reader
    from sightline.masks import Mask


class Readings(Accumulator):
    """Shows tiles to others as their readings: each is made once, however many ask for it."""

    def __init__(self, reader: Reader, parts: Mapping[str, Sequence[Accumulator]]) -> None:
        self.reader, self.parts = reader, parts

    def band(self, rows: slice) -> None:
        self.reader.band(rows)

    def add(self, tile: Seen) -> None:
        for of, parts in self.parts.items():
            cells = tile if of == "weights" else tile._replace(weights=self.reader.cells(of, tile))
            for part in parts:
                part.add(cells)


class SpanSums(Accumulator):
    """The sums of the cells between spans of queries and spans of keys."""

    def __init__(self, call: Call, spans: Between) -> None:
        s = call.sizes
        self.keys, self.queries = spans.keys, spans.queries
        shape = (*s.batch, s.heads, self.queries.shape[-2], self.keys.shape[-1])
        # Many small numbers are added to one.
        self.table = torch.zeros(shape, dtype=torch.float64, device=call.device)

    def add(self, tile: Seen) -> None:
        by_row = tile.weights @ self.keys[..., tile.columns, :].to(tile.weights.dtype)
        self.table += self.queries[..., tile.rows].double() @ by_row.double()

    def result(self) -> Tensor:
        return self.table


class Share(Accumulator):
    """Per row: the sum of the weights of those keys that a rule allows."""

    def __init__(self, call: Call, rule: Mask) -> None:
        s = call.sizes
        self.call, self.rule = call, rule
        self.total = torch.zeros(*s.batch, s.heads, s.queries, dtype=call.compute_dtype, device=call.device)

    def add(self, tile: Seen) -> None:
        s, (rows, columns) = self.call.sizes, (tile.rows, tile.columns)
        kind = self.rule.kinds(
            np.array([rows.start, rows.stop]), np.array([columns.start, columns.stop]), s.queries, s.keys
        ).item()
        if kind == EMPTY:
            return
        weights = tile.weights
        if kind != FULL:
            weights = weights * self.rule.tile(rows, columns, s.queries, s.keys, weights.device)
        self.total[..., rows] += weights.sum(-1)

    def result(self) -> Tensor:
        return self.total


def gathers(call: Call, request: object) -> Accumulator:
    """What gathers the answer to a request about keys, queries or spans."""
    if isinstance(request, Top):
        return Strongest(call, request.n, request.of in SIGNED)
    if isinstance(request, Between):
        return SpanSums(call, request)
    if isinstance(request, Allowed):
        return Share(call, request.rule)
    weights = request.weights if isinstance(request, Weighted) else None
    reduce = getattr(request, "reduce", "sum")
    return Largest(call, weights) if reduce == "max" else Received(call, weights, reduce == "magnitude")
