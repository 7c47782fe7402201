"""What a copy of a sight takes along: its numbers, and nothing of the model they came from."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sightline.backends.call import Call
from sightline.lens.readings import Extra


def alone(thing: Any) -> Any:
    """The same with tensors that have no graph and no larger memory behind them; one tensor stays one tensor."""
    return _alone(thing, {})


def _alone(thing: Any, seen: dict[int, Tensor]) -> Any:
    if isinstance(thing, Tensor):
        if id(thing) not in seen:
            seen[id(thing)] = _compact(thing.detach())
        return seen[id(thing)]
    if isinstance(thing, Call):
        return thing.replace(**{name: _alone(getattr(thing, name), seen) for name in thing.__slots__})
    if isinstance(thing, dict):
        return {key: _alone(value, seen) for key, value in thing.items()}
    if isinstance(thing, Extra):
        return Extra(*(_alone(value, seen) for value in thing))
    if type(thing) is tuple:
        return tuple(_alone(value, seen) for value in thing)
    return thing


def _compact(tensor: Tensor) -> Tensor:
    """A view of a larger tensor would be copied and written with all of it."""
    if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.itemsize or tensor.is_inference():
        return tensor.clone()
    return tensor
