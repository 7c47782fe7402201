"""The worked table of one query, with the numbers of `sl.steps`: q, k, v, score, weight, weighted value, sum."""

from __future__ import annotations

from typing import Any

import torch

from sightline.errors import InputError
from sightline.explore.run import Run
from sightline.steps import Steps, explain

# Without v, these columns have no numbers.
OF_VALUES = ("v", "weighted_value", "sum")


def has_ids(run: Run, layer: int) -> bool:
    """Whether the tokens are known that the map of a layer is of; a saved run may hold others, or very many."""
    ids = getattr(run.account, "ids", None) or []
    return run.batch < len(ids) and len(ids[run.batch]) == run.layer(layer).queries


def of_model(run: Run, model: Any, layer: int) -> Steps:
    """The steps of one layer, by running the model once more on the same tokens."""
    ids = run.account.ids  # type: ignore[attr-defined]
    labels = list(run.labels.texts)
    inputs = torch.tensor([ids[run.batch]], device=model.device)
    return explain(model, inputs, layer=run.layers[layer].name, labels=labels)


def of_sight(run: Run, layer: int, head: int) -> Steps:
    """The steps of one head without values: a saved run keeps q and k, and its model is not at hand."""
    call = run.view(layer, head).sight.call
    if call.q is None:
        raise InputError(
            "the steps need q and k, which were not kept",
            expected="a run that kept q and k",
            got="a run without them",
            hint="sl.watch(model, keep_qk=True)",
        )
    if call.lost is not None:
        raise InputError(
            "the steps end in rows that sum to 1, and edits have taken keys from these without renormalising",
            expected="rows of a softmax",
            got="a run under edits with renormalize=False",
            hint="renormalize=True; the map has the weights as they are",
        )
    return explain(
        call.q,
        call.k,
        call.k,
        mask=call.mask,
        bias=call.bias,
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks,
        normalizer=call.normalizer.name,
        labels=run.labels.texts[: call.sizes.queries] or None,
        key_labels=run.key_labels(run.layers[layer]).texts[: call.sizes.keys] or None,
    )


def table(steps: Steps, head: int, query: int, top: int, key: int | None, with_values: bool) -> dict[str, Any]:
    """The table of a query as JSON, and one cell as lines of Python."""
    found = steps.table(query, head, top)
    body = found.to_dict()
    body["has_values"] = with_values
    if not with_values:
        body["columns"] = [column for column in body["columns"] if column["name"] not in OF_VALUES]
        body["lines"] = [{n: x for n, x in line.items() if n not in OF_VALUES} for line in body["lines"]]
        body |= {"sum": None, "output": None, "difference": None}
    best = max((line for line in found.lines if line.key is not None), key=lambda line: line.cells["weight"] or 0.0)
    chosen = key if key is not None else best.key
    if chosen is not None:
        lines = steps.to_python(query, chosen, head).splitlines()
        if not with_values:
            lines = [line for line in lines if not line.startswith(("v = ", "weighted_value"))]
        body["python"], body["python_key"] = "\n".join(lines), chosen
    projected = steps.after.get("projection")
    if with_values and projected is not None:
        body["projection"] = [float(x) for x in projected[query]]
    return body
