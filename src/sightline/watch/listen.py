"""How closely a watch listens: to every call of torch while a pass is new, then to the tables of transformers alone.

The function mode sees each call of torch, which costs a step of a generation more than its account does. A pass that
comes again and again, and that attends by transformers' functions alone, need not be heard call by call: these tell
the watch themselves. So the mode sleeps after the first passes of a kind, and wakes for the 4th, 8th, 16th and so on.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.watch import state

if TYPE_CHECKING:
    from sightline.watch.mode import WatchMode
    from sightline.watch.watcher import Watcher

# Passes of a kind that are heard call by call before the mode may sleep.
CLOSELY = 3


class Listening:
    """Whether the mode of one watch is awake."""

    def __init__(self, mode: WatchMode) -> None:
        self.mode = mode
        self.known: dict[tuple, int] = {}  # passes of each kind
        self.always = False  # attention came from elsewhere than transformers' functions, or a mask was changed
        self._asleep = ExitStack()

    def begins(self, watcher: Watcher, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """A pass begins: the mode sleeps if many like it were heard."""
        if self.always or state.watches() != [watcher]:
            return
        kind = _kind(module, args, kwargs)
        count = self.known[kind] = self.known.get(kind, 0) + 1
        if count > CLOSELY and count & (count - 1):
            self._asleep.enter_context(state.asleep(self.mode))

    def ends(self) -> None:
        self._asleep.close()


def _kind(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """What passes have in common that do the same: who was called, with how many tokens, and how."""
    given = next(
        (x for x in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if isinstance(x, Tensor)), None
    )
    shape = None if given is None else given.shape
    how = (module.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    return (id(module), shape, len(args), tuple(kwargs), how)
