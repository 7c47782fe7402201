"""One layer of a run: the parts it was seen in, and the one sight they make.

A plain forward pass is one part. In generation the prompt is the first part and every step one more: its queries are
appended, what keys received is added up, and keys are extended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.backends.call import Call
from sightline.errors import InputError
from sightline.lens import Picture, Top
from sightline.lens.kept import KeptSight, gather_bins
from sightline.lens.levels import sink_takes
from sightline.lens.statistics import STATISTICS
from sightline.watching.record.account import Wanted, cells_for
from sightline.watching.record.beams import Orders, in_order
from sightline.watching.record.beside import beside, cat
from sightline.watching.record.joined_mask import mask_of

if TYPE_CHECKING:
    from sightline.masks import Mask


class Arriving(Protocol):
    """Statistics on their way to the CPU."""

    def result(self) -> dict[str, Tensor]: ...


class Piece(NamedTuple):
    """What one call saw: a mask for its queries, and its keys from first to end."""

    mask: Mask | None
    queries: int
    first_key: int
    end_key: int


@dataclass
class Part:
    """One call of a layer, or some steps: sizes, masks, and statistics on the CPU (or on their way there)."""

    call: Call  # without q and k
    row: int
    first_key: int
    end_key: int
    cell: tuple[int, int]  # queries and keys of a bin of its overview
    arriving: dict[str, Tensor] | Arriving | None  # None while it waits for others, to be accounted for with them
    turn: int = 0  # the pass it is of
    steps: list[Piece] | None = None  # of several passes, one query each
    last: int = 0  # the last of these passes
    extra: dict[str, Any] = field(default_factory=dict)  # beside the weights: v, grad, along, sizes, output, kept

    def __post_init__(self) -> None:
        if self.last < self.turn:
            self.last = self.turn

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and `pickle` take along: nothing that is on its way."""
        if self.arriving is not None:
            self.arriving = self.found
        self.along()
        return dict(vars(self))

    @property
    def found(self) -> dict[str, Tensor]:
        assert self.arriving is not None
        if not isinstance(self.arriving, dict):
            self.arriving = self.arriving.result()
        return self.arriving

    def along(self) -> Tensor | None:
        """g . o of its rows, on the CPU; None while no gradient was taken in. It may be on its way until it is read."""
        found = self.extra.get("along")
        if found is None or isinstance(found, Tensor):
            return found
        with torch.inference_mode(False):
            # What arrived holds all layers: one that goes takes its own memory along.
            here = found.result()["along"].clone()
        if self.extra.get("along") is found:  # and no other gradient has come meanwhile
            self.extra["along"] = here
        return here

    @property
    def pieces(self) -> list[Piece]:
        if self.steps is not None:
            return self.steps
        return [Piece(self.call.mask, self.call.sizes.queries, self.first_key, self.end_key)]


@dataclass
class Layer:
    """All that was seen of one layer."""

    name: str
    index: int
    kind: str  # "self" or "cross"
    module: str
    heads: list[int] | None
    wanted: Wanted
    parts: list[Part] = field(default_factory=list)
    on_disk: Callable[[], KeptSight] | None = None
    freed: int = 0  # parts whose q and k are on disk alone
    settle: Callable[[], object] | None = None  # what accounts for the parts that wait
    by_hand: bool = False  # attention that no function was called for
    stamp: int = 0  # how often something came that is no part
    orders: Orders | None = None  # where its rows are, if they have changed their places
    _sight: tuple[int, KeptSight] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and `pickle` take along: nothing that waits."""
        self.arrive()
        return dict(vars(self))

    def changed(self) -> None:
        """Something is known now that was not: the next sight has it."""
        self.stamp, self._sight = self.stamp + 1, None

    @property
    def state(self) -> str:
        """How far it has come: another text each time something is added."""
        return f"{len(self.parts)}-{self.stamp}" if self.stamp else str(len(self.parts))

    @property
    def queries(self) -> int:
        return self.parts[-1].row + self.parts[-1].call.sizes.queries

    @property
    def keys(self) -> int:
        return max(part.end_key for part in self.parts)

    @property
    def calls(self) -> int:
        return sum(len(part.pieces) for part in self.parts)

    def arrive(self) -> None:
        """Have all parts accounted for."""
        if self.settle is not None:
            self.settle()

    def sight(self) -> KeptSight:
        """The account of all parts, as one sight; made anew when the layer has grown."""
        self.arrive()
        if self._sight is not None and self._sight[0] == self.queries:
            return self._sight[1]
        sight = join(self._in_order())
        if not self.freed:
            self._sight = (self.queries, sight)
        return sight

    def rows(self, name: str) -> Tensor | None:
        """A number per row, such as `previous`, over all parts; None if some part has none."""
        self.arrive()
        parts = self._in_order().parts
        found = [part.found.get(name) for part in parts]
        if all(x is None for x in found):
            return None
        filled = [_missing(name, part) if x is None else x for x, part in zip(found, parts)]
        return cat(filled, -1)

    def _in_order(self) -> Layer:
        return self if self.orders is None else in_order(self, self.orders)

    def put_in_order(self) -> None:
        """Leave its rows where they are now."""
        if self.orders is not None:
            self.arrive()
            found = self._in_order()
            self.parts, self.on_disk, self.orders = found.parts, found.on_disk, None
            self.changed()

    def back(self, turn: int) -> bool:
        """Take back the parts of this pass and of those after it. Whether something is left."""
        self.parts, self._sight = [part for part in self.parts if part.last < turn], None
        read = self.on_disk
        if self.parts and read is not None and self.freed > len(self.parts):
            rows, keys = self.queries, self.keys
            self.on_disk, self.freed = lambda: _cut(read(), rows, keys), len(self.parts)
        return bool(self.parts)

    def forget(self, read: Callable[[], KeptSight]) -> None:
        """Leave q and k out of memory: they are on disk, and read from there when they are needed."""
        for part in self.parts:
            for name in ("q", "k") if part.arriving is not None else ():
                part.found.pop(name, None)
        self.on_disk, self.freed, self._sight = read, len(self.parts), None

    def forget_gradients(self) -> None:
        """The same of v and g, once both are on disk."""
        if self.on_disk is not None and self.freed == len(self.parts) and self.on_disk().extra.grad is not None:
            for part in self.parts:
                part.extra.pop("v", None)
                part.extra.pop("grad", None)
            self._sight = None


def _cut(stored: KeptSight, rows: int, keys: int) -> KeptSight:
    """What is on disk, with the first queries and keys alone."""
    q, k = stored.call.q[..., :rows, :], stored.call.k[..., :keys, :]
    return KeptSight(stored.call.replace(q=q, k=k, v=k), stored.row, {})


def _missing(name: str, part: Part) -> Tensor:
    s = part.call.sizes
    if name == "real":
        return torch.ones(*s.batch, s.queries, dtype=torch.bool)
    if name == "repeated":
        return torch.zeros(*s.batch, s.queries, dtype=torch.bool)
    return torch.zeros(*s.batch, s.heads, s.queries)


def join(layer: Layer) -> KeptSight:
    """One sight of all parts of a layer."""
    parts = layer.parts
    last = parts[-1].call
    s = last.sizes._replace(queries=layer.queries, keys=layer.keys)
    row = cat([part.found["row"] for part in parts], -1)
    kept: dict[Any, Any] = {}
    for name, statistic in STATISTICS.items():
        # In cross-attention a distance is counted from where the last query stands, which every step moves.
        moves = statistic.by_place and layer.kind == "cross" and len(parts) > 1
        if all(name in part.found for part in parts) and not moves:
            kept[name] = cat([part.found[name] for part in parts], -1)
    if all("received" in part.found for part in parts):
        kept["received"] = _received(parts, s.keys)
    for top in layer.wanted.tops:
        kept[top] = _top(parts, top)
    maps = s.batch[0] * s.heads
    cells = [cells_for(maps, s.queries, s.keys), *(part.cell for part in parts)]
    cell = max(height for height, _ in cells), max(width for _, width in cells)
    for reduce in layer.wanted.overview:
        kept[Picture(cell=cell, reduce=reduce)] = _overview(parts, reduce, s.queries, s.keys, cell)
    if len(parts) == 1:
        for i, picture in enumerate(layer.wanted.pictures):
            kept[_resolved(picture, s.queries, s.keys)] = parts[0].found[f"picture.{i}"]
        for request, value in parts[0].extra.get("kept", {}).items():
            kept[_resolved(request, s.queries, s.keys) if isinstance(request, Picture) else request] = value
    q = k = bias = None
    rest = parts[layer.freed :]
    if all("q" in part.found for part in rest):
        q, k = _queries_and_keys(layer, rest)
        bias = _bias(layer, s.queries, s.keys)
    sinks, lost = parts[-1].found.get("sinks"), None
    if any("lost" in part.found for part in parts):
        lost = cat([_lost(part) for part in parts], -1).to(row.dtype)
    call = last.replace(q=q, k=k, v=k, sizes=s, mask=mask_of(layer), bias=bias, sinks=sinks, lost=lost)
    return KeptSight(call, row, kept, extra=beside(layer))


def _lost(part: Part) -> Tensor:
    """What the rows of a part lack of what they are divided by: a sink of the model's is in it, as in every lost."""
    lost, sinks, row = (part.found.get(name) for name in ("lost", "sinks", "row"))
    assert row is not None
    if lost is not None:
        return lost
    return torch.zeros_like(row) if sinks is None else sink_takes(sinks, row)


def _resolved(picture: Picture, queries: int, keys: int) -> Picture:
    """A picture under the name a sight looks it up by: a rectangle that is all of the map has no bounds."""
    rows, columns = (
        None if pair in (None, (0, None), (0, length)) else slice(*pair)
        for pair, length in ((picture.rows, queries), (picture.columns, keys))
    )
    return Picture(
        *(picture.size or (512, 512)),
        cell=picture.cell,
        rows=rows,
        columns=columns,
        reduce=picture.reduce,
        visible_only=picture.visible_only,
        of=picture.of,
    )


def _received(parts: list[Part], keys: int) -> Tensor:
    first = parts[0].found["received"]
    total = torch.zeros(*first.shape[:-1], keys, dtype=first.dtype)
    for part in parts:
        total[..., part.first_key : part.end_key] += part.found["received"]
    return total


def _top(parts: list[Part], top: Top) -> tuple[Tensor, Tensor]:
    keys, weights = [], []
    for part in parts:
        found = part.found[f"top.{top.n}.keys"]
        keys.append(torch.where(found < 0, found, found + part.first_key))
        weights.append(part.found[f"top.{top.n}.weights"])
    return cat(keys, -2), cat(weights, -2)


def _overview(parts: list[Part], reduce: str, queries: int, keys: int, cell: tuple[int, int]) -> Tensor:
    """The grids of all parts in one grid: bins are powers of two, so finer ones fall into coarser ones whole."""
    name = f"overview.{reduce}"
    if len(parts) == 1 and not parts[0].first_key:
        return parts[0].found[name]
    height, width = cell
    first = parts[0].found[name]
    grid = torch.zeros(*first.shape[:-2], -(-queries // height), -(-keys // width), dtype=first.dtype)
    for part in parts:
        piece = part.found[name]
        own = part.cell
        rows = (np.arange(piece.shape[-2]) + part.row // own[0]) * own[0] // height
        columns = (np.arange(piece.shape[-1]) + part.first_key // own[1]) * own[1] // width
        if not len(rows) or not len(columns):
            continue
        for dim, bins in ((-1, columns), (-2, rows)):
            starts = np.flatnonzero(np.diff(bins, prepend=-1))
            if len(starts) < len(bins):
                piece = gather_bins(piece, dim, starts, reduce == "max")
        top, left = int(rows[0]), int(columns[0])
        target = grid[..., top : top + piece.shape[-2], left : left + piece.shape[-1]]
        if reduce == "max":
            torch.maximum(target, piece, out=target)
        else:
            target += piece
    return grid


def _queries_and_keys(layer: Layer, rest: list[Part]) -> tuple[Tensor, Tensor]:
    """q and k of all parts: the keys of the first, then the new ones of every step."""
    queries, keys = [part.found["q"] for part in rest], [part.found["k"] for part in rest]
    if layer.on_disk is not None:
        stored = layer.on_disk().call
        queries, keys = [stored.q, *queries], [stored.k, *keys]
    elif layer.parts[0].first_key:
        # Keys that a sliding cache had let go before the run began; no query sees them.
        gone = keys[0].new_zeros(*keys[0].shape[:-2], layer.parts[0].first_key, keys[0].shape[-1])
        keys = [gone, *keys]
    return cat(queries, -2), cat(keys, -2)


def _bias(layer: Layer, queries: int, keys: int) -> Any:
    biases = [part.call.bias for part in layer.parts]
    if all(bias is None for bias in biases):
        return None
    last = biases[-1]
    if len(biases) == 1 or (last is not None and not isinstance(last, Tensor) and last.grows):
        return last
    biases = [torch.zeros(1, 1, 1, 1) if bias is None else bias for bias in biases]
    if not all(isinstance(bias, Tensor) for bias in biases):
        raise InputError(
            f"the parts of {layer.name} have biases that cannot be joined",
            expected="tensors, or sl.alibi(heads)",
            got=sorted({type(bias).__name__ for bias in biases}),
            hint="keep_qk=False, or watch the prompt alone",
        )
    rows = []
    lead = torch.broadcast_shapes(*(bias.shape[:-2] for bias in biases))  # type: ignore[union-attr]
    for part, bias in zip(layer.parts, biases):
        full = bias.expand(*lead, part.call.sizes.queries, part.end_key - part.first_key)  # type: ignore[union-attr]
        rows.append(torch.nn.functional.pad(full, (part.first_key, keys - part.end_key)))
    return cat(rows, -2)
