"""One link in every head: how much a query looks at a key all through a model, or what it looks at most.

And from there down: the strongest sources of a token, layer by layer, as a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sightline.errors import InputError
from sightline.explore.run import Layer, Run

# How many sources of a token a layer lists, and the weight from which on a path follows the strongest of them.
LISTED, LEAST = 4, 0.3
# A path is no longer than this, whatever a model has of layers.
LONGEST = 256


def grid(run: Run, query: int, key: int, like: int = 0) -> dict[str, Any]:
    """The weight of one cell in every layer and head; None where it is hidden, or where the layer has no such cell.

    `like` is the layer in which the cell was chosen: keys of a memory are no tokens of the text.
    """
    _inside(run, like, query, key)
    heads = []
    for layer in run.layers:
        if not _alike(layer, run.layers[like], query, key):
            heads.append([None] * layer.heads)
            continue
        cells = run.cells(layer.index, slice(query, query + 1), slice(key, key + 1))
        heads.append([_number(x) for x in cells[:, 0, 0]])
    return {"query": query, "key": key, "of": run.of, "heads": heads}


def strongest(run: Run, query: int, like: int = 0, n: int = 3) -> dict[str, Any]:
    """What a query looks at most in every layer and head: the `n` strongest keys, each with its weight."""
    _inside(run, like, query)
    heads = []
    for layer in run.layers:
        if not _alike(layer, run.layers[like], query, 0):
            heads.append([[] for _ in range(layer.heads)])
            continue
        rows = run.cells(layer.index, slice(query, query + 1), slice(0, layer.keys))[:, 0]
        heads.append([_largest(row, n) for row in rows])
    return {"query": query, "of": run.of, "heads": heads}


def follow(run: Run, query: int, start: int | None = None, least: float = LEAST, like: int = 0) -> dict[str, Any]:
    """The strongest sources of a token, from layer `start` (the last one if not given) down to the first.

    In every layer the strongest link of any head is looked for that is neither to the first token nor to the token
    itself nor to a special one; one of at least `least` (of a signed reading: of the row's largest) is followed, and
    the layers below are asked about the token it leads to. Only layers of self-attention like `like` are walked.
    """
    about = run.layers[like]
    if about.cross or about.queries != about.keys:
        raise InputError(
            "a path needs queries that are keys too",
            expected="self-attention over a whole text",
            got=f"layer {about.number}: {about.queries} queries, {about.keys} keys",
            hint="a layer of self-attention",
        )
    _inside(run, like, query)
    first = len(run.layers) - 1 if start is None else start
    run.layer(first)
    return {"query": query, "of": run.of, "least": least, "steps": list(_walk(run, query, first, least, about))}


def _walk(run: Run, place: int, start: int, least: float, like: Layer) -> Iterator[dict[str, Any]]:
    special = run.special_keys(like)
    for layer in reversed(run.layers[: start + 1][-LONGEST:]):
        if layer.cross or (layer.queries, layer.keys) != (like.queries, like.keys):
            continue
        rows = run.cells(layer.index, slice(place, place + 1), slice(0, layer.keys))[:, 0].astype(np.float64)
        size = np.nan_to_num(np.abs(rows), nan=0.0)
        # What a signed reading calls much depends on the text: a share of the largest anywhere in these rows.
        enough = least if run.of == "weights" else least * size.max(initial=0.0)
        size[:, special] = 0.0
        size[:, 0] = size[:, place] = 0.0
        order = np.argsort(-size, axis=None, kind="stable")[:LISTED]
        found = [
            [int(head), int(key), float(rows[head, key])]
            for head, key in (divmod(int(spot), layer.keys) for spot in order)
            if size[head, key] > 0
        ]
        goes = bool(found and size[found[0][0], found[0][1]] >= enough)
        yield {"layer": layer.index, "query": place, "sources": found, "goes": goes}
        if goes:
            place = found[0][1]


def _largest(row: np.ndarray, n: int) -> list[list[float]]:
    size = np.nan_to_num(np.abs(row), nan=-1.0)
    order = np.argsort(-size, kind="stable")[:n]
    return [[int(key), float(row[key])] for key in order if size[key] > 0]


def _alike(layer: Layer, like: Layer, query: int, key: int) -> bool:
    return layer.cross == like.cross and query < layer.queries and key < layer.keys


def _inside(run: Run, like: int, query: int, key: int = 0) -> None:
    about = run.layer(like)
    view = run.view(like, 0)
    view.inside("query", [query], about.queries)
    view.inside("key", [key], about.keys)


def _number(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None
