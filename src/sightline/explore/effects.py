"""Exact effects of all heads of a run for an aim: each is taken out once, as `sl.effects` does, beside first order.

It takes as long as many runs: how far it is is told after every layer of every run, and whoever hears it may end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sightline.editing.head_effects import sweep
from sightline.explore.aims import Aim
from sightline.explore.changes import needs_whole, read
from sightline.explore.once_more import Report, attention_layers, each_layer, once_more
from sightline.explore.readings import ReadingRequest
from sightline.explore.run import Run
from sightline.targets import logit

# So many tables are kept with a run.
KEPT = 4
# What an id ends with: beside it the readings of the same aim.
NAME = "effects"
HINT = "in Python: sl.effects(model, ids, sl.targets.similarity(vector))"


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
    taking: dict[str, Any] = {"stage": ""}

    def tell(done: int, total: int) -> None:
        taking.update(stage="taking heads out", done=done, total=total)
        report(**taking)

    whole = needs_whole(run.meta)
    # Forwards and backwards with gradients, and once without.
    with once_more(run, aim, model, tokenizer, report, what="what heads did", hint=HINT, rest=whole, passes=3) as begun:
        target, passes = begun.target, begun.passes

        def layer_is_done() -> None:
            if taking["stage"]:
                report(**taking)
            else:
                passes.step("reading the text")

        rest, layers = left(run), attention_layers(model)
        heads = None if len(rest) == sum(layer.heads for layer in layers) else rest
        with each_layer(model, layer_is_done, layer_is_done):
            ids = begun.ids if whole else begun.ids[: target.after + 1]
            last = len(ids) - target.after  # of the logits only those of the place are wanted
            inputs = {"ids": torch.tensor([ids], device=model.device), "last": last}
            found = sweep(model, inputs, logit(target.token, than=target.than, at=-last), heads=heads, told=tell)
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
