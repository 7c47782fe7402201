"""A watch during a search: rows that changed their places, and tokens that were taken back, are followed.

Beam search reorders the cache between two steps; whose row is whose is told by the keys (`beams.py`). Assisted decoding
reads several tokens at once and takes back those that were wrong: the last pass is held until the next one begins, and
if that begins inside it, what was taken back is left out of its account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.lens.unchanged import count
from sightline.masks import Mask, padding
from sightline.watching.intercept import active
from sightline.watching.intercept.searches import ASSISTED, BEAMS
from sightline.watching.record.account import Wanted, cells_for
from sightline.watching.record.batches import aside
from sightline.watching.record.beams import Fed, Orders, find_order, movable
from sightline.watching.record.layer import Layer, Part
from sightline.watching.record.shares import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from sightline.backends.call import Call
    from sightline.watching.intercept.looked import Looked
    from sightline.watching.record.follow import Follow
    from sightline.watching.record.gather import Gather
    from sightline.watching.record.repeated import Repeats
    from sightline.watching.tokens import Reader

MOVED = "its cache was reordered or changed between two steps"
CROPPED = "its cache was cropped between two steps"
BATCH = "the number of sequences changed between two steps"
OVER = "it went on after its search was over"
# How far the numbers of two rows that stand for the same sequence may be apart.
_NEAR = 1e-3


class Held(NamedTuple):
    """A call of the last pass, until it is known how much of it stays."""

    layer: Layer
    part: Part
    looked: Looked
    call: Call  # of the chosen heads
    row: Tensor
    versions: tuple[int | None, int | None]


class Searching:
    """The part of a watch that follows searches."""

    passes: int
    continues: bool
    search: str | None
    lost: str | None
    wanted: Wanted
    reader: Reader
    read: Tensor | None
    tokens: dict[int, int]
    ends: dict[str, tuple[int, int]]
    follow: Follow
    gather: Gather
    influence: Any
    repeats: Any
    _followed: Callable[[], list[Layer]]
    _lose: Callable[[int, str], None]
    _settle: Callable[..., None]
    _account: Callable[[Layer, Part, Looked, Call, Tensor, Place], None]
    _repeats: Callable[[str, Looked, int], Repeats | None]

    def begin_search(self) -> None:
        """A run begins."""
        self.orders = Orders()
        self.ordered = 0  # the pass whose ids were put in order
        self.resized = False  # whether the number of sequences changed in this pass
        self.over = False  # whether the search has returned
        self.held: dict[str, Held] = {}

    # Rows that change their places.

    def order_ids(self, layer: Layer, k: Tensor, first_key: int) -> None:
        """The first layer of a pass that goes on: tokens of rows that moved are put in order before they are used."""
        if self.ordered == self.passes or not self.continues or layer.kind == "cross":
            return
        known = self.follow.known.get(layer.name)
        if known is None or (k.is_cuda and self.search != BEAMS and not self.resized):
            return
        found = find_order([self.follow.pair(known, (first_key, self.follow.marks(k)))])
        if found is not None:
            self._order_ids(found[0])

    def _order_ids(self, order: list[int]) -> None:
        if self.ordered == self.passes or self.read is None or self.reader.ids is None:
            return
        self.ordered = self.passes
        here, length = self.reader.ids, self.read.shape[-1]
        new = here[:, length:] if here.shape[0] == self.read.shape[0] and here.shape[1] > length else here
        self.reader.ids, self.repeats = torch.cat([self.read[order], new], -1), None

    def settle_rows(self) -> None:
        """A pass is over: are its rows those that were there?"""
        before, moved = self.follow.before, self.follow.moved()
        self.follow.before = {}
        resized, self.resized = self.resized, False
        if self.lost is not None:
            return
        if before and (moved or resized or (self.search == BEAMS and self.continues)):
            order = self._find_order(before)
            if order is None:
                self._lose(self.passes, BATCH if resized else MOVED)
                return
            self._order_ids(order)
            self._move(order)
        elif resized or moved:
            self._lose(self.passes, BATCH if resized else MOVED)
        elif self.search == BEAMS and self.reader.ids is not None and self.passes not in self.orders.fed:
            start = self.tokens.get(self.passes, 0) if self.continues else 0
            self.orders.fed[self.passes] = Fed(self.reader.ids[:, start:], None)

    def _find_order(self, before: dict[str, tuple[int, Tensor]]) -> list[int] | None:
        """Which row each row was, if all layers agree and can be put in that order."""
        layers = [layer for layer in self._followed() if layer.parts[-1].last == self.passes]
        if self.influence is not None or not all(_is_movable(layer) for layer in layers):
            return None
        names = {layer.name for layer in layers}
        pairs = [self.follow.pair(before[name], self.follow.known[name]) for name in before if name in names]
        found = find_order(pairs)
        if found is None:
            return None
        order, options = found
        if self.search == BEAMS and not all(_are_alike(layer, self.passes, options) for layer in layers):
            return None
        return order

    def _move(self, order: list[int]) -> None:
        layers = [layer for layer in self._followed() if layer.parts[-1].last == self.passes]
        rows = next((part.call.sizes.batch[0] for layer in layers for part in layer.parts[:-1]), len(order))
        for layer in layers if self.orders.moves or order != list(range(rows)) else ():
            layer.orders = self.orders
            layer.changed()
        if order != list(range(rows)):
            self.orders.move(self.passes, order)
        if self.search == BEAMS and self.reader.ids is not None:
            self.orders.fed[self.passes] = Fed(self.reader.ids[:, self.tokens.get(self.passes, 0) :], order)

    def returned(self, what: str, sequences: Tensor) -> None:
        """A search is over: what it returned is what was read."""
        self._settle()
        if self.lost is not None or what != self.search:
            return
        if what == BEAMS:
            self._choose(sequences)
        elif self.reader.ids is not None and self.reader.ids.shape[0] == sequences.shape[0]:
            ids = self.reader.ids
            length = min(ids.shape[1], sequences.shape[1] - 1)
            same = (ids[:, :length] == sequences[:, :length].to(ids.device)).all(0).int().cumprod(0).sum()
            extra = ids.shape[1] - int(same)
            if extra and not self.crop(extra):
                self._lose(max(layer.parts[-1].last for layer in self._followed()), CROPPED)

    def _choose(self, sequences: Tensor) -> None:
        with aside():
            last = self.orders.choose(sequences)
        if last is None:
            return
        self.gather.flush()
        for layer in self._followed():
            if layer.parts[-1].turn in self.orders.fed:
                layer.back(last + 1)
                layer.orders = self.orders
        read = sum(fed.ids.shape[1] for turn, fed in self.orders.fed.items() if turn <= last)
        self.reader.ids = sequences[:, :read].clone()
        self.put_in_order()
        self.over = True

    def put_in_order(self) -> None:
        """Leave the rows where they are now."""
        for layer in self._followed():
            layer.put_in_order()

    # Tokens that are taken back.

    def hold(self, full: str, layer: Layer, part: Part, looked: Looked, call: Call, row: Tensor) -> None:
        """A call of a search that may take some of its tokens back."""
        if self.search != ASSISTED:
            return
        if self.held and next(iter(self.held.values())).part.turn != self.passes:
            self.held = {}
        self.held[full] = Held(layer, part, looked, call, row, (count(call.q), count(call.k)))

    def crop(self, tokens: int) -> bool:
        """Leave the last tokens of the last pass out of its account. Whether that can be done."""
        layers = self._followed()
        turn = max((layer.parts[-1].last for layer in layers), default=0)
        layers = [layer for layer in layers if layer.parts[-1].last == turn]
        held = [self.held.get(layer.name) for layer in layers]
        if not layers or self.influence is not None or self.wanted.readings:
            return False
        if not all(one is not None and one.part is one.layer.parts[-1] and _can_crop(one, tokens) for one in held):
            return False
        end = max(layer.parts[-1].end_key for layer in layers if layer.kind == "self")
        for full, (when, last) in self.ends.items():
            if when == turn and last == end:
                self.ends[full] = (when, end - tokens)
        if self.reader.ids is not None:
            self.reader.ids = self.read = self.reader.ids[:, : self.reader.ids.shape[1] - tokens]
            self.tokens[self.passes] = self.read.shape[1]
            self.repeats = None
        with active.quiet(), aside():
            for one in held:
                assert one is not None
                self._crop(one, tokens)
        return True

    def _crop(self, held: Held, tokens: int) -> None:
        layer, part, looked = held.layer, held.part, held.looked
        cross = layer.kind == "cross"
        queries = held.call.sizes.queries - tokens
        keys = held.call.sizes.keys - (0 if cross else tokens)
        call, whole = (_cropped(one, queries, keys) for one in (held.call, looked.call))
        row = held.row[..., :queries]
        looked = looked._replace(call=whole, row=looked.row[..., :queries])
        if looked.key is not None:
            looked = looked._replace(key=looked.key[..., :keys, :])
        if looked.real is not None:
            looked = looked._replace(real=looked.real[..., :keys])
        if not cross and layer.name in self.follow.known:
            first, marks = self.follow.known[layer.name]
            self.follow.known[layer.name] = first, marks[:, : marks.shape[1] - tokens]
        self.follow.before.pop(layer.name, None)
        if not layer.back(part.turn):
            layer.on_disk, layer.freed = None, 0
        extra = dict(part.extra)
        for name, axis in (("output", -2), *(() if cross else (("sizes", -1),))):
            if name in extra:
                extra[name] = extra[name].narrow(axis, 0, extra[name].shape[axis] - tokens)
        part.extra, part.end_key, part.arriving = extra, part.first_key + keys, None
        part.cell = cells_for(call.sizes.batch[0] * call.sizes.heads, part.row + queries, part.end_key)
        name = layer.name.partition("#")[0]
        repeats = self._repeats(name, looked, part.end_key)
        place = Place(part.row, part.first_key, looked.first_query, part.cell, repeats, real=looked.real)
        self._account(layer, part, looked, call, row, place)
        self.follow.before.pop(layer.name, None)
        layer.changed()


def _is_movable(layer: Layer) -> bool:
    for part in layer.parts:
        masks = [part.call.mask, part.call.bias, *(piece.mask for piece in part.steps or ())]
        if not all(map(movable, masks)):
            return False
    return True


def _are_alike(layer: Layer, turn: int, options: list[list[int]]) -> bool:
    """Whether rows that cannot be told apart by their keys have the same numbers, so that either will do."""
    groups = {tuple(rows) for rows in options if len(rows) > 1}
    if not groups:
        return True
    layer.arrive()
    orders = layer.orders or Orders()
    for part in layer.parts:
        if part.last >= turn:
            continue
        row, order = part.found["row"], orders.of(part.turn)
        row = row if order is None else row[order]
        for rows in groups:
            first = row[rows[0]]
            for other in rows[1:]:
                if not torch.allclose(first, row[other], rtol=_NEAR, atol=_NEAR, equal_nan=True):
                    return False
    return True


def _can_crop(held: Held, tokens: int) -> bool:
    call = held.call
    if tokens >= call.sizes.queries or held.versions != (count(call.q), count(call.k)) or None in held.versions:
        return False
    return all(_keeps(call_mask, call.sizes.keys) for call_mask in (call.mask, held.looked.call.mask)) and (
        call.bias is None or isinstance(call.bias, Tensor)
    )


def _keeps(mask: Mask | None, keys: int) -> bool:
    rules = [] if mask is None else mask.conjuncts()
    return all(rule.band is not None or rule.key_row(keys, torch.device("cpu")) is not None for rule in rules)


def _cropped(call: Call, queries: int, keys: int) -> Call:
    """A call without its last queries, and as many keys."""
    s, mask = call.sizes, None
    for rule in [] if call.mask is None else call.mask.conjuncts():
        row = None if rule.band is not None else rule.key_row(s.keys, call.device)
        rule = rule if row is None else padding(row[..., :keys].contiguous())
        mask = rule if mask is None else mask & rule
    bias = call.bias
    if isinstance(bias, Tensor):
        bias = bias[..., : queries if bias.shape[-2] > 1 else 1, : keys if bias.shape[-1] > 1 else 1]
    return call.replace(
        q=call.q[..., :queries, :],
        k=call.k[..., :keys, :],
        v=call.k[..., :keys, :],
        mask=mask,
        bias=bias,
        sizes=s._replace(queries=queries, keys=keys),
    )
