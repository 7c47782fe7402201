"""How closely a watch listens: to every call of torch while a pass is new, then to the tables of transformers alone.

The function mode sees each call of torch, which costs a step of a generation more than its account does. A pass that
comes again and again, and that attends by transformers' functions alone, need not be heard call by call: these tell
the watch themselves. So the mode sleeps after the first passes of a kind, and wakes for the 4th, 8th, 16th and so on.
Between two steps of a generation it goes on sleeping: what a model's `generate` does there is a hundred calls.

What was learned in one watch of a model is known in the next, if nothing went unseen and the model is made of the same
modules. A layer that attended in a pass that was heard, and not in one that was not, is said to be unseen.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sightline import caches
from sightline.watching.intercept import active

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import WatchMode
    from sightline.watching.seen import Seen
    from sightline.watching.watcher import Watcher

# Passes of a kind that are heard call by call before the mode may sleep.
CLOSELY = 3


# Said of a layer that attended before, in a pass that was not heard call by call.
QUIET = "attended by transformers' functions before and not now; what it did instead was not looked at"


@dataclass
class Known:
    """What was learned of a model."""

    made_of: int  # its modules, as a number
    passes: dict[tuple, int] = field(default_factory=dict)  # of each kind
    layers: dict[tuple, set[str]] = field(default_factory=dict)  # that attended in a pass of a kind


_known: WeakKeyDictionary[nn.Module, Known] = caches.held("watching.passes", WeakKeyDictionary())


class Listening:
    """Whether the mode of one watch is awake."""

    def __init__(self, mode: WatchMode, model: nn.Module, modules: list[nn.Module], names: dict[int, str]) -> None:
        self.mode, self.model = mode, model
        made_of = hash((*names.items(), *(id(vars(module).get("forward")) for module in modules)))
        before = _known.get(model)
        fits = before is not None and before.made_of == made_of
        self.known = Known(made_of, dict(before.passes), dict(before.layers)) if before and fits else Known(made_of)
        self.always = False  # attention came from elsewhere than transformers' functions, or a mask was changed
        self.kind: tuple | None = None  # of this pass
        self.heard = True  # whether this pass is
        self.names: set[str] = set()  # of layers that attended in it
        self._asleep = ExitStack()
        self._stays = False  # whether the mode sleeps on until the next pass

    def begins(self, watcher: Watcher, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """A pass begins: the mode sleeps if many like it were heard."""
        self.kind, self.heard, self.names = None, True, set()
        if not self.always and active.watches() == [watcher]:
            kind = self.kind = _kind(watcher, module, args, kwargs)
            count = self.known.passes[kind] = self.known.passes.get(kind, 0) + 1
            self.heard = count <= CLOSELY or not count & (count - 1)
        if self.heard:
            self.wakes(watcher)
        elif self._stays:
            self._stays = False
            watcher.tables.clear()
        else:
            self._asleep.enter_context(active.asleep(self.mode))

    def wakes(self, watcher: Watcher) -> None:
        """A pass is heard, or none will come. What was written into tables of masks in the meantime is not known."""
        if self._stays:
            self._stays = False
            watcher.tables.clear()
            self._asleep.close()

    def ends_if_on(self, seen: Seen) -> None:
        """Another pass begins: one that nobody said was over is."""
        if not self._stays:
            self.ends(seen)

    def ends(self, seen: Seen, step: bool = False) -> None:
        """A pass is over; of a step of a generation one does not wake."""
        self._stays = step and not self.heard
        if not self._stays:
            self._asleep.close()
        if self.kind is None:
            return
        if self.heard:
            self.known.layers[self.kind] = self.names
        else:
            for name in self.known.layers.get(self.kind, set()) - self.names:
                seen._unseen.setdefault(name, QUIET)
        self.kind = None

    def learn(self, seen: Seen, complete: bool) -> None:
        """The block is left: what was heard holds for the next one, if it was all there is."""
        if complete and not self.always and not seen._unseen:
            _known[self.model] = self.known
        else:
            _known.pop(self.model, None)


def _kind(watcher: Watcher, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """What passes have in common that do the same: who was called, with one token or more, and how."""
    given = next(
        (x for x in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if isinstance(x, Tensor)), None
    )
    shape = None if given is None else (given.dim(), given.dim() > 1 and given.shape[1] == 1)
    config = getattr(watcher.model, "config", None)
    how = (module.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), watcher.compact)
    runs_on = getattr(config, "_attn_implementation", None)
    return (watcher.names.get(id(module)), shape, len(args), tuple(kwargs), how, runs_on)
