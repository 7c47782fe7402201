"""Functions of other packages that attend, and that torch's function mode does not see.

While somebody watches, others stand in their place that tell of each call.

Nothing is imported here: a package that nobody has loaded is not called. A function is found wherever a loaded module
has it under its own name, because `from flash_attn import flash_attn_func` is how it is used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from sightline.watching.intercept import active
from sightline.watching.intercept.flash_attn import SIGNATURES, flash, with_cache
from sightline.watching.intercept.function_mode import Handler, audience
from sightline.watching.intercept.varlen import varlen
from sightline.watching.intercept.xformers import memory_efficient

_FLASH: dict[str, Handler] = {name: with_cache if name == "flash_attn_with_kvcache" else flash for name in SIGNATURES}
# The modules that have them, by name, and what is made of each function.
HANDLERS: dict[str, dict[str, Handler]] = {
    "torch.nn.attention.varlen": {"varlen_attn": varlen},
    "flash_attn": _FLASH,
    "flash_attn.flash_attn_interface": _FLASH,
    "xformers.ops": {"memory_efficient_attention": memory_efficient},
    "xformers.ops.fmha": {"memory_efficient_attention": memory_efficient},
}


class Libraries(active.Shared):
    """What stands in for the functions of other packages."""

    def install(self, stack: ExitStack) -> None:
        found: dict[str, dict[int, Callable]] = {}
        for home, handlers in HANDLERS.items():
            for name, handler in handlers.items():
                function = getattr(sys.modules.get(home), name, None)
                if callable(function):
                    found.setdefault(name, {})[id(function)] = _heard(function, handler)
        for module in list(sys.modules.values()) if found else []:
            names = getattr(module, "__dict__", {})
            for name, others in found.items():
                function = names.get(name)
                if id(function) in others:
                    stack.callback(setattr, module, name, function)
                    setattr(module, name, others[id(function)])


def _heard(function: Callable, handler: Handler) -> Callable:
    @functools.wraps(function)
    def heard(*args: Any, **kwargs: Any) -> Any:
        who = audience(given=args[0] if args else None)
        if who is None:
            return function(*args, **kwargs)
        for watcher, _ in who.hearing:
            watcher.listening.always = True
        return handler(function, args, kwargs, who)

    return heard


LIBRARIES = Libraries()
