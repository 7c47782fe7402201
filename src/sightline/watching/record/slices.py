"""Slices of one layer: maps that a module computes a few at a time, to save memory, as sliced diffusers do.

The maps of all texts and heads lie one after another in q and k. A call whose q and k begin in memory where those of
the call before ended has the next of them. Each slice is accounted for by itself, so that no more than the model's own
slice is in memory; the last one makes a layer of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.watching.intercept import active
from sightline.watching.record.account import Wanted, account, cells_for
from sightline.watching.record.batches import aside
from sightline.watching.record.layer import Arriving, Layer, Part
from sightline.watching.record.shares import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from sightline.watching.choose import HeadChoice
    from sightline.watching.intercept.looked import Looked
    from sightline.watching.record.folder import Writer
    from sightline.watching.record.to_cpu import Shipper
    from sightline.watching.seen import Seen

SLICED = "its attention is written by hand, in slices that do not make up all of its heads and texts"


class Slice(NamedTuple):
    """Some of the maps of a layer: how many texts and heads there are, and where in memory these begin and end."""

    batch: int
    heads: int
    starts: tuple
    ends: tuple


@dataclass
class Open:
    """The slices of a layer that have come."""

    ends: tuple = ()
    maps: int = 0
    found: list[dict[str, Tensor] | Arriving] = field(default_factory=list)


def slice_of(maps: int, batch: int, heads: int, q: Tensor | None, k: Tensor | None) -> Slice | None:
    """The place of so many maps among all, by their queries and keys `[maps, time, dim]`; None if it is not known."""
    if not 0 < maps < batch * heads or q is None or k is None:
        return None
    if any(x.dim() != 3 or x.shape[0] != maps for x in (q, k)):
        return None
    starts, ends = ((_place(q, at), _place(k, at)) for at in (0, maps))
    return Slice(batch, heads, starts, ends)


def _place(x: Tensor, at: int) -> tuple:
    return (x.untyped_storage().data_ptr(), x.storage_offset() + at * x.stride(0), x.shape[1:], x.stride())


class Slicing:
    """The part of a watch that puts slices together."""

    seen: Seen
    ship: Shipper
    wanted: Wanted
    writer: Writer | None
    heads: HeadChoice
    order: dict[str, int]
    passes: int
    note: Callable[[str, int, int], str]
    _is_followed: Callable[[str, tuple[int, ...]], bool]
    _note_joint: Callable[[str, int, int], None]

    def begin_slicing(self) -> None:
        self.slices: dict[str, Open] = {}

    def take_slice(self, module: nn.Module, name: str, looked: Looked) -> None:
        """A slice: its account, and that of the layer once all have come."""
        piece, s = looked.piece, looked.call.sizes
        assert piece is not None
        mine = self.slices.setdefault(name, Open())
        if mine.maps and mine.ends != piece.starts:
            mine = self.slices[name] = Open()  # what has come before is of no whole, and this may begin one
        cell = cells_for(piece.batch * piece.heads, s.queries, s.keys)
        with active.quiet(), aside():
            place = Place(0, 0, looked.first_query, cell, real=looked.real)
            mine.found.append(self.ship.send(account(looked.call, looked.row, self.wanted, place)))
        mine.ends, mine.maps = piece.ends, mine.maps + s.batch[0]
        if mine.maps == piece.batch * piece.heads:
            del self.slices[name]
            self._put_together(module, name, looked, mine.found, cell)

    def _put_together(self, module: nn.Module, name: str, looked: Looked, found: list, cell: tuple[int, int]) -> None:
        piece, s = looked.piece, looked.call.sizes
        assert piece is not None
        full = self.note(name, looked.first_query, s.keys)
        if not self._is_followed(full, (piece.batch,)) or full in self.seen._layers:
            return
        chosen = self.heads(name, piece.heads)
        kind = "cross" if looked.first_query < 0 else "self"
        layer = Layer(full, self.order[name], kind, type(module).__name__, chosen, self.wanted)
        heads = piece.heads if chosen is None else len(chosen)
        sizes = s._replace(batch=(piece.batch,), heads=heads, kv_heads=heads)
        call = looked.call.replace(q=None, k=None, v=None, mask=None, bias=None, sizes=sizes)
        arriving = Together(found, piece.batch, piece.heads, chosen)
        layer.parts.append(Part(call, 0, 0, s.keys, cell, arriving, self.passes))
        self.seen._layers[full] = layer
        self._note_joint(full, s.queries, s.keys)
        if self.writer is not None:
            self.writer.add(layer)

    def end_slices(self) -> list[str]:
        """A pass is over: the modules whose slices were not all of their maps."""
        left, self.slices = list(self.slices), {}
        return left


class Together:
    """The accounts of all slices, `[maps, 1, …]` each, as that of one layer."""

    def __init__(self, found: list, batch: int, heads: int, chosen: list[int] | None) -> None:
        self.found, self.shape, self.chosen = found, (batch, heads), chosen

    def result(self) -> dict[str, Tensor]:
        every: list[dict[str, Any]] = [one if isinstance(one, dict) else one.result() for one in self.found]
        names = dict.fromkeys(name for one in every for name in one)
        return {name: self._one(name, every) for name in names}

    def _one(self, name: str, every: list[dict[str, Tensor]]) -> Tensor:
        if name == "real":  # of texts, and said where some key is none
            lengths = [one["row"].shape[0] for one in every]
            queries = next(one[name].shape[-1] for one in every if name in one)
            rows = [one.get(name, torch.ones(n, queries, dtype=torch.bool)) for one, n in zip(every, lengths)]
            return torch.cat(rows).unflatten(0, self.shape).any(1)
        found = torch.cat([one[name] for one in every]).squeeze(1).unflatten(0, self.shape)
        return found if self.chosen is None else found[:, self.chosen]
