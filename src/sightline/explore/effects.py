"""Exact effects of all heads of a run for an aim: each is taken out once, as `sl.effects` does, beside first order.

It takes as long as many runs: how far it is is told after every layer of every run, and whoever hears it may end it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from sightline import memory
from sightline.editing import edit
from sightline.editing.head_effects import sweep
from sightline.errors import InputError
from sightline.explore.aims import Aim, aimed, logits_after, place
from sightline.explore.changes import edits_of, read
from sightline.explore.readings import ReadingRequest, needed
from sightline.explore.run import Run
from sightline.nn import MultiHeadAttention
from sightline.targets import logit

# So many tables are kept with a run.
KEPT = 4
# What an id ends with: beside it the readings of the same aim.
NAME = "effects"
Report = Callable[..., None]


@dataclass(frozen=True)
class EffectsRequest(ReadingRequest):
    """A run whose heads are to be taken out one by one, for an aim."""

    @property
    def id(self) -> str:
        return f"{super().id}_{NAME}"


@dataclass(frozen=True)
class HeadEffects:
    """What was found: to be kept with its run."""

    run: Run
    key: str
    table: dict[str, Any]


def find(run: Run, aim: Aim) -> dict[str, Any] | None:
    """What is known of an aim."""
    return run.effects.get(ReadingRequest(run, aim).key)


def keep(found: HeadEffects) -> None:
    """Keep it with its run; the oldest of more than a few goes."""
    kept = found.run.effects
    kept.pop(found.key, None)
    kept[found.key] = found.table
    for old in list(kept)[:-KEPT]:
        del kept[old]


def compute(request: EffectsRequest, model: Any, tokenizer: Any, report: Report) -> HeadEffects:
    """Every head of the run's layers taken out, and what the aim loses by that."""
    run, aim = request.run, request.aim
    if not hasattr(model, "stream"):
        raise InputError(
            "what heads did is asked of a model that predicts tokens",
            expected="a causal language model",
            got=str(run.model),
            hint="in Python: sl.effects(model, ids, sl.targets.similarity(vector))",
        )
    ids = list(run.account.ids[run.batch])  # type: ignore[attr-defined]
    at = place(aim, len(ids))
    memory.require("a backward pass through this text", needed(model, at + 1), model.device, "a shorter text")
    changes = edits_of(run.meta.get("edits") or ())
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    rest = left(run)
    heads = None if len(rest) == sum(module.heads for module in layers) else rest
    told = {"stage": "reading the text", "done": 0, "total": 0}

    def tell(done: int, total: int) -> None:
        told.update(stage="taking heads out", done=done, total=total)
        report(**told)

    with edit(model, changes) if changes else nullcontext():
        report(**told)
        target = aimed(aim, tokenizer, ids, logits_after(model, ids, at))
        with _each_layer(layers, lambda: report(**told)):
            # What comes after the place is not seen from there; of the logits only its own are wanted.
            inputs = {"ids": torch.tensor([ids[: at + 1]], device=model.device), "last": 1}
            found = sweep(model, inputs, logit(target.token, than=target.than), heads=heads, told=tell)
    rows = {name: i for i, name in enumerate(found.layers)}

    def numbers(table: torch.Tensor) -> list[list[float]]:
        """By the layers and heads of the run; a head that is out already does nothing."""
        return [
            [float(table[rows[layer.name], head].nan_to_num(0.0)) for head in layer.numbers] for layer in run.layers
        ]

    table = {
        **vars(aim),
        "ids": [target.token, target.than, target.after],
        "value": float(found.baseline[0]),
        "exact": numbers(found.exact[0]),
        "influence": numbers(found.influence[0]),
    }
    return HeadEffects(run, request.key, table)


def left(run: Run) -> list[tuple[int, int]]:
    """The heads of a run, by the model's own numbers, that its edits have not taken out."""
    out = [change for change in map(read, run.meta.get("edits") or ()) if change.kind == "ablate"]
    return [
        (layer.number, head)
        for layer in run.layers
        for head in layer.numbers
        if not any(one.layer in (None, layer.number) and one.head in (None, head) for one in out)
    ]


@contextmanager
def _each_layer(layers: list[MultiHeadAttention], step: Callable[[], None]) -> Iterator[None]:
    """Call something after every attention layer of this thread; its error ends the run."""
    mine = threading.get_ident()

    def hook(*_: object) -> None:
        if threading.get_ident() == mine:
            step()

    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
