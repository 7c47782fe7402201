"""Where a model runs, in the word that people give: a device that is there, or an error before anything is loaded."""

from __future__ import annotations

import torch

from sightline.errors import InputError

# What every command says of its `--device`.
HELP = "Where it runs: cpu, cuda, cuda:1, …; auto is the GPU if there is one."


def find_device(name: str) -> str:
    """A device that is there: `"auto"` is the GPU if there is one; any other name is that device or an error.

    >>> find_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device that only exists as a name cannot give a number back
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, ValueError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise InputError(
            "this device is not there",
            expected=f"auto, or one of {', '.join(there)}",
            got=f"{name!r} ({str(error).splitlines()[0]})",
            hint="--device auto",
        ) from None
    return "cpu" if device.type == "cpu" else str(device)  # there is one, whatever number it is given
