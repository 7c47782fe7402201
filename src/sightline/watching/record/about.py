"""What a run says of the model it is of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

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
    parameters = list(_parameters(modules))
    first = parameters[0] if parameters else None
    config = getattr(base, "config", None)
    return {
        "model": type(base).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "device": None if first is None else first.device.type,
        "implementation": getattr(config, "_attn_implementation", None),
        "torch": torch.__version__,
        "sightline": _version(),
        "runs": 1,
    }


def _parameters(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    """Their parameters, each once; several times as fast as torch's way, which makes up their names."""
    known: set[int] = set()
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in known:
                known.add(id(parameter))
                yield parameter
