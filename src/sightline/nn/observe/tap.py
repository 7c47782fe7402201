"""Where a monitor listens: a switch in every module that attends, and what the module leaves there when it is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline import lens
from sightline.backends.streaming import transformed
from sightline.nn.observe.listener import is_for_gradients

STATS = ("entropy", "max_score", "received")


class Counted(NamedTuple):
    """The sums of one call over its batch and queries, from which the numbers of a reading are made."""

    entropy: Tensor  # [heads]: the mean over the rows that see a key
    max_score: Tensor  # [heads]
    received: Tensor  # [heads, keys]


class Kept(NamedTuple):
    """What a compiled call leaves: enough to count later."""

    q: Tensor
    k: Tensor
    options: dict[str, Any]
    autocast: torch.dtype | None


class Tap:
    """A switch that monitors turn, and the last call while it is on.

    `due` is all that a compiled graph looks at, so there are two graphs: one with the switch on, one with it off.
    Copies and pickles of a module get a new tap, which nobody listens to.
    """

    __slots__ = ("boxes", "due", "last")

    def __init__(self) -> None:
        self.due = False
        self.last: Counted | Kept | None = None
        self.boxes: dict[object, dict[Tap, Counted]] = {}  # of the monitors that are due

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        return Tap, ()

    def take(self, q: Tensor, k: Tensor, options: dict[str, Any]) -> None:
        """Note a call of the module, if it is one of training."""
        compiling = torch.compiler.is_compiling()
        if not (torch.is_grad_enabled() if compiling else is_for_gradients()) or transformed():
            return
        kind = q.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        kept = Kept(q.detach(), k.detach(), for_later(options), autocast)
        # A compiled graph hands out what is kept at its end, whole and unbroken; all else is counted at once.
        self.last = kept if compiling else count(kept)

    def hand_over(self) -> None:
        """Put the last call into the boxes of all monitors that wait for it."""
        if self.last is not None and self.boxes:
            counted = count(self.last) if isinstance(self.last, Kept) else self.last
            for box in self.boxes.values():
                box[self] = counted
        self.last = None

    def listen(self, owner: object, box: dict[Tap, Counted] | None) -> None:
        """Turn the switch on for an owner and its box, or off with None. It is on while it is for anyone."""
        if box is None:
            self.boxes.pop(owner, None)
        else:
            self.boxes[owner] = box
        self.due = bool(self.boxes)
        if not self.due:
            self.last = None


@torch.no_grad()
def count(kept: Kept) -> Counted:
    """The sums of a call, by one pass of the lens."""
    q, k, options, dtype = kept
    with torch.autocast(q.device.type, dtype=dtype, enabled=dtype is not None):
        return counted(lens.look(q, k, stats=STATS, **options))


def counted(sight: lens.Sight) -> Counted:
    """The sums of a sight that has been asked for `STATS`."""
    entropy, score = (x.movedim(-2, 0).flatten(1) for x in (sight.entropy, sight.max_score))  # [heads, all rows]
    received = sight.received()[None].flatten(0, -3).sum(0)
    if not score.numel():
        return Counted(score.new_zeros(len(score)), score.new_full((len(score),), -torch.inf), received)
    seen = (score != -torch.inf).sum(1)  # a row that sees nothing has entropy 0, which is no part of the mean
    return Counted(entropy.sum(1) / seen.clamp_min(1), score.amax(1), received)


class Taps:
    """The taps of Sightline's modules in a model, as one source of numbers."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.taps: dict[str, Tap] = {name: vars(module)["_tap"] for name, module in modules.items()}
        self.unseen: dict[str, str] = {}
        self._box: dict[Tap, Counted] = {}

    def listen(self, on: bool) -> None:
        self._box.clear()
        for tap in self.taps.values():
            tap.listen(self, self._box if on else None)

    def collect(self) -> dict[str, Counted]:
        for tap in self.taps.values():
            tap.hand_over()
        return {name: self._box[tap] for name, tap in self.taps.items() if tap in self._box}


def for_later(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an attention call for looking at it later.

    Dropout is no part of an account. What is learned is copied, because an optimizer changes it in place.
    """
    rest = {name: value for name, value in options.items() if name != "dropout"}
    for name in ("sinks", "bias"):
        value = rest.get(name)
        if isinstance(value, Tensor) and value.requires_grad:
            rest[name] = value.detach().clone()
    return rest
