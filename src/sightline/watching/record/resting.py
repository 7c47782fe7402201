"""The short calls of a watch that is over: they are accounted for when somebody asks for one of them.

Who watches a short text waits for the model, and not for numbers that are perhaps never read. Until then copies of q
and k stay where they are, of all layers some 64 MiB at most. Nothing here knows the watch or its `Seen`, so that both
go when nobody has them; nor is anything the model's, which may change. On a GPU whoever asks may be on another stream
than the model was, and waits for that one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sightline.watching.record.account import cells_of
from sightline.watching.record.batches import Waiting, account_of, alike, aside
from sightline.watching.record.to_cpu import Shipper

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.record.account import Wanted

# Cells of a call's maps, over batch and heads, up to which it waits: 16 heads of 512 tokens.
_CELLS = 1 << 22


def may_rest(call: Call) -> bool:
    """Whether a call may wait until somebody asks."""
    return call.device.type in ("cpu", "cuda") and 0 < cells_of(call) <= _CELLS


class Resting:
    """Calls that wait; whoever asks for the sight of one of their layers has all of them accounted for."""

    def __init__(self, waiting: list[Waiting], wanted: Wanted, streams: Iterable[torch.cuda.Stream] = ()) -> None:
        self.wanted, self.lock = wanted, threading.Lock()
        self.calls = [_own(one) for one in waiting]
        # Where their tensors come from; those that are made here come from the stream that is on.
        devices = {one.call.device for one in waiting if one.call.device.type == "cuda"}
        self.streams = {*streams, *map(torch.cuda.current_stream, devices)}
        self.ready = [stream.record_event() for stream in self.streams]
        self.layers = [weakref.ref(one.layer) for one in waiting]
        for one in waiting:
            one.layer.settle = self.flush

    def flush(self) -> None:
        """Account for all of them, once."""
        with self.lock, aside():
            self._wait()
            ship = Shipper()
            for group in alike(self.calls):
                found = account_of(group, self.wanted)
                for one, arriving in zip(group, ship.send_all([x | one.more for x, one in zip(found, group)])):
                    one.part.arriving = arriving
            ship.close()
            self.calls, self.ready = [], []
            for layer in filter(None, (known() for known in self.layers)):
                layer.settle = None

    def _wait(self) -> None:
        """On a GPU: for the streams that these calls come from; their memory is not given away before it is read."""
        for event in self.ready:
            torch.cuda.current_stream(event.device).wait_event(event)
        for one in self.calls if self.ready else ():
            here = torch.cuda.current_stream(one.call.device)
            if here not in self.streams:
                masks = () if one.call.mask is None else one.call.mask.tensors()
                repeats = one.place.repeats
                of_place = (x for x in (one.place.real, None if repeats is None else repeats.ids) if x is not None)
                for x in (one.call.q, one.call.k, one.row, *one.more.values(), *of_place, *masks):
                    if x.device == here.device:
                        x.record_stream(here)


def _own(one: Waiting) -> Waiting:
    """The same without its layer, and with copies of what is still the model's."""
    real, sinks, mask = one.place.real, one.more.get("sinks"), one.call.mask
    call = one.call if sinks is None else one.call.replace(sinks=sinks)
    if mask is not None and mask.is_positional and any(True for _ in mask.tensors()):  # others were copied as they came
        call = call.replace(mask=mask.to(call.device, copy=True))
    place = one.place if real is None else replace(one.place, real=real.clone())
    return one._replace(layer=None, call=call, place=place, k=None)  # followed no more
