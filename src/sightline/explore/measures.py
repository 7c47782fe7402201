"""What every head is like, as numbers: how focused, how much goes to the first, the previous, the same token.

From these come the ranking of the Heads rail, the head that is shown first, and which heads are alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from sightline.explore.overview import PATCH, TRACK
from sightline.explore.pyramid import DIRECT
from sightline.explore.run import Layer, Run
from sightline.explore.thumbs import decode
from sightline.lens import Sight
from sightline.lens.statistics import DISTANCE, ENTROPY, Shown, kept_rows

# Rows of the diagonal that are computed in one go.
BAND = 256
_SHARE = (0.0, 1.0)
# What the portrait of a head lists; entropy and spread are said in its sentence.
LISTED = (
    Shown("focus", "focus", about="low entropy for the number of visible keys", range=_SHARE),
    Shown("first", "first token", about="looks at the first token", range=_SHARE),
    Shown("previous", "previous token", about="looks at the token before", range=_SHARE),
    Shown("same", "itself", about="looks at the same token", range=_SHARE),
    Shown("induction", "induction", about="looks at what came next the last time", range=_SHARE),
    DISTANCE.described,
)
MEASURES = (ENTROPY.name, "spread", *(shown.name for shown in LISTED))
# What a watched run says itself; the rest is made of its sights.
TOLD = tuple(shown.name for shown in LISTED if shown.name != "focus")
Measures = dict[str, float | None]


def measure(run: Run) -> tuple[list[list[Measures]], bool]:
    """For every layer and head its measures; and whether all of them are known."""
    told = _told(run)
    found, complete = [], True
    for layer in run.layers:
        heads, whole = _of_layer(run, layer, told.get(layer.name, {}))
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


def interest(head: Measures) -> float:
    """How much a head is worth a look: focused, and neither on the first nor on the previous token.

    >>> interest({"focus": 0.5, "first": 0.5, "previous": None})
    0.25
    """
    return (head["focus"] or 0.0) * (1 - (head["first"] or 0.0)) * (1 - (head["previous"] or 0.0))


def first_choice(heads: list[list[Measures]]) -> tuple[int, int]:
    """The head to look at first: the most interesting; of equal ones the lowest layer and head."""
    best, choice = -1.0, (0, 0)
    for i, layer in enumerate(heads):
        for j, head in enumerate(layer):
            if interest(head) > best + 1e-9:
                best, choice = interest(head), (i, j)
    return choice


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
        known |= _shares(sight, run.batch, layer)
    heads = [
        {name: None if values is None else _number(values[head]) for name, values in known.items()}
        for head in range(layer.heads)
    ]
    return heads, complete


def _shares(sight: Sight, batch: int, layer: Layer) -> dict[str, np.ndarray]:
    """The mean weight of the first, the previous and the same token, over all queries that see something.

    What a sink takes is no token's.
    """
    offset, queries, keys = layer.keys - layer.queries, layer.queries, layer.keys
    sees = _member(sight.due, batch, layer) > 0
    total = np.maximum(sees.sum(-1), 1)
    if not queries or not keys:
        return {}
    first = np.zeros(layer.heads)
    for start in range(0, queries, PATCH):
        band = slice(start, min(start + PATCH, queries))
        first += _member(sight.tile(band, slice(0, 1)), batch, layer, 2).sum((-2, -1))
    if layer.cross:
        return {"first": first / total}
    previous, same = np.zeros(layer.heads), np.zeros(layer.heads)
    for start in range(0, queries, BAND):
        band = slice(start, min(start + BAND, queries))
        columns = slice(max(0, band.start + offset - 1), max(0, min(band.stop + offset, keys)))
        if columns.stop <= columns.start:
            continue
        tile = _member(sight.tile(band, columns), batch, layer, 2)
        for total_of, shift in ((previous, -1), (same, 0)):
            for_rows = np.arange(band.start, band.stop)
            at = for_rows + offset + shift - columns.start
            inside = (at >= 0) & (at < tile.shape[-1])
            total_of += tile[:, (for_rows - band.start)[inside], at[inside]].sum(-1)
    return {"first": first / total, "previous": previous / total, "same": same / total}


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
