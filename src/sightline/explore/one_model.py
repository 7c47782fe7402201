"""A model that somebody holds, in a notebook, in place of those that a server loads."""

from __future__ import annotations

from typing import Any

from torch import nn

from sightline.errors import InputError, InputTypeError
from sightline.watching import Seen


class OneModel:
    """One model under the name that its runs have."""

    held = True  # a program that asks it the same finds it there
    device = "cpu"  # nothing is loaded

    def __init__(self, seen: Seen, model: Any, tokenizer: Any = None) -> None:
        if not isinstance(model, nn.Module):
            raise InputTypeError(
                "a model is a module", expected="the model that was watched", got=type(model).__name__, hint="model"
            )
        names = {name for name, _ in model.named_modules()}
        strange = [name for name in seen.layers if name.split("#")[0] not in names]
        if strange:
            raise InputError(
                "this is not the model that was watched",
                expected=f"one with a module {strange[0]}",
                got=type(model).__name__,
                hint="the model that was given to sl.watch",
            )
        tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
        self.model, self.tokenizer = model, getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.name = str(seen.meta.get("name") or seen.meta.get("model"))
        self.skipped: list[str] = []

    def __contains__(self, name: object) -> bool:
        return name == self.name

    def listed(self) -> list[dict[str, Any]]:
        """The model, if it is one that texts or pictures can be given to as they are."""
        causal, image = hasattr(self.model, "stream"), hasattr(self.model, "prepare")
        if self.tokenizer is None and not image:
            return []
        return [{"name": self.name, "title": self.name, "causal": causal, "image": image}]

    def get(self, _name: str) -> tuple[Any, Any]:
        """The model and its tokenizer; one that is being trained is not run."""
        if self.model.training:
            raise InputError(
                "the model is being trained: its dropout would change the numbers",
                expected="a model that is evaluated",
                got="model.training",
                hint="model.eval()",
            )
        return self.model, self.tokenizer
