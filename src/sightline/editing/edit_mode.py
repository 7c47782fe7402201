"""The function mode of a block: that of a watch, and on while gradients are computed."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from sightline.watching.intercept.function_mode import WatchMode


class EditMode(WatchMode):
    """The function mode of a watch, which stays on while gradients are computed: checkpoints run layers again then."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _BACKWARD:
            with self:
                return _BACKWARD[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _unasked(func: Any) -> Any:
    """A function of torch that does not ask whether a mode is on, to whom it would hand itself over."""
    names = {name: lambda *_: False for name in ("has_torch_function", "has_torch_function_unary")}
    found = FunctionType(func.__code__, func.__globals__ | names, func.__name__, func.__defaults__, func.__closure__)
    found.__kwdefaults__ = func.__kwdefaults__
    return found


_BACKWARD = {func: _unasked(func) for func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)}
