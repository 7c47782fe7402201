"""What everyone who listens to attention has in common: a function mode, its place, and which calls are of training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import nn, overrides
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

if TYPE_CHECKING:
    from sightline.nn.observe.select import Layers
    from sightline.nn.observe.tap import Counted


class Listener(TorchFunctionMode):
    """A function mode that hands the calls of some functions to a handler each, and lets all others pass.

    It holds for one thread. `sl.nn.observing`, `sl.watch` and the training monitor each have one.
    """

    handlers: ClassVar[Mapping[Any, Callable[..., Any]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        options = kwargs or {}
        handler = self.handlers.get(func)
        return func(*args, **options) if handler is None else handler(self, func, args, options)


def put_beneath(mode: TorchFunctionMode) -> None:
    """Switch a mode on for longer than a block: beneath all others, so that each block ends with its own."""
    _change(lambda modes: [*modes[: _fixed(modes)], mode, *modes[_fixed(modes) :]])


def take_away(mode: TorchFunctionMode) -> None:
    """Switch it off again, wherever it stands."""
    _change(lambda modes: [other for other in modes if other is not mode])


def set_aside(mode: TorchFunctionMode) -> int:
    """Switch it off for a while; says what place it had."""
    places: list[int] = []

    def without(modes: list[Any]) -> list[Any]:
        places.extend(place for place, other in enumerate(modes) if other is mode)
        return [other for other in modes if other is not mode]

    _change(without)
    return places[0] if places else torch._C._len_torch_function_stack()


def put_back(mode: TorchFunctionMode, place: int) -> None:
    """Switch it on again where it was; others may have come or gone above it."""
    _change(lambda modes: [*modes[:place], mode, *modes[place:]])


def _fixed(modes: list[Any]) -> int:
    """A default device has its place at the bottom, and insists on it."""
    return int(bool(modes) and isinstance(modes[0], DeviceContext))


def _change(how: Callable[[list[Any]], list[Any]]) -> None:
    modes = [overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]
    for mode in how(modes):
        overrides._push_mode(mode)


def is_trained(module: nn.Module) -> bool:
    """Whether a call that a module makes now is one of training, and is made for the first time.

    Gradients are enabled then. Where a checkpoint runs a layer again for its gradients, it was heard before. One that
    is reentrant runs it without gradients before: it is heard then, if the module is being trained.
    """
    if torch._C._current_graph_task_id() != -1:
        return False
    return torch.is_grad_enabled() or (module.training and in_checkpoint("forward"))


def is_for_gradients() -> bool:
    """The same for whoever hears every thread: a layer in a reentrant checkpoint when it runs for its gradients."""
    if not torch.is_grad_enabled():
        return False
    return torch._C._current_graph_task_id() == -1 or in_checkpoint("backward")


def in_checkpoint(name: str) -> bool:
    """Whether this method of torch's reentrant checkpoint is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


class Source(Protocol):
    """Where a monitor has its numbers from: something that can be listened to, for a step at a time."""

    unseen: dict[str, str]  # of what attended and was not counted: why

    def listen(self, on: bool) -> None:
        """Begin, or stop; what was heard before is forgotten."""

    def collect(self) -> dict[str, Counted]:
        """What was heard since, by the name of the module."""


# Makers of sources for models of others, each given the model and the choice of layers; None if there is nothing for
# them in it. `sightline.watching` puts its own here: it stands above and knows the functions of torch and transformers.
OF_OTHERS: list[Callable[[nn.Module, Layers], Source | None]] = []
