"""Small calls wait for others of their kind, and are accounted for together.

The account of a small map is some dozen operations, whose start takes longer than they do. So the layers of a pass wait
until it ends, with copies of q and k, and the steps of a generation until there are some (`decoding_steps.py`). All
that are alike are one batch. Whoever asks for a layer's sight has what waits accounted for first.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.lens.select import select
from sightline.masks import Mask
from sightline.watching.record.account import account, cells_for, cells_of, is_small
from sightline.watching.record.batches import (
    CELLS,
    Waiting,
    account_of,
    alike,
    apart,
    aside,
    fits,
    is_plain,
    key_of,
    may_wait,
    split,
    stacked_sinks,
)
from sightline.watching.record.decoding_steps import Block, Sees, Step, differ, moved, sees
from sightline.watching.record.follow import marks
from sightline.watching.record.layer import Layer, Part
from sightline.watching.record.resting import Resting, may_rest
from sightline.watching.record.searching import MOVED
from sightline.watching.record.shares import Place

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.watcher import Watcher

# Steps of a generation that are accounted for at once.
STEPS = 32
# Bytes that may wait.
_BYTES = 64 << 20


class Gather:
    """What waits in one watch."""

    on = True  # off, every call is accounted for at once

    def __init__(self, watcher: Watcher) -> None:
        # Not in a circle: what a watch holds of a GPU is free as soon as nobody has it.
        self.watcher: Watcher = weakref.proxy(watcher)
        self.calls: list[Waiting] = []
        self.streams: set[torch.cuda.Stream] = set()  # that calls come from
        self.blocks: dict[str, Block] = {}
        self.bytes = 0  # of calls
        self.fresh = False  # whether steps came that nobody has compared with those before
        self.looks_closer = 0  # the pass whose calls do not wait, so that their rows are compared one by one
        self.lock = threading.RLock()
        self._seen: dict[tuple, tuple[Mask | None, Sees | None]] = {}  # masks of steps in this pass, and what they see
        self._same: dict[tuple[int, int], tuple[Tensor, Tensor, bool]] = {}

    def takes(self, call: Call, device: torch.device) -> bool:
        """Whether a call can wait."""
        if not self.on or self.watcher.wanted.pictures or self.watcher.writer is not None:
            return False
        if not is_plain(call) or not may_wait(call.mask):
            return False
        return fits(call, device) or (self.may_rest and may_rest(call))

    @property
    def may_rest(self) -> bool:
        """Whether a pass may be left as it is until somebody asks, or another one begins.

        One that goes on where another ended is compared with it now.
        """
        return not (self.watcher.deep or self.watcher.search or self.watcher.continues or self.blocks)

    @property
    def takes_steps(self) -> bool:
        return self.on and not self.watcher.deeper.apart

    def add(self, waiting: Waiting) -> None:
        with self.lock:
            self.calls.append(waiting)
            if waiting.call.q.is_cuda:
                self.streams.add(torch.cuda.current_stream(waiting.call.device))
            self.bytes += waiting.call.q.nbytes + waiting.call.k.nbytes
            waiting.layer.settle = self.flush
            if self.bytes > _BYTES:
                self._flush_calls()

    def step(self, layer: Layer, call: Call, row: Tensor, first_query: int, first_key: int) -> bool:
        """Take in a step of a generation, if it is one that can wait."""
        s, watcher = call.sizes, self.watcher
        end_key = first_key + s.keys
        block = self.blocks.get(layer.name)
        found = None
        if self.takes_steps and s.queries == 1 and layer.parts and layer.kind == "self" and first_query == end_key - 1:
            found = self._sees(call) if layer.parts[-1].call.sizes.batch == s.batch else None
        if found is None:
            if block is not None:
                self.flush_steps()
            return False
        with self.lock:
            with_ids = watcher.ids_fit(layer.name, s.batch[0], end_key)
            if block is not None and not self._goes_on(block, call, found, first_key, with_ids):
                full = self._is_full(block, call)
                self.flush_steps()
                block = None
                if not full:
                    self.looks_closer = watcher.passes  # of another kind: perhaps of other sequences
            if self.looks_closer == watcher.passes:
                return False
            if block is None:
                if layer.parts[-1].end_key != end_key - 1 or layer.parts[-1].arriving is None:
                    return False  # not next to what is followed
                block = Block(layer, call, found, first_key, with_ids)
                if block.copied is not None and sum(one.bytes for one in self.blocks.values()) + block.bytes > _BYTES:
                    return False
                self.blocks[layer.name] = block
            part = Part(block.call, layer.queries, first_key, end_key, (1, 1), None, watcher.passes)
            q, ends = call.q.clone(memory_format=torch.contiguous_format), call.k[..., -2:, :].clone()
            block.add(Step(part, q, row, ends, watcher.own_mask(call), found.real), call.k)
            self.fresh = True
            layer.parts.append(part)
            layer.settle = self.flush
        return True

    def goes_on(self, name: str, q: Tensor, k: Tensor, row: Tensor, scale: float | None) -> bool:
        """Take in a step without a mask that goes on where the last one was, as most do. Whether it does."""
        block = self.blocks.get(name)
        if block is None:
            return False
        with self.lock:
            keys, more = k.shape[-2], len(block.steps) + 1
            if not block.is_next(q, k, scale) or more > STEPS or not is_small(block.maps * more * keys):
                return False
            if not self.watcher.note_next(name, keys, block):
                return False
            if q.requires_grad or k.requires_grad:
                q, k = q.detach(), k.detach()
            last = block.steps[-1].part
            part = Part(block.call, last.row + 1, block.first_key, keys, (1, 1), None, self.watcher.passes)
            q, ends = q.clone(memory_format=torch.contiguous_format), k.narrow(-2, keys - 2, 2).clone()
            block.add(Step(part, q, row, ends, None, None), k)
            self.fresh = True
            block.layer.parts.append(part)
        return True

    def _sees(self, call: Call) -> Sees | None:
        """What a step sees; None if it cannot wait. Layers share their masks, so that is known for the next ones."""
        s = call.sizes
        if not is_plain(call) or s.keys < 2 or not is_small(cells_of(call)) or call.k.device.type not in CELLS:
            return None
        if self.watcher.wanted.pictures or self.watcher.search:
            return None
        key = (key_of(call.mask), s.keys, call.k.device)
        if key not in self._seen:
            self._seen[key] = (call.mask, sees(self.watcher.own_mask(call), s.keys, call.k.device))
        return self._seen[key][1]

    @staticmethod
    def _is_full(block: Block, call: Call) -> bool:
        more = len(block.steps) + 1
        return more > STEPS or not is_small(cells_of(call) * more)

    def _goes_on(self, block: Block, call: Call, found: Sees, first_key: int, with_ids: bool) -> bool:
        if self._is_full(block, call) or not block.goes_on(call, found, first_key, with_ids):
            return False
        before, now = block.steps[-1].real, found.real
        if before is None or now is None:
            return True
        key = (id(before), id(now))
        if key not in self._same:
            self._same = {key: (before, now, torch.equal(before, now[:, :-1]))}
        return self._same[key][2]

    def end_pass(self, rest: bool = False) -> None:
        """A pass is over: its layers are accounted for, and steps if there are enough; with `rest` what may waits."""
        with self.lock:
            if rest and self.may_rest:
                with aside():  # a watch would hear where tensors are asked what they lie on
                    if all(may_rest(one.call) for one in self.calls):
                        return
            self._seen = {}
            if not self.calls and not self.fresh:
                return
            self._flush_calls()
            self._check_steps()
            held, most = 0, 0
            for block in self.blocks.values():
                steps = len(block.steps)
                held, most = held + block.own + steps * block.each, max(most, steps)
            if held > _BYTES or most >= STEPS:
                self.flush_steps()

    def flush(self) -> None:
        """Account for all that waits."""
        with self.lock:
            self._flush_calls()
            self.flush_steps()

    def leave(self) -> None:
        """The block is over: what need not be accounted for now is when somebody asks."""
        with self.lock:
            self.end_pass(rest=True)
            self.flush_steps()
            for one in self.calls:
                one.layer.settle = None
            with aside():
                Resting(self._current(), self.watcher.wanted, self.streams)
            self.calls, self.bytes = [], 0

    def _current(self) -> list[Waiting]:
        """The calls that wait, and are still a part of what was seen."""
        layers = self.watcher.seen._layers
        return [one for one in self.calls if layers.get(one.layer.name) is one.layer and _holds(one.layer, one.part)]

    def forget(self) -> None:
        """Let go of all that waits."""
        with self.lock:
            for layer in [*(one.layer for one in self.calls), *(block.layer for block in self.blocks.values())]:
                layer.settle = None
            self.calls, self.blocks, self.bytes, self._same, self._seen = [], {}, 0, {}, {}

    def _flush_calls(self) -> None:
        if not self.calls:
            return
        waiting, self.calls, self.bytes = self._current(), [], 0
        with aside():
            for group in alike(waiting):
                self._account(group)
        for one in waiting:
            if one.layer.name not in self.blocks:
                one.layer.settle = None

    def _account(self, group: list[Waiting]) -> None:
        first = group[0]
        found = account_of(group, self.watcher.wanted)
        if first.k is not None:
            known = marks(torch.cat([one.k for one in group if one.k is not None])).unflatten(0, (len(group), -1))
            for one, its in zip(group, known):
                self.watcher.follow.take(one.layer.name, its, one.part.first_key, one.layer.kind == "cross")
        sent = self.watcher.ship.send_all([each | one.more for each, one in zip(found, group)])
        for one, arriving in zip(group, sent):
            one.part.arriving = arriving

    def _check_steps(self) -> None:
        """Whether the caches went on in this pass; on a GPU that is asked when the steps are accounted for."""
        fresh = [block for block in self.blocks.values() if block.steps and block.k is not block.new]
        self.fresh = False
        if fresh and not fresh[0].k.is_cuda:
            with aside():
                if moved(fresh):
                    self._apart(fresh)
                    return
        for block in fresh:
            block.k = block.new  # they hold all keys of those before

    def _apart(self, fresh: list[Block]) -> None:
        """The last step found other keys than the ones before it: these are accounted for, and it by itself."""
        last = [(block, *block.without_last()) for block in fresh]
        for name, block in list(self.blocks.items()):
            if not block.steps:
                block.layer.settle = None
                del self.blocks[name]
        self.flush_steps()
        for block, step, k in last:
            if _holds(block.layer, step.part):
                self._alone(block, step, k)

    def _alone(self, block: Block, step: Step, k: Tensor) -> None:
        layer, part, watcher = block.layer, step.part, self.watcher
        call = block.call.replace(q=step.q, k=k, v=k, mask=step.mask, sizes=block.call.sizes._replace(keys=k.shape[-2]))
        watcher.order_ids(layer, k, part.first_key)
        watcher.follow.step(layer.name, k, part.first_key, False)
        row = step.row
        if layer.heads is not None:
            call, row = select(call, row, heads=layer.heads)
        at = part.end_key - 1
        cell = cells_for(call.sizes.batch[0] * call.sizes.heads, part.row + 1, part.end_key)
        repeats = watcher.repeats_at(layer.name, at, part.end_key) if block.with_ids else None
        found = account(call, row, watcher.wanted, Place(part.row, part.first_key, at, cell, repeats))
        if watcher.keep:
            found |= {"q": call.q, "k": call.k[..., -1:, :].contiguous()}
        if call.sinks is not None:
            found["sinks"] = call.sinks
        mask = None if step.mask is None else step.mask.to("cpu", copy=True)
        part.call, part.cell = call.replace(q=None, k=None, v=None, mask=mask, sinks=None), cell
        part.arriving = watcher.ship.send(found)
        watcher.deeper.merged(layer, part, [part])

    def _prune(self) -> None:
        layers = self.watcher.seen._layers
        for name, block in list(self.blocks.items()):
            if layers.get(name) is not block.layer or not block.prune():
                block.layer.settle = None
                del self.blocks[name]

    def flush_steps(self) -> None:
        """Account for the steps that wait."""
        with self.lock:
            self._prune()
            self._check_steps()
            blocks, self.blocks = list(self.blocks.values()), {}
            if not blocks:
                return
            for block in blocks:
                block.layer.settle = None
            with aside():
                done = [self._together(group) for group in alike(blocks)]
                if any(bool(bad) for *_, bad in done):
                    # Which of the steps are of other keys is not known.
                    self.watcher._lose(min(block.turn for block in blocks), MOVED)
                    return
                masks: dict[int, tuple[Mask | None, Mask | None]] = {}
                for group, found, known, _ in done:
                    self._put(group, found, known, masks)

    def _together(self, group: list[Block]) -> tuple[list[Block], list[dict[str, Tensor]], Tensor, Tensor]:
        """The account of some blocks, the marks of their keys, and whether the keys are not what the steps saw."""
        first, count = group[0], len(group)
        n, s = len(first.steps), first.call.sizes
        steps = [step for block in group for step in block.steps]
        k = torch.stack([block.keys() for block in group])  # [layers, batch, kv_heads, keys, dim]
        known = marks(k.flatten(0, 1)).unflatten(0, (count, -1))
        bad = self._moved(group, k, known, apart(torch.cat([step.ends for step in steps], -2), count, -2))
        q = apart(torch.cat([step.q for step in steps], -2), count, -2)
        row = apart(torch.cat([step.row for step in steps], -1), count, -1)
        sizes = s._replace(batch=(count, *s.batch), queries=n, keys=k.shape[-2])
        sinks = stacked_sinks([block.call for block in group])
        call = first.call.replace(q=q, k=k, v=k, sizes=sizes, mask=first.mask(), sinks=sinks)
        if first.layer.heads is not None:
            call, row = select(call, row, heads=first.layer.heads)
        sizes = call.sizes
        part = first.steps[0].part
        cell = cells_for(s.batch[0] * sizes.heads, part.row + n, first.end_key)
        at = part.end_key - 1
        repeats = self.watcher.repeats_at(first.layer.name, at, first.end_key) if first.with_ids else None
        place = Place(part.row, first.first_key, at, cell, repeats, steps=True)
        found = account(call, row, self.watcher.wanted, place)
        bad = bad | found.pop("off").any()
        if self.watcher.keep:
            found |= {"q": call.q, "k": call.k[..., -n:, :].contiguous()}
        if sinks is not None and call.sinks is not None:
            found["sinks"] = call.sinks[:, 0]
        for block in group:
            block.cell = cell
            block.about = first.call.replace(sizes=sizes._replace(batch=s.batch), mask=None, sinks=None)
        return group, split(found, count), known, bad

    def _moved(self, group: list[Block], k: Tensor, known: Tensor, ends: Tensor) -> Tensor:
        n = len(group[0].steps)
        follow = self.watcher.follow
        ends = ends.unflatten(-2, (n, 2))  # [layers, batch, kv_heads, steps, 2, dim]
        bad = differ(ends[..., 1, :], k[..., -n:, :]).any() | differ(ends[..., 1:, 0, :], ends[..., :-1, 1, :]).any()
        for i, block in enumerate(group):
            changed = follow.changes(block.layer.name, known[i], block.first_key)
            bad = bad if changed is None else bad | changed
            later = block.later()
            if later is not None:
                bad = bad | (marks(later) != known[i][:, -later.shape[-2] :]).any()
        return bad

    def _put(self, group: list[Block], found: list, known: Tensor, masks: dict) -> None:
        """One part of all the steps takes their place in each layer."""
        for arriving, block, new in zip(self.watcher.ship.send_all(found), group, known):
            first, last = block.steps[0].part, block.steps[-1].part
            for step in block.steps:
                if id(step.mask) not in masks:
                    masks[id(step.mask)] = (step.mask, step.mask and step.mask.to("cpu", copy=True))
            pieces = block.pieces(masks)
            part = Part(
                block.about,
                first.row,
                block.first_key,
                last.end_key,
                block.cell,
                arriving,
                first.turn,
                pieces,
                last.turn,
            )
            self.watcher.deeper.merged(block.layer, part, [step.part for step in block.steps])
            parts, start = block.layer.parts, next(i for i, one in enumerate(block.layer.parts) if one is first)
            block.layer.parts = [*parts[:start], part, *parts[start + len(block.steps) :]]
            self.watcher.follow.known[block.layer.name] = (block.first_key, new)


def _holds(layer: Any, part: Part) -> bool:
    return any(one is part for one in layer.parts)
