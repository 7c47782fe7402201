"""Where a ladder stands, as one file: tensors, and a description in its head. Never pickle.

One file, because it is replaced in one step: weights, optimizer, random state and losses are always of the same
moment, and a ladder that is killed goes on as if it had not been.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.errors import InputError
from sightline.files import write_whole
from sightline.lessons.ladder.rungs import RUNGS
from sightline.lessons.ladder.settings import Settings
from sightline.lessons.ladder.text import Text

FORMAT = 2  # raised whenever rungs or training change: a ladder is one thing from its first rung to its last
NAME = "checkpoint.safetensors"


@dataclass
class Checkpoint:
    """The rungs that are done, and where the next one stands.

    >>> Checkpoint({"seed": 0})
    Checkpoint(identity={'seed': 0}, done=[], step=0, curve=[], seconds=0.0, cpu_seconds=0.0, tensors={})
    """

    identity: dict[str, Any]  # what must be the same for a ladder to go on
    done: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0  # of the rung that is being trained, as are the fields below
    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0  # on the clock
    cpu_seconds: float = 0.0  # of the processor: the same on a busy machine
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write it, so that the file is always either the last one or this one."""
        about = {
            "format": FORMAT,
            "identity": self.identity,
            "done": self.done,
            "step": self.step,
            "curve": self.curve,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }
        # safetensors refuses an empty file, and there are no weights between two rungs.
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()} or {"": torch.zeros(0)}
        metadata = {"sightline.ladder": json.dumps(about)}
        write_whole(folder / NAME, lambda file: save_file(tensors, file, metadata=metadata))


def prepare(folder: Path, fresh: bool = False) -> None:
    """Make the folder and see that it can be written, before work starts; forget what is in it if it is to be fresh."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (NAME, "ladder.*"):
        for left in folder.glob(f".{name}.*.part.*"):  # what a kill left half-written
            left.unlink(missing_ok=True)
    if fresh:
        (folder / NAME).unlink(missing_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def identity(text: Text, settings: Settings) -> dict[str, Any]:
    """What the numbers of a ladder depend on."""
    return {**settings.as_dict(), "text": text.name, "text digest": text.digest, "torch": torch.__version__}


def load(folder: Path, wanted: dict[str, Any]) -> Checkpoint:
    """The checkpoint of a folder; a fresh one if there is none, an error if it is of another ladder."""
    path = folder / NAME
    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {})["sightline.ladder"])
            tensors = {name: file.get_tensor(name) for name in file.keys() if name}  # noqa: SIM118
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
        found = Checkpoint(
            dict(about["identity"]),
            [_checked(number, rung) for number, rung in enumerate(about["done"])],
            int(about["step"]),
            [(int(step), float(loss)) for step, loss in about["curve"]],
            float(about["seconds"]),
            float(about["cpu_seconds"]),
            tensors,
        )
    except FileNotFoundError:
        return Checkpoint(wanted)
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read",
            expected="a checkpoint that `sightline ladder` wrote",
            got=f"{type(error).__name__}: {error}",
            hint="--fresh, to start from the first rung",
        ) from None
    different = [name for name in sorted({*wanted, *found.identity}) if wanted.get(name) != found.identity.get(name)]
    if different:
        raise InputError(
            f"{folder} holds another ladder",
            expected=", ".join(f"{name} {found.identity.get(name)}" for name in different),
            got=", ".join(f"{name} {wanted.get(name)}" for name in different),
            hint="another --out, or --fresh to start from the first rung",
        )
    return found


def _checked(number: int, result: Any) -> dict[str, Any]:
    """The result of a rung as it was written, or an error."""
    if result["name"] != RUNGS[number].name:
        raise ValueError(f"rung {number} is {result['name']!r} instead of {RUNGS[number].name!r}")
    return {
        "name": str(result["name"]),
        "adds": str(result["adds"]),
        "parameters": int(result["parameters"]),
        "loss": float(result["loss"]),
        "curve": [(int(step), float(loss)) for step, loss in result["curve"]],
        "seconds": float(result["seconds"]),
        "cpu_seconds": float(result["cpu_seconds"]),
        "sample": str(result["sample"]),
    }
