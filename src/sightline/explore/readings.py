"""Readings of a run: what was carried and what mattered, by running its model once more with gradients.

A run that was watched with influence has them itself. Memory is asked for before anything is run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch

from sightline.explore import images
from sightline.explore.aims import Aim
from sightline.explore.once_more import Report, attention_layers, once_more
from sightline.explore.run import Run
from sightline.lens.readings import SIGNED
from sightline.lens.statistics import Shown
from sightline.watching import watch

SHOWN = ("norms", "influence")
OWN = "own"
WORDS = {
    "norms": ("carried", "how much it carries: weight times the size of what the key gives, a mean over queries"),
    "influence": ("mattered", "how much it raises what is asked about: its influence, summed over all cells"),
}
# Beside a reading so many are kept with a run.
KEPT = 2
HINT = "in Python: seen.backward(sl.targets.similarity(vector)(output))"


@dataclass(frozen=True)
class ReadingRequest:
    """A run to be read once more, for an aim."""

    run: Run = field(compare=False)
    aim: Aim

    @property
    def key(self) -> str:
        """What names the aim."""
        return hashlib.sha256(json.dumps(vars(self.aim), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def id(self) -> str:
        return f"{self.run.id}_{self.key}"

    @property
    def model(self) -> str:
        return str(self.run.model)

    @property
    def text(self) -> str:
        return self.run.text or ""

    @property
    def generate(self) -> int:
        return 0


def own(run: Run) -> list[str]:
    """The readings that a run has by itself: it kept what they need."""
    found = ["weights"]
    sights = [run.account[layer.name] for layer in run.layers]
    if all(_has(sight, "norms") for sight in sights):
        found.append("norms")
    if all(_has(sight, "influence") for sight in sights):
        found.append("influence")
    return found


def _has(sight: Any, of: str) -> bool:
    extra = getattr(sight, "extra", None)
    if extra is None or not sight.has_qk:
        return False
    if of == "norms":
        return extra.sizes is not None or extra.v is not None
    return extra.v is not None and extra.grad is not None


def why_not(run: Run, models: Any) -> str | None:
    """Why the server cannot read a run once more; None if it can."""
    if (models is None or run.model not in models) and run.origin == "notebook":
        return "its model is not at hand: explorer(seen, model=model), or sl.watch(model, influence=True, keep_qk=True)"
    if models is None or run.model not in models:
        return "its model is not at hand: sl.watch(model, influence=True, keep_qk=True), seen.backward(y), seen.save(…)"
    ids = getattr(run.account, "ids", None) or []
    if run.batch >= len(ids) or len(ids[run.batch]) < max(layer.queries for layer in run.layers):
        return "the tokens that its model was given are not known"
    if run.growing:
        return "it is still being made"
    return None


def compute(request: ReadingRequest, model: Any, tokenizer: Any, report: Report) -> Run:
    """The run once more with gradients of its aim: a run whose readings are all there."""
    run, aim = request.run, request.aim
    names = [layer.name for layer in run.layers]
    chosen = None if len(names) == len(attention_layers(model)) else names
    with (
        once_more(run, aim, model, tokenizer, report, what="what mattered", hint=HINT, rest=True, passes=2) as begun,
        begun.passes.counted("running", "going back"),
        watch(model, chosen, influence=True, keep_qk=True, tokenizer=tokenizer) as seen,
    ):
        target = begun.target
        seen.meta |= {**run.meta, "aim": {**vars(aim), "ids": [target.token, target.than, target.after]}}
        y = target.target(model(torch.tensor([begun.ids], device=model.device)))
        seen.backward(y)
    seen.meta["value"] = float(y.detach())
    largest: dict[str, float] = dict.fromkeys(SHOWN, 0.0)
    for i, name in enumerate(names):
        report(stage="measuring", done=i, total=len(names))
        for of in SHOWN:
            found = seen[name].picture(size=(1, 1), reduce="max", of=of).abs().max()
            largest[of] = max(largest[of], float(found))
    seen.meta["most"] = largest
    return reading_run(run, request.key, seen, SHOWN[-1])


def reading_run(run: Run, key: str, account: Any, of: str) -> Run:
    """A reading of a run, as a run: the same text and layers, other numbers."""
    made = Run(
        f"{run.id}_{key}_{of}",
        account,
        run.tokens,
        memory=run.memory,
        batch=run.batch if account is run.account else 0,
        model=run.model,
        text=run.text,
        origin=run.origin,
        revision=run.revision,
        spans=run.spans,
    )
    made.of, made.base = of, run
    return made


def find(run: Run, key: str, of: str) -> Run | None:
    """A reading of a run that is there."""
    if of not in SHOWN:
        return None
    kept = run.readings.get((key, of))
    if kept is not None:
        return kept
    if key == OWN:
        if of not in own(run):
            return None
        account: Any = run.account
    elif (other := next((one for (name, _), one in run.readings.items() if name == key), None)) is not None:
        account = other.account
    else:
        return None
    made = run.readings[key, of] = reading_run(run, key, account, of)
    return made


def keep(run: Run) -> None:
    """Keep a reading with its run; the oldest of more than a few goes."""
    base = run.base
    assert base is not None
    key = run.id.split("_")[1]
    base.readings[key, run.of] = run
    keys = list(dict.fromkeys(name for name, _ in base.readings if name != OWN))
    for old in keys[:-KEPT]:
        for pair in [pair for pair in base.readings if pair[0] == old]:
            del base.readings[pair]


def about(run: Run, models: Any = None) -> dict[str, Any]:
    """A run as JSON, with its reading: which one, of what, what for, its largest cell, and which there could be."""
    found = {**run.about(), **_reading(run)}
    base = run if run.base is None else run.base
    found["image"] = images.about(base)
    return {**found, "own": own(base), "why_not": why_not(base, models), "edits": base.meta.get("edits") or []}


def _reading(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"of": run.of, "base": run.id if run.base is None else run.base.id}
    aim = run.meta.get("aim") if run.base is not None else None
    found["most"] = None if run.base is None else most(run)
    found["signed"] = run.of in SIGNED
    found["aim"] = None if aim is None else {name: aim[name] for name in ("token", "than", "after")}
    found["value"] = run.meta.get("value") if aim is not None else None
    return found


def most(run: Run) -> float:
    """The size of the largest cell of a reading: what its colours go up to, in all heads alike."""
    known: dict[str, float] = run.meta.setdefault("most", {})
    if run.of not in known:
        sizes = [run.account[layer.name].picture(size=(1, 1), reduce="max", of=run.of) for layer in run.layers]
        known[run.of] = max(float(size.abs().max()) for size in sizes)
    return known[run.of]


def by_head(run: Run) -> list[list[float]]:
    """One number for every head: influence summed over its cells, norms as a mean over queries."""
    heads = []
    for layer in run.layers:
        sight = run.account[layer.name]
        if run.of == "influence":
            found = sight.influence.sum(-1)
        else:
            found = sight.received(of=run.of).sum(-1) / layer.queries
        heads.append([float(x) for x in found.reshape(-1, layer.heads)[run.batch]])
    return heads


def portraits(run: Run, base: dict[str, Any]) -> dict[str, Any]:
    """The portraits of a run with one more measure, that of a reading; its strongest head comes first."""
    found = by_head(run)
    largest = max(abs(x) for layer in found for x in layer) or 1.0
    low = -largest if run.of in SIGNED else 0.0
    shown = Shown(run.of, WORDS[run.of][0], about=WORDS[run.of][1], range=(low, largest))
    heads = [
        [{**head, run.of: value} for head, value in zip(*both, strict=True)]
        for both in zip(base["heads"], found, strict=True)
    ]
    places = [(abs(x), -i, -j) for i, layer in enumerate(found) for j, x in enumerate(layer)]
    _, i, j = max(places)
    return {**base, "heads": heads, "measures": [*base["measures"], shown._asdict()], "first": [-i, -j]}
