"""The function mode: it sees every call of torch's attention functions, and of Sightline's own, in its thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.flex_attention import flex_attention as flex_operator
from torch.overrides import TorchFunctionMode

from sightline.attention.api import attention
from sightline.watch import calls, state
from sightline.watch.flex import flex
from sightline.watch.where import running

if TYPE_CHECKING:
    from torch import nn

    from sightline.watch.tables import Tables
    from sightline.watch.watcher import Watcher

Handler = Callable[[Any, tuple, dict, "Audience"], Any]


class Audience:
    """A call's module, and the watches that hear of it: those that want its account, and those that only count."""

    def __init__(self, module: nn.Module, hearing: list[tuple[Watcher, str]]) -> None:
        self.module, self.hearing = module, hearing
        self.wanting = [(watcher, name) for watcher, name in hearing if watcher.wants(name)]

    @property
    def name(self) -> str:
        return self.hearing[0][1]

    @property
    def fused(self) -> bool:
        return any(watcher.fused for watcher, _ in self.wanting)

    @property
    def tables(self) -> Tables:
        return self.hearing[0][0].tables

    def note(self, first_query: int, end_key: int) -> None:
        """Tell those that do not want the account that there was a call."""
        for watcher, name in self.hearing:
            if (watcher, name) not in self.wanting:
                watcher.note(name, first_query, end_key)

    def record(self, looked: Any) -> None:
        self.note(looked.first_query, looked.first_key + looked.call.sizes.keys)
        for watcher, name in self.wanting:
            watcher.record(self.module, name, looked)


def audience(module: nn.Module | None = None) -> Audience | None:
    """Who hears of an attention call that is made now; None if nobody watches the module that makes it."""
    watches = state.watches()
    # While gradients are computed, layers may run again (checkpointing): they were seen before.
    if not watches or torch._C._current_graph_task_id() != -1:
        return None
    module = module or state.known_module()
    if module is None:
        everything: dict[int, str] = {}
        for watcher in watches:
            everything.update(watcher.names)
        module = running(everything)
    if module is None:
        return None
    hearing = [(watcher, name) for watcher in watches if (name := watcher.name_of(module)) is not None]
    return Audience(module, hearing) if hearing else None


class WatchMode(TorchFunctionMode):
    """Hands attention calls of watched models to their handlers, and lets everything else pass."""

    is_watch = True

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is None:
            return func(*args, **kwargs)
        who = audience()
        if who is None:
            return func(*args, **kwargs)
        return handler(func, args, kwargs, who)


_HANDLERS: dict[Any, Handler] = {
    F.scaled_dot_product_attention: calls.sdpa,
    F.multi_head_attention_forward: calls.multi_head,
    attention: calls.own,
    flex_operator: flex,
}
