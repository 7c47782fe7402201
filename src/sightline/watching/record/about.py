"""What a run says of the model it is of."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from sightline import caches
from sightline.watching.intercept.caller import inner


@caches.memo("watching.version")
def _version() -> str:
    try:
        return version("sightline")
    except PackageNotFoundError:
        return "unknown"


def about(model: nn.Module, modules: Iterable[nn.Module]) -> dict[str, Any]:
    """Its kind, its size, what it runs on, and by which versions. `modules` are all that it is made of."""
    base = inner(model)
    # Each once; several times as fast as torch's way, which makes up their names.
    parameters = {id(p): p for module in modules for p in module._parameters.values() if p is not None}
    first = next(iter(parameters.values()), None)
    config = getattr(base, "config", None)
    return {
        "model": type(base).__name__,
        "parameters": sum(map(Tensor.numel, parameters.values())),
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "device": None if first is None else first.device.type,
        "implementation": getattr(config, "_attn_implementation", None),
        "torch": torch.__version__,
        "sightline": _version(),
        "runs": 1,
    }
