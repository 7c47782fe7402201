"""What a walk gathers of the cells of a map beside keys, queries and pixels: spans, rules, and other readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.lens.cpu.top_keys import Best
from sightline.lens.job import Allowed, Between, Weighted
from sightline.lens.readings import SIGNED, memory_for
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
        # Those whose sizes without a sign are asked for more than once.
        self.sizes = {of for of, several in parts.items() if of in SIGNED and sum(map(_by_size, several)) > 1}
        self._memory: Tensor | None = None

    def band(self, rows: slice) -> None:
        self.reader.band(rows)
        for parts in self.parts.values():
            for part in parts:
                part.band(rows)

    def add(self, tile: Seen) -> None:
        for of, parts in self.parts.items():
            cells = tile if of == "weights" else tile._replace(weights=self.reader.cells(of, tile))
            if of in self.sizes:
                self._memory, out = memory_for(self._memory, tuple(cells.weights.shape), cells.weights)
                cells = cells._replace(magnitude=torch.abs(cells.weights, out=out))
            for part in parts:
                part.add(cells)


def _by_size(part: Accumulator) -> bool:
    return isinstance(part, Strongest | StrongestOfMap) or (isinstance(part, Received) and part.magnitude)


class StrongestOfMap(Accumulator):
    """Per row of one map on a CPU: the n largest cells and their keys, without sorting; see `Best`."""

    def __init__(self, call: Call, n: int, signed: bool) -> None:
        s = call.sizes
        self.n, self.signed = n, signed
        self.keys = torch.full((1, s.queries, n), -1, device="cpu")
        self.cells = torch.zeros(1, s.queries, n, dtype=call.compute_dtype, device="cpu")
        self._rows, self._best = slice(0, 0), Best(0, n, call.compute_dtype, signed)

    def band(self, rows: slice) -> None:
        self._put()
        self._rows, self._best = rows, Best(rows.stop - rows.start, self.n, self.cells.dtype, self.signed)

    def add(self, tile: Seen) -> None:
        sizes = tile.sizes if self.signed else tile.weights
        if tile.visible is not None:
            # Below what is absent, and all different: among equal ones a tile would have to be sorted.
            below = torch.arange(-self.n - 1, -self.n - 1 - sizes.shape[-1], -1, dtype=sizes.dtype, device="cpu")
            sizes = torch.where(tile.visible, sizes, below)
        self._best.add(sizes[0], tile.columns.start, tile.weights[0] if self.signed else None)

    def _put(self) -> None:
        self.keys[0, self._rows], self.cells[0, self._rows] = self._best.result()

    def result(self) -> tuple[Tensor, Tensor]:
        self._put()
        return self.keys, self.cells


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
        if request.of != "weights" and call.q.dim() == 3 and call.sizes.heads == 1 and call.device.type == "cpu":
            return StrongestOfMap(call, request.n, request.of in SIGNED)
        return Strongest(call, request.n, request.of in SIGNED)
    if isinstance(request, Between):
        return SpanSums(call, request)
    if isinstance(request, Allowed):
        return Share(call, request.rule)
    weights = request.weights if isinstance(request, Weighted) else None
    reduce = getattr(request, "reduce", "sum")
    return Largest(call, weights) if reduce == "max" else Received(call, weights, reduce == "magnitude")
