"""Sequences that change their places between two steps, as beams do: which is which, and the account in their order.

A search keeps the sequences that look best, one more than once if need be, and reorders its cache. The keys tell: each
new row of the cache begins as one of the rows before. What was seen is left as it was, and read in the order of today;
what the search returns at last is found by its tokens, among all that were tried.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.lens.kept import KeptSight
from sightline.masks import Mask, dense

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from sightline.watching.record.layer import Layer, Part

# What is beside the statistics of a part, by batch.
_EXTRA = ("v", "grad", "along", "sizes", "output")


class Fed(NamedTuple):
    """The tokens of a pass, and which row of the pass before each row goes on from (None: its own)."""

    ids: Int[Tensor, "rows tokens"]
    order: list[int] | None


class Orders:
    """Where the rows of every pass of a run are now."""

    def __init__(self) -> None:
        self.moves: list[tuple[int, list[int]]] = []  # before which pass, and the row that each row was before
        self.chosen: dict[int, list[int]] | None = None  # at last: the rows of each pass, -1 where there is none
        self.fed: dict[int, Fed] = {}  # by the number of the pass

    def move(self, turn: int, order: list[int]) -> None:
        self.moves.append((turn, order))

    def of(self, turn: int) -> list[int] | None:
        """The rows of a pass in the order of today; None if they are where they were."""
        if self.chosen is not None:
            return self.chosen.get(turn)
        later = [order for before, order in self.moves if before > turn]
        if not later:
            return None
        rows = later[-1]
        for order in reversed(later[:-1]):
            rows = [order[i] for i in rows]
        return rows

    def choose(self, sequences: Int[Tensor, "texts tokens"]) -> int | None:
        """Find the rows that read these sequences, as far as they were read. The last pass that counts, or None."""
        if not self.fed:
            return None
        sequences = sequences.cpu()
        turns = sorted(self.fed)
        matches: Bool[Tensor, "rows texts"] | None = None
        best: dict[int, tuple[int, int]] = {}  # of each text: the last pass that read it, and its row
        start = 0
        for turn in turns:
            ids, order = self.fed[turn]
            end = start + ids.shape[1]
            if end >= sequences.shape[1]:  # the last token is written, and not read
                break
            same = (ids.cpu()[:, None] == sequences[None, :, start:end]).all(-1)
            if matches is not None:
                same &= matches if order is None else matches[order]
            matches, start = same, end
            for text in range(len(sequences)):
                rows = same[:, text].nonzero()
                if len(rows):
                    best[text] = (turn, int(rows[0]))
        if len(best) < len(sequences):
            return None
        last = max(turn for turn, _ in best.values())
        chosen: dict[int, list[int]] = {turn: [] for turn in turns if turn <= last}
        for text in range(len(sequences)):
            end, row = best[text]
            for turn in reversed(turns):
                if turn > last:
                    continue
                if turn > end:
                    chosen[turn].append(-1)
                    continue
                chosen[turn].append(row)
                before = self.fed[turn].order
                row = row if before is None else before[row]
        self.chosen = chosen
        return last


def find_order(pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[int], list[list[int]]] | None:
    """Which row of before each row of now goes on from, by marks of its keys in some layers; itself where it can.

    With it all rows that each could have been. None if one is none of them.

    >>> old = torch.tensor([[1, 2], [3, 4]])
    >>> find_order([(old, torch.tensor([[3, 4, 7], [3, 4, 8], [1, 2, 9]]))])[0]
    [1, 1, 0]
    """
    could: Tensor | None = None
    for old, new in pairs:
        if new.shape[1] < old.shape[1]:
            return None
        same = (new[:, None, : old.shape[1]] == old[None]).all(-1).cpu()  # [rows now, rows before]
        if could is not None and could.shape != same.shape:
            return None
        could = same if could is None else could & same
    if could is None or not bool(could.any(1).all()):
        return None
    options = [row.nonzero().flatten().tolist() for row in could]
    return [i if i in rows else rows[0] for i, rows in enumerate(options)], options


def movable(thing: Any) -> bool:
    """Whether a mask or a bias can be had for some of the batch."""
    if isinstance(thing, Mask):
        return thing.for_examples(lambda x: x) is not None
    return thing is None or isinstance(thing, Tensor) or bool(getattr(thing, "grows", False))


def in_order(layer: Layer, orders: Orders) -> Layer:
    """A layer with its rows in the order of today."""
    first = orders.of(layer.parts[0].turn)
    parts = [taken(part, orders.of(part.turn)) for part in layer.parts]
    read = layer.on_disk
    on_disk = read if read is None or first is None else lambda: _of_sight(read(), first)
    return dataclasses.replace(layer, parts=parts, on_disk=on_disk, settle=None, orders=None, _sight=None)


def taken(part: Part, order: list[int] | None) -> Part:
    """A part with some of its rows, in this order; -1 is a row that sees nothing."""
    if order is None:
        return part
    batch = part.call.sizes.batch[0]
    gone = torch.tensor(order) < 0
    index = torch.tensor(order).clamp_min(0)

    def pick(x: Tensor) -> Tensor:
        return x.index_select(0, index.to(x.device)) if x.dim() and x.shape[0] == batch else x

    found = {name: x if name == "sinks" and x.dim() == 1 else pick(x) for name, x in part.found.items()}
    if bool(gone.any()):
        for name, x in found.items():
            if x.dim() and x.shape[0] == len(order) and name not in ("q", "k", "sinks"):
                found[name] = _blank(name, x, gone)
    part.along()  # it may be on its way
    extra: dict[str, Any] = {name: pick(x) if name in _EXTRA else x for name, x in part.extra.items()}
    if "kept" in extra:
        extra["kept"] = {
            request: tuple(map(pick, x)) if isinstance(x, tuple) else pick(x) for request, x in extra["kept"].items()
        }
    s = part.call.sizes

    def see(mask: Mask | None) -> Mask | None:
        found = _of_mask(mask, pick)
        if not bool(gone.any()):
            return found
        rest = dense((~gone)[:, None, None, None])
        return rest if found is None else found & rest

    bias = pick(part.call.bias) if isinstance(part.call.bias, Tensor) and part.call.bias.dim() == 4 else part.call.bias
    call = part.call.replace(sizes=s._replace(batch=(len(order),)), mask=see(part.call.mask), bias=bias)
    steps = part.steps
    if steps is not None:
        steps = [one._replace(mask=see(one.mask)) for one in steps]
    return dataclasses.replace(part, call=call, arriving=found, extra=extra, steps=steps)


def _blank(name: str, x: Tensor, gone: Tensor) -> Tensor:
    nothing = -torch.inf if name == "row" else -1 if name.endswith(".keys") else 0
    return x.masked_fill(gone.view(-1, *[1] * (x.dim() - 1)), nothing)


def _of_mask(mask: Mask | None, pick: Any) -> Mask | None:
    return None if mask is None else mask.for_examples(pick)


def _of_sight(stored: KeptSight, order: list[int]) -> KeptSight:
    """What is on disk, with its rows in another order."""
    index = torch.tensor(order).clamp_min(0)
    q, k = stored.call.q[index], stored.call.k[index]
    changed = {name: x[index] for name in ("v", "grad") if (x := getattr(stored.extra, name)) is not None}
    extra = stored.extra._replace(**changed) if changed else stored.extra
    return KeptSight(stored.call.replace(q=q, k=k, v=k), stored.row, {}, extra=extra)
