"""What is said where a watch saw nothing, or not all there was."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from sightline.errors import explain
from sightline.watching.intercept import unseen

if TYPE_CHECKING:
    from sightline.watching.watcher import Watcher


def say_if_nothing(watcher: Watcher) -> None:
    """Warn if a block saw no attention, or not all of it; `stacklevel` is that of who leaves the block."""
    idle = watcher.layers.idle(list(dict.fromkeys([*watcher.order, *watcher.seen.unseen])))
    unseen.say(watcher.seen.unseen, stacklevel=4)
    if (watcher.seen.layers or watcher.seen.unseen) and not idle:
        if not watcher.seen.layers:
            watcher.seen._empty = "sl.watch saw no attention that it can show: seen.unseen says why"
        return
    if watcher.order:
        text = explain(
            f"sl.watch chose no layer (layers={idle})" if idle else f"sl.watch chose no layer ({watcher.layers})",
            expected="one of the layers that ran",
            got=", ".join(list(watcher.order)[:8]) + (" …" if len(watcher.order) > 8 else ""),
            hint="layers=None for all",
        )
    else:
        text = explain(
            "sl.watch saw no attention",
            expected=f"{type(watcher.model).__name__} to run in this block, in this thread, and to call torch's or "
            "transformers' attention functions",
            got="no pass of the model" if not watcher.passes else "a pass without such a call",
            hint="F.scaled_dot_product_attention, a softmax between two products, or sl.observe",
        )
    if not watcher.seen.layers:
        watcher.seen._empty = text
    warnings.warn(text, UserWarning, stacklevel=4)
