"""transformers' mask functions while somebody watches: they make the same tables, and say by which rule.

A mask whose table nobody writes needs no rule, and is asked for none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline import caches
from sightline.masks import Mask
from sightline.watching.intercept import active, numberless
from sightline.watching.intercept.caller import running
from sightline.watching.intercept.transformers_masks import LazyMask, Span, read_span, read_used

if TYPE_CHECKING:
    from sightline.watching.intercept.mask_tables import Tables


def masking(function: Callable, lazy: frozenset) -> Callable:
    """The mask function as it is, or one that says by which rule, for the models that this thread watches.

    Its table is the model's own. Where a watch is compact, none is written until somebody needs it.
    """
    if torch.compiler.is_compiling():
        return function
    if function not in lazy or not active.watches() or numberless.why_not() is not None:
        return function
    sleeper = active.sleeper()
    if sleeper is not None and sleeper.depth and not sleeper.compact:
        return partial(_telling, function, [sleeper.tables])  # its own pass is on, and nobody else's
    names: dict[int, str] = {}
    for watcher in active.watches():
        names.update(watcher.names)
    module = running(names)
    watchers = [watcher for watcher in active.watches() if module is not None and watcher.name_of(module) is not None]
    if not watchers:
        return function
    if sleeper is not None:
        sleeper.listening.wakes(sleeper)  # a mask that is made between two steps may be written into before the next
    if not any(watcher.compact for watcher in watchers):
        return partial(_telling, function, [watcher.tables for watcher in watchers])

    @functools.wraps(function)
    def rule(*args: Any, **kwargs: Any) -> Any:
        arguments = _named(function, args, kwargs)
        span = read_span(arguments)
        mask, used = read_used(arguments["mask_function"], arguments.get("attention_mask"), span)
        if _is_plain(arguments, mask, used, span, function):
            return None
        dtype = torch.bool if function.__name__ == "sdpa_mask" else arguments.get("dtype", torch.float32)
        skips = {name: False for name in ("allow_is_causal_skip", "allow_is_bidirectional_skip") if name in kwargs}
        # A static cache counts in a tensor, and goes on counting before the table is made.
        now = [x.clone() if isinstance(x, Tensor) and x.dim() < 2 else x for x in args]
        named = {n: x.clone() if isinstance(x, Tensor) and x.dim() < 2 else x for n, x in kwargs.items()} | skips
        return LazyMask.of(mask, used, span.keys, lambda: function(*now, **named), dtype)

    return rule


def _telling(function: Callable, tables: list[Tables], /, *args: Any, **kwargs: Any) -> Any:
    """What a mask function gives, whose rule is then known; where it writes no table there is nothing to be known."""
    table = function(*args, **kwargs)
    if isinstance(table, Tensor) and table.dim() == 4:
        arguments = _named(function, args, kwargs)
        with torch.no_grad():
            found = read_used(arguments["mask_function"], arguments.get("attention_mask"), read_span(arguments))
            for each in tables:
                each.tell(table, *found)
    return table


def _is_plain(arguments: dict, mask: Mask | None, used: Span, span: Span, function: Callable) -> bool:
    """Whether transformers itself makes no mask here, because its SDPA function needs none."""
    if arguments.get("allow_is_bidirectional_skip") and mask is None:
        return True
    if function.__name__ != "sdpa_mask" or not arguments.get("allow_is_causal_skip", True):
        return False
    band = None if mask is None else mask.band
    whole = band is not None and band.right == 0 and (band.left is None or band.left >= used.keys)
    return whole and (used.queries == used.keys or used.queries == 1) and used.keys == span.keys


_signature = caches.memo("watching.signatures", 64)(inspect.signature)


def _named(function: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    bound = _signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    return arguments | arguments.pop("kwargs", {})
