"""A run as one HTML file that needs no server and no network: the explorer's own page, with numbers inside.

It holds every head's thumbnail and portrait, the tokens, and the maps of heads: of a short text all of them with their
exact weights; of a longer one those of the most interesting heads, in at most 512 bins a side, as bytes on a
logarithmic scale that are right to 3.3 %, with the exact weights of the eight strongest keys of every query. What it
lacks (steps, rollout, exact cells of long maps) it says.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import InputError
from sightline.explore import bookmarks, measures, readings, thumbs
from sightline.explore.links import first_head, link_of
from sightline.explore.overview import COARSE, TRACK, overview_level
from sightline.explore.page import STATIC, asset
from sightline.explore.pyramid import TILE, Pyramid
from sightline.explore.run import Run

LARGEST = 20_000_000
# Bytes for the maps of chosen heads; tokens, thumbnails and the page itself need the rest.
FOR_HEADS = 10_000_000
# And for exact weights, where those of all heads fit into it.
FOR_EXACT = 4_000_000
TOP = 8
# Links are looked for in every head of a short text, and only in chosen heads of a long one.
SHORT = 512

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def report(run: Run, static: Path = STATIC) -> bytes:
    """The file. A run too large for one is refused."""
    script, style = (asset(name, static) for name in ("app.js", "app.css"))
    data = json.dumps(_data(run), ensure_ascii=False, allow_nan=False)
    title = _escaped(run.about()["title"])
    # Nothing inside may end a tag early; CSS, JSON and JavaScript each have an escape for it.
    style, script, data = (
        style.replace("</", "<\\/"),
        script.replace("</script", "<\\/script"),
        data.replace("<", "\\u003c"),
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{title}</title><style>{style}</style></head><body><div id="app"></div>',
        f'<script type="application/json" id="sightline-data">{data}</script>',
        f'<script type="module">{script}</script></body></html>',
    ]
    page = "".join(parts).encode("utf-8", "backslashreplace")
    if len(page) > LARGEST:
        raise InputError(
            "this run is too large for one file",
            expected=f"at most {LARGEST / 1e6:.0f} MB",
            got=f"{len(page) / 1e6:.1f} MB",
            hint="sightline look … --out FOLDER, and sightline serve FOLDER",
        )
    return page


def _data(run: Run) -> dict[str, Any]:
    about = readings.about(run)
    most = None if run.base is None else readings.most(run)
    pictures = [
        np.stack([thumbs.thumb(run.view(layer.index, head).pyramid, most=most)[0] for head in range(layer.heads)])
        for layer in run.layers
    ]
    base = run if run.base is None else run.base
    measured, _ = measures.measure(base)
    first = first_head(base, measured)
    order = [first, *(place for place in measures.ranked(measured) if place != first)]
    heads: dict[str, dict[str, Any]] = {}
    spent = 0
    cells = sum(layer.heads * layer.queries * layer.keys for layer in run.layers)
    exact = 4 * cells * 4 / 3 <= FOR_EXACT  # four bytes a cell, as text
    if most is not None and not exact:
        raise InputError(
            "a report of a reading holds every cell, and this run has too many",
            expected=f"at most {FOR_EXACT * 3 // 16:,} cells in all heads",
            got=f"{cells:,}",
            hint="a shorter text, or the report of what was looked at",
        )
    for layer, head in order:
        found = _head(run, layer, head, exact)
        size = sum(len(value) for value in found.values() if isinstance(value, str))
        if spent + size > FOR_HEADS and heads:
            break
        spent += size
        heads[f"{layer}/{head}"] = found
    for layer in about["layers"]:
        layer["exact"] = False
    portraits = {
        "heads": measured,
        "measures": measures.listed(measured),
        "similar": measures.similar(pictures),
        "first": list(order[0]),
        "complete": True,
    }
    return {
        "format": 2,
        "info": {"state": "done", **about, "growing": False},
        "tokens": {"texts": run.labels.texts, "kinds": run.labels.kinds},
        "memory": None
        if run.memory_labels is None
        else {"texts": run.memory_labels.texts, "kinds": run.memory_labels.kinds},
        "portraits": portraits if run.base is None else readings.portraits(run, portraits),
        "thumbs": _packed(np.concatenate([p.reshape(-1) for p in pictures])),
        "heads": heads,
        "kept": _kept(run),
    }


def _kept(run: Run) -> dict[str, Any]:
    """What is known beside the maps: bookmarks, and what the model wrote."""
    written = run.meta.get("written")
    return {
        "marks": bookmarks.read(run if run.base is None else run.base),
        **({} if written is None else {"written": written}),
    }


def _head(run: Run, layer: int, head: int, exact: bool) -> dict[str, Any]:
    """One chosen head: its map, what it received, its strongest keys and its link."""
    view = run.view(layer, head)
    pyramid = view.pyramid
    levels = overview_level(pyramid.queries, COARSE), overview_level(pyramid.keys, COARSE)
    floor = run.layers[layer].floor
    if floor is None:
        return {}
    levels = max(levels[0], floor[0]), max(levels[1], floor[1])
    whole = _whole(pyramid, levels, "mean")
    exact = exact and view.exact and levels == (0, 0)
    kept = {"exact": _packed(whole.astype("<f4"))} if exact else {"mean": _packed(thumbs.encode(whole))}
    found: dict[str, Any] = {"levels": list(levels), **kept}
    if levels != (0, 0) and _has_maxima(pyramid, levels):
        found["max"] = _packed(thumbs.encode(_whole(pyramid, levels, "max")))
    tracks = view.tracks() if view.exact or {TRACK, "received"} <= view.sight.kept.keys() else None
    if tracks is not None:
        found["tracks"] = _packed(np.concatenate(tracks).astype("<f4"))
    if view.exact and view.queries * view.keys <= SHORT * SHORT * 64:
        link = link_of(run, layer, head)
        found["link"] = None if link is None else list(link)
        if not exact:
            found["top"] = _strongest(run, layer, head)
    return found


def _whole(pyramid: Pyramid, levels: tuple[int, int], pool: str) -> np.ndarray:
    """All tiles of a level, put together."""
    bins = -(-pyramid.queries // (1 << levels[0])), -(-pyramid.keys // (1 << levels[1]))
    rows = []
    for y in range(-(-bins[0] // TILE)):
        row = []
        for x in range(-(-bins[1] // TILE)):
            plan = pyramid.plan(levels, y, x, pool)
            for step in plan.steps:
                step()
            row.append(plan.finish())
        rows.append(np.concatenate(row, 1))
    return np.concatenate(rows)[: bins[0], : bins[1]]


def _has_maxima(pyramid: Pyramid, levels: tuple[int, int]) -> bool:
    try:
        pyramid.check(levels, 0, 0, "max")
    except InputError:
        return False
    return True


def _strongest(run: Run, layer: int, head: int) -> dict[str, str]:
    """The strongest keys of every query: places as int32, weights as float32."""
    view = run.view(layer, head)
    keys = np.full((view.queries, TOP), -1, "<i4")
    weights = np.zeros((view.queries, TOP), "<f4")
    step = max(1, (1 << 22) // view.keys)
    for start in range(0, view.queries, step):
        band = slice(start, min(start + step, view.queries))
        part = np.nan_to_num(view.tile(band, slice(0, view.keys)), nan=-1.0)
        n = min(TOP, view.keys)
        best = np.argsort(-part, axis=1, kind="stable")[:, :n]
        found = np.take_along_axis(part, best, 1)
        keys[band, :n] = np.where(found > 0, best, -1)
        weights[band, :n] = np.maximum(found, 0)
    return {"keys": _packed(keys), "weights": _packed(weights)}


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
