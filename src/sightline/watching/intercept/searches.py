"""What transformers' searches return: which of the sequences they tried, and how much of them, is the text at last.

Beam search keeps sequences that ended aside, and assisted decoding reads tokens that it then takes back. Watches are
told when such a search is over; it is not changed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from sightline.watching.intercept import active

BEAMS, ASSISTED = "beam search", "assisted decoding"
# What transformers calls its ways to generate that move or take back what is in the cache.
SEARCHES = {"_beam_search": BEAMS, "_assisted_decoding": ASSISTED}


class Told(active.Shared):
    """What stands around these searches while somebody watches."""

    def install(self, stack: ExitStack) -> None:
        owner = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
        for name, what in SEARCHES.items() if owner is not None else ():
            function = vars(owner).get(name)
            if callable(function):
                stack.callback(setattr, owner, name, function)
                setattr(owner, name, _told(function, what))


def _told(function: Callable, what: str) -> Callable:
    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        sequences = getattr(found, "sequences", found)
        if isinstance(sequences, Tensor) and sequences.dim() == 2:
            for watcher in active.watches():
                if hasattr(watcher, "returned"):
                    watcher.returned(what, sequences)
        return found

    return told


TOLD = Told()
