"""A run as one HTML file that needs no server and no network: the explorer's own page, with numbers inside.

It holds every head's thumbnail and portrait, the tokens, and the maps of heads: of a short text all of them with their
exact weights; of a longer one those of the most interesting heads, in at most 512 bins a side, as bytes on a
logarithmic scale that are right to 3.3 %, with the exact weights of the eight strongest keys of every query. Readings
of a short text that were made are in it too, cell by cell; so are the exact effects of heads that were found, the
picture of a vision model, bookmarks, and what was written. What it lacks (steps, rollout, exact cells of long maps) it
says.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import InputError
from sightline.explore import bookmarks, images, measures, readings, thumbs
from sightline.explore.links import first_head, link_of
from sightline.explore.overview import COARSE, TRACK, overview_level
from sightline.explore.page import STATIC, asset
from sightline.explore.pyramid import TILE, Pyramid
from sightline.explore.run import Run

LARGEST = 20_000_000
# Bytes for the maps of chosen heads; tokens, thumbnails and the page itself need the rest.
FOR_HEADS = 10_000_000
# And for exact weights, where those of all heads fit into it; and for all readings together.
FOR_EXACT = 4_000_000
FOR_READINGS = 8_000_000
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
    base = run if run.base is None else run.base
    made = _made(base, run)
    if run.base is not None and not made:
        raise InputError(
            "a report of a reading holds every cell, and this run has too many",
            expected=f"at most {FOR_EXACT * 3 // 16:,} cells in all heads",
            got=f"{_cells(base):,}",
            hint="a shorter text, or the report of what was looked at",
        )
    found = _numbers(base)
    labels, memory = base.labels, base.memory_labels
    return {
        "format": 3,
        **found,
        "tokens": {"texts": labels.texts, "kinds": labels.kinds},
        "memory": None if memory is None else {"texts": memory.texts, "kinds": memory.kinds},
        "readings": [_numbers(one) for one in made],
        "kept": _kept(base, run),
    }


def _made(base: Run, first: Run) -> list[Run]:
    """The readings of a run that are there, as many as fit: the one that is asked for first, then the newest."""
    if not _is_exact(base):
        return []
    made = [] if first is base else [first]
    for key in dict.fromkeys([*(key for key, _ in reversed(base.readings)), readings.OWN]):
        both = (readings.find(base, key, of) for of in readings.SHOWN)
        made += [one for one in both if one is not None and one is not first]
    return made[: max(1 if first is not base else 0, FOR_READINGS // (_cells(base) * 16 // 3 + 1))]


def _cells(run: Run) -> int:
    return sum(layer.heads * layer.queries * layer.keys for layer in run.layers)


def _is_exact(run: Run) -> bool:
    return 4 * _cells(run) * 4 / 3 <= FOR_EXACT  # four bytes a cell, as text


def _numbers(run: Run) -> dict[str, Any]:
    """What is known of the heads of a run, or of a reading of one."""
    about = readings.about(run)
    own = None if run.base is None else run.base.meta.get("mattered_for")
    if own is not None and about["aim"] is None:  # what it was watched for, as `sightline look --target` says
        about |= {"aim": {name: own[name] for name in ("token", "than", "after")}, "value": own["value"]}
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
    spent, exact = 0, _is_exact(run)
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
        "info": {"state": "done", **about, "growing": False},
        "portraits": portraits if run.base is None else readings.portraits(run, portraits),
        "thumbs": _packed(np.concatenate([p.reshape(-1) for p in pictures])),
        "heads": heads,
    }


def _kept(base: Run, shown: Run) -> dict[str, Any]:
    """What is known beside the maps: the picture, bookmarks, what was written, effects (the newest first), and which
    reading was asked for.
    """
    written = base.meta.get("written")
    picture = images.embedded(base)
    return {
        "marks": bookmarks.read(base),
        "effects": list(base.effects.values())[::-1],
        **({} if written is None else {"written": written}),
        **({} if picture is None else {"picture": picture}),
        **({} if shown is base else {"shown": shown.id}),
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
