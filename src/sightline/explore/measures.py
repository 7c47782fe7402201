"""What every head is like, as numbers: how focused, how much goes to the first, the previous, the same token.

From these come the ranking of the Heads rail, the head that is shown first, and which heads are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sightline.explore.overview import PATCH, TRACK
from sightline.explore.pyramid import DIRECT
from sightline.explore.run import Layer, Run
from sightline.explore.thumbs import decode
from sightline.lens import Sight
from sightline.lens.statistics import DISTANCE, ENTROPY, kept_rows
from sightline.watching.read.measures import named

# Rows of the diagonal that are computed in one go.
BAND = 256
# What the portrait of a head lists; entropy and spread are said in its sentence.
LISTED = named("focus", "first", "previous", "same", "next", "induction", DISTANCE.name, ENTROPY.name)
MEASURES = (*(shown.name for shown in LISTED), "spread", "interest")
# What a watched run says itself; the rest is made of its sights.
TOLD = ("first", "previous", "same", "induction", "distance")
Measures = dict[str, float | None]
# Where most heads look as a matter of course.
COMMON = ("first", "same", "previous", "next")


def measure(run: Run) -> tuple[list[list[Measures]], bool]:
    """For every layer and head its measures; and whether all of them are known."""
    told = _told(run)
    found, complete = [], True
    for layer in run.layers:
        heads, whole = _of_layer(run, layer, told.get(layer.name, {}))
        for head in heads:
            head["interest"] = None if head["focus"] is None else interest(head)
        found.append(heads)
        complete &= whole
    return found, complete


def listed(heads: list[list[Measures]]) -> list[dict[str, Any]]:
    """What a portrait lists, and how: the usual measures, then the other statistics that some head has.

    >>> [shown["label"] for shown in listed([[{"max_score": 3.0, "nearby": 0.5}]])][-2:]
    ['largest score', 'nearby']
    """
    more = dict.fromkeys(name for layer in heads for head in layer for name in head if name not in MEASURES)
    return [shown._asdict() for shown in (*LISTED, *kept_rows(more).values())]


def interest(head: Mapping[str, float | None]) -> float:
    """How much a head is worth a look: its focus, less what goes to the first token, to the token itself and to those
    beside it; half as much again for induction.

    >>> interest({"focus": 0.5, "first": 0.5, "previous": None})
    0.25
    >>> interest({"focus": 0.5, "induction": 1.0})
    0.75
    """
    share = {name: head.get(name) or 0.0 for name in ("focus", *COMMON, "induction")}
    return share["focus"] * math.prod(1 - share[name] for name in COMMON) * (1 + share["induction"] / 2)


def ranked(heads: list[list[Measures]]) -> list[tuple[int, int]]:
    """Every layer and head, the most interesting first.

    >>> head = {"first": 0.0, "previous": 0.0}
    >>> ranked([[{"focus": 0.1, **head}], [{"focus": 0.2, **head}]])
    [(1, 0), (0, 0)]
    """
    places = [(i, j) for i, layer in enumerate(heads) for j in range(len(layer))]
    return sorted(places, key=lambda place: (-interest(heads[place[0]][place[1]]), place))


def similar(thumbs: list[np.ndarray], n: int = 3) -> list[list[list[tuple[int, int, float]]]]:
    """For every head the `n` heads whose maps are most alike: the cosine between the roots of their thumbnails."""
    flat, places = [], []
    for i, layer in enumerate(thumbs):
        for j, picture in enumerate(layer):
            flat.append(np.sqrt(np.nan_to_num(decode(picture))).ravel())
            places.append((i, j))
    table = np.array(flat, dtype=np.float32)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    alike = table @ table.T
    np.fill_diagonal(alike, -1.0)
    order = np.argsort(-alike, axis=1, kind="stable")[:, :n]
    found: list[list[list[tuple[int, int, float]]]] = [[] for _ in thumbs]
    for row, (i, _) in enumerate(places):
        best = [(*places[other], round(float(alike[row, other]), 4)) for other in order[row] if alike[row, other] > 0]
        found[i].append(best)
    return found


def _told(run: Run) -> dict[str, dict[str, np.ndarray]]:
    """What the account itself says of its heads, by layer and measure."""
    told: dict[str, dict[str, np.ndarray]] = {}
    portraits = getattr(run.account, "portraits", None)
    if portraits is None:
        return told
    found = portraits()
    for i, portrait in enumerate(found):
        own = {name: getattr(portrait, name) for name in TOLD} | (found.others[i] if found.others else {})
        mine = told.setdefault(portrait.layer, {name: np.array([]) for name in own})
        for name, value in own.items():
            mine[name] = np.append(mine[name], np.nan if value is None else value)
    return told


def _of_layer(run: Run, layer: Layer, told: dict[str, np.ndarray]) -> tuple[list[Measures], bool]:
    sight = run.account[layer.name]
    known: dict[str, np.ndarray | None] = dict.fromkeys(MEASURES)
    known |= told
    visible = _visible(sight, run.batch)
    rows = visible > 0
    complete = True
    for name in kept_rows(sight.kept):
        if known.get(name) is None:
            known[name] = _mean(_member(sight.statistic(name), run.batch, layer), rows)
    if TRACK in sight.kept or (layer.exact and layer.queries * layer.keys * layer.heads <= 4 * DIRECT):
        entropy = _member(sight.entropy, run.batch, layer)
        spread = np.log(np.maximum(visible, 1))
        share = np.divide(entropy, spread, out=np.zeros_like(entropy), where=visible > 1)
        several = visible > 1
        known[TRACK] = _mean(entropy, rows)
        known["spread"] = _mean(np.broadcast_to(spread, entropy.shape), rows)
        known["focus"] = 1 - _mean(share, np.broadcast_to(several, share.shape))
    elif layer.exact:
        complete = False
    if layer.exact and (known["first"] is None or np.isnan(known["first"]).all()):
        known |= {"first": _first(sight, run.batch, layer), **_beside(sight, run.batch, layer, (-1, 0, 1))}
    elif layer.exact:
        known |= _beside(sight, run.batch, layer, (1,))
    heads = [
        {name: None if values is None else _number(values[head]) for name, values in known.items()}
        for head in range(layer.heads)
    ]
    return heads, complete


def _first(sight: Sight, batch: int, layer: Layer) -> np.ndarray:
    """The mean weight of the first token, over all queries that see something. What a sink takes is no token's."""
    first = np.zeros(layer.heads)
    for start in range(0, layer.queries if layer.keys else 0, PATCH):
        band = slice(start, min(start + PATCH, layer.queries))
        first += _member(sight.tile(band, slice(0, 1)), batch, layer, 2).sum((-2, -1))
    return first / _seeing(sight, batch, layer)


def _beside(sight: Sight, batch: int, layer: Layer, shifts: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The mean weight of the token before the query, of its own, of the one after it: by how far they are from it."""
    offset, queries, keys = layer.keys - layer.queries, layer.queries, layer.keys
    names = {-1: "previous", 0: "same", 1: "next"}
    found = {shift: np.zeros(layer.heads) for shift in shifts}
    # No causal mask lets a query see the token after it; memories of a cross-attention have no place beside it.
    looked = [shift for shift in shifts if shift < 1 or not layer.causal]
    if layer.cross:
        return {}
    for start in range(0, queries if looked else 0, BAND):
        band = slice(start, min(start + BAND, queries))
        columns = slice(max(0, band.start + offset + looked[0]), max(0, min(band.stop + offset + looked[-1], keys)))
        if columns.stop <= columns.start:
            continue
        tile = _member(sight.tile(band, columns), batch, layer, 2)
        rows = np.arange(band.start, band.stop)
        for shift in looked:
            at = rows + offset + shift - columns.start
            inside = (at >= 0) & (at < tile.shape[-1])
            found[shift] += tile[:, (rows - band.start)[inside], at[inside]].sum(-1)
    seeing = _seeing(sight, batch, layer)
    return {names[shift]: total / seeing for shift, total in found.items()}


def _seeing(sight: Sight, batch: int, layer: Layer) -> np.ndarray:
    """How many queries see something, by head."""
    return np.maximum((_member(sight.due, batch, layer) > 0).sum(-1), 1)


def _visible(sight: Sight, batch: int) -> np.ndarray:
    """How many keys each query may see, `[queries]` or `[heads, queries]`."""
    queries, keys = sight.shape[-2:]
    mask = sight.mask
    if mask is None:
        return np.full(queries, keys)
    counts = mask.visible(queries, keys, sight.device)
    sizes = sight.call.sizes.batch
    if counts.dim() > 2 and math.prod(counts.shape[:-2]) > 1:
        counts = counts.expand(*sizes, *counts.shape[-2:]).flatten(0, -3)[batch]
    return counts.reshape(-1, queries).squeeze(0).cpu().numpy()


def _member(x: torch.Tensor, batch: int, layer: Layer, rest: int = 1) -> np.ndarray:
    """One batch member's `[heads, …]`."""
    flat = x.reshape(-1, layer.heads, *x.shape[x.dim() - rest :])
    return flat[batch if len(flat) > 1 else 0].to("cpu", torch.float64).numpy()


def _mean(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    where = np.broadcast_to(where, values.shape)
    return np.where(where, values, 0).sum(-1) / np.maximum(where.sum(-1), 1)


def _number(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None
