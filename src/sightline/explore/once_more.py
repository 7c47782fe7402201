"""A run's model once more, for an aim: what readings and effects begin with, and how far a pass is, layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from sightline import memory
from sightline.editing import edit
from sightline.errors import InputError
from sightline.explore.aims import Aim, Aimed, aimed, logits_after, place
from sightline.explore.changes import edits_of, needs_whole
from sightline.explore.run import Run
from sightline.nn import MultiHeadAttention

# Told how a job goes: `stage`, and how much of it is `done` of a `total`. What it raises ends the job.
Report = Callable[..., None]


def attention_layers(model: Any) -> list[MultiHeadAttention]:
    """The layers of a model that attend."""
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


@contextmanager
def each_layer(
    model: Any, forwards: Callable[[], None], backwards: Callable[[], None] | None = None
) -> Iterator[list[MultiHeadAttention]]:
    """Call something after every attention layer that this thread runs, and when its gradient is there.

    What they raise ends the pass. Nothing stays on the model.
    """
    layers, mine = attention_layers(model), threading.get_ident()

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        if threading.get_ident() != mine:
            return  # somebody else asks the same model something
        forwards()
        found = output[0] if isinstance(output, tuple) else output
        if backwards is not None and found.requires_grad:
            found.register_hook(lambda _: backwards())

    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield layers
    finally:
        for handle in handles:
            handle.remove()


class Passes:
    """How far several passes through a model are: each counts its layers, forwards and backwards alike."""

    def __init__(self, model: Any, report: Report, passes: int) -> None:
        self.model, self.report = model, report
        self.done, self.total = 0, passes * len(attention_layers(model))

    @contextmanager
    def counted(self, forwards: str, backwards: str) -> Iterator[None]:
        """Report every layer that is run in here, under these names."""
        self.report(stage=forwards, done=self.done, total=self.total)
        with each_layer(self.model, lambda: self.step(forwards), lambda: self.step(backwards)):
            yield

    def step(self, stage: str) -> None:
        """One layer more."""
        self.done = min(self.done + 1, self.total)
        self.report(stage=stage, done=self.done, total=self.total)


@dataclass(frozen=True)
class Begun:
    """A text that is read once more: its ids, what is asked about it, and how far it is."""

    ids: list[int]
    target: Aimed
    passes: Passes


@contextmanager
def once_more(
    run: Run, aim: Aim, model: Any, tokenizer: Any, report: Report, *, what: str, hint: str, rest: bool, passes: int
) -> Iterator[Begun]:
    """The edits of a run in place and its aim in ids, for passes with gradients up to the aim, or the rest too.

    Whatever stands against it is said before the model runs. `passes` are those to come, to count their layers.
    """
    if not hasattr(model, "stream"):
        raise InputError(
            f"{what} is asked of a model that predicts tokens",
            expected="a causal language model",
            got=str(run.model),
            hint=hint,
        )
    ids = list(run.account.ids[run.batch])  # type: ignore[attr-defined]
    at = place(aim, len(ids))
    tokens = len(ids) if rest else at + 1
    memory.require("a backward pass through this text", needed(model, tokens), model.device, "a shorter text")
    changes = edits_of(run.meta.get("edits") or ())
    counted = Passes(model, report, 1 + passes)
    with edit(model, changes) if changes else nullcontext():
        with counted.counted("reading the text", "going back"):
            row = logits_after(model, ids, at, needs_whole(run.meta))
        yield Begun(ids, aimed(aim, tokenizer, ids, row), counted)


def needed(model: Any, tokens: int) -> int:
    """About how many bytes a pass forwards and backwards keeps: the inputs of each part of each layer, and logits."""
    parts = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = sum(part.in_features + part.out_features for part in parts)
    size = next(model.parameters()).element_size()
    vocabulary = getattr(getattr(model, "embedding", None), "num_embeddings", 0)
    return int(size * tokens * (1.5 * inputs + 2 * vocabulary))
