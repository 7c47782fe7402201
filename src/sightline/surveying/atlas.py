"""The atlas of a survey: every head of a model over a corpus, as numbers, and as a page that opens without a server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.files import make_folder, write_whole
from sightline.surveying.heads import MEASURES
from sightline.surveying.parts import read_about, read_rows

if TYPE_CHECKING:
    from sightline.lens.statistics import Shown

PAGE = Path(__file__).with_name("atlas.html")
# Bars of a distribution, links in context, and heads that are alike.
BINS, LINKS, ALIKE = 24, 10, 5


def write_atlas(survey: Path, out: Path | None = None) -> Path:
    """Write the atlas of a survey as a folder with a page; the address of the page."""
    content = atlas(read_rows(survey), read_about(survey)["settings"]["model"])
    folder = survey / "atlas" if out is None else out
    make_folder(folder)
    # A page of a folder may load a script beside it, and may not fetch: the numbers are a script.
    data = _script(content)
    write_whole(folder / "data.js", lambda path: path.write_text(data, "utf-8"))
    write_whole(folder / "index.html", lambda path: path.write_bytes(PAGE.read_bytes()))
    return folder / "index.html"


def in_one_file(content: dict[str, Any]) -> str:
    """The page with its numbers inside."""
    return PAGE.read_text("utf-8").replace(_BESIDE, f"<script>\n{_script(content)}</script>", 1)


def _script(content: dict[str, Any]) -> str:
    said = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"window.ATLAS = {said};\n".replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


_BESIDE = '<script src="data.js"></script>'


def atlas(rows: list[dict[str, Any]], model: str) -> dict[str, Any]:
    """What the page shows: of every head its means, their distribution over texts, links, and heads that are alike."""
    seen = [row for row in rows if row["error"] is None]
    if not seen:
        raise InputError("there is nothing to draw", expected="a survey with a text that ran", got="none", hint="go on")
    places = sorted({(row["number"], row["head"], row["layer"]) for row in seen})
    index = {place: i for i, place in enumerate(places)}
    texts = {key: i for i, key in enumerate(dict.fromkeys(row["key"] for row in seen))}
    table = np.full((len(places), len(MEASURES), len(texts)), np.nan)
    links: list[list[dict[str, Any]]] = [[] for _ in places]
    spans: list[dict[str, list[float]]] = [{} for _ in places]
    for row in seen:
        at = index[row["number"], row["head"], row["layer"]]
        for i, shown in enumerate(MEASURES):
            value = row[shown.name]
            # A model whose numbers overflow has measures that are none: not known, as those that were not asked for.
            table[at, i, texts[row["key"]]] = value if value is not None and math.isfinite(value) else np.nan
        links[at] += [{**link, "name": row["name"]} for link in row["links"]]
        for span in row["spans"]:
            if math.isfinite(span["share"]):
                spans[at].setdefault(span["name"], []).append(span["share"])
    means = np.full(table.shape[:2], np.nan)
    some = ~np.isnan(table).all(-1)
    means[some] = np.nanmean(table[some], -1)
    found = contents(model, MEASURES, places, table, means)
    for at, head in enumerate(found["heads"]):
        head["links"] = sorted(links[at], key=lambda link: (-link["weight"], link["name"], link["query"]))[:LINKS]
        head["spans"] = {name: sum(values) / len(values) for name, values in spans[at].items()}
    errors = [{"name": row["name"], "error": row["error"]} for row in rows if row["error"] is not None]
    return found | {"texts": len(texts), "errors": errors[:200], "failed": len(rows) - len(seen)}


def contents(
    model: str, measures: Sequence[Shown], places: list[tuple[int, int, str]], table: np.ndarray, means: np.ndarray
) -> dict[str, Any]:
    """What the page shows of heads: a table `[heads, measures, texts]` and its means, NaN where nothing is known.

    Places are the number of the layer, the head, and the layer's name.
    """
    known = [i for i in range(len(measures)) if not np.isnan(table[:, i]).all()]
    ranges = [_range(table[:, i], measures[i].range) for i in known]
    alike = similar(table[:, known])
    return {
        "model": model,
        "measures": [measures[i]._asdict() | {"range": list(r)} for i, r in zip(known, ranges, strict=True)],
        "heads": [
            {
                "layer": layer,
                "number": number,
                "head": head,
                "values": [_number(means[at, i]) for i in known],
                "bins": [_bins(table[at, i], r) for i, r in zip(known, ranges, strict=True)],
                "alike": alike[at],
            }
            for at, (number, head, layer) in enumerate(places)
        ],
    }


def similar(table: np.ndarray, n: int = ALIKE) -> list[list[list[float]]]:
    """For every head the heads whose measures, text by text, are most alike: the cosine of their standard scores.

    >>> similar(np.array([[[0.9, 0.8]], [[0.1, 0.2]], [[0.9, 0.7]]]), n=1)[0][0][0]
    2
    """
    flat = table.reshape(len(table), -1)
    flat = flat[:, ~np.isnan(flat).all(0)]
    mean = np.nanmean(flat, axis=0, where=~np.isnan(flat), keepdims=True) if len(flat) else flat
    scores = np.nan_to_num(flat - mean)
    spread = scores.std(axis=0, keepdims=True)
    scores = np.divide(scores, spread, out=np.zeros_like(scores), where=spread > 1e-12)
    length = np.linalg.norm(scores, axis=1, keepdims=True)
    scores /= np.maximum(length, 1e-12)
    alike = scores @ scores.T
    np.fill_diagonal(alike, -np.inf)
    order = np.argsort(-alike, axis=1, kind="stable")[:, : min(n, max(len(flat) - 1, 0))]
    return [[[int(other), round(float(alike[row, other]), 4)] for other in order[row]] for row in range(len(flat))]


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _range(values: np.ndarray, said: tuple[float, float] | None) -> tuple[float, float]:
    if said is not None:
        return said
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (min(low, 0.0), high if high > low else low + 1.0)


def _bins(values: np.ndarray, within: tuple[float, float]) -> list[int]:
    """How many texts lie in each of some equal parts of a range; what lies outside counts to the nearest."""
    real = np.clip(values[~np.isnan(values)], *within)
    counted: list[int] = np.histogram(real, bins=BINS, range=within)[0].tolist()
    return counted
