"""What a family asks a config: sizes, numbers and choices by name, each checked, each with a clear error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from sightline.models.checkpoints.base import Checkpoint, CheckpointError, refused

Choice = TypeVar("Choice")

# Larger than any size of any model there is; what is below is compared with the tensors.
LARGEST = 1 << 24

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Settings:
    """The config of a checkpoint, asked for by name. A value of null counts as not said.

    Where several keys are given, the first that is there counts: families have given one size different names.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type"))

    def get(self, *keys: str, default: Any = None) -> Any:
        """What the config says, as it is."""
        return next((self.config[key] for key in keys if self.config.get(key) is not None), default)

    def whole(self, *keys: str, default: int | None = None) -> int:
        """A size: a whole number of at least 1."""
        value = self.get(*keys, default=default)
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise self.wrong(keys, f"a whole number from 1 to {LARGEST}", value)
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(keys, "a finite number above 0", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default=default)
        if not isinstance(value, bool):
            raise self.wrong((key,), "true or false", value)
        return value

    def choice(self, *keys: str, among: Mapping[str, Choice], default: str | None = None) -> Choice:
        """What stands in a table for the name that the config says."""
        value = self.get(*keys, default=default)
        if not isinstance(value, str) or value not in among:
            raise self.wrong(keys, f"one of {', '.join(among)}", value)
        return among[value]

    def activation(self, *keys: str, default: str | None = None) -> str:
        """The name of an activation, as `sl.nn.FeedForward` knows it."""
        return self.choice(*keys, among=ACTIVATIONS, default=default)

    def only(self, key: str, *known: Any) -> None:
        """Refuse a setting that changes the numbers in a way that is not built here; the first known is the default."""
        if self.get(key, default=known[0]) not in known:
            raise self.wrong((key,), " or ".join(map(repr, known)), self.config[key])

    def prefix(self, anchor: str, *candidates: str) -> str:
        """In front of which of the prefixes the tensor of this name is found: the bare model or one with a head."""
        for candidate in ("", *candidates):
            if candidate + anchor in self.checkpoint:
                return candidate
        raise refused(
            f"{self.checkpoint.source} misses a tensor of a {self.model_type} model",
            expected=" or ".join(repr(candidate + anchor) for candidate in ("", *candidates)),
            got=_some(self.checkpoint.names),
            hint="check model_type in config.json, and that all files of the checkpoint are there",
        )

    def layers(self, *keys: str, names: str) -> int:
        """How many layers: as many as the config says, and as the tensors called `names`, `#` for the number, show.

        Compared before anything is made: the layers of a config are free to claim, those of a file are not.
        """
        said = self.whole(*keys)
        pattern = re.compile(re.escape(names).replace(r"\#", r"(\d{1,6})\."))
        there = {int(found[1]) for name in self.checkpoint.names if (found := pattern.match(name))}
        if there != set(range(said if said <= len(there) else 0)):
            raise refused(
                f"the layers of {self.checkpoint.source} do not fit its config",
                expected=f"layers 0 to {said - 1}, as {keys[0]}={said} says",
                got=f"tensors of {len(there)} layers" + (f", up to {max(there)}" if there else ""),
                hint="fetch config.json and the weights again, from the same place",
            )
        return said

    def expect(self, name: str, *shape: int) -> None:
        """Refuse a checkpoint in which a tensor has another shape than the sizes of the config ask for."""
        if name not in self.checkpoint or tuple(self.checkpoint.shape(name)) != shape:
            there = name in self.checkpoint
            raise refused(
                f"the tensors of {self.checkpoint.source} do not fit its config",
                expected=f"{name} of shape {shape}",
                got=f"shape {tuple(self.checkpoint.shape(name))}" if there else "no such tensor",
                hint="fetch config.json and the weights again, from the same place",
            )

    def wrong(self, keys: tuple[str, ...], expected: str, value: object) -> CheckpointError:
        said = "nothing" if value is None else f"{next((k for k in keys if k in self.config), keys[0])}={value!r}"[:120]
        return refused(
            f"the config of {self.checkpoint.source} cannot be used",
            expected=f"{' or '.join(keys)}: {expected}",
            got=said,
            hint="take config.json from where the model is published; what it asks for may not be built here",
        )


def _some(names: list[str]) -> str:
    return (", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")) or "no tensors"
