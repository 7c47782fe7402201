"""Numbers to take away: a rectangle of one head as CSV or npz, exact, with its tokens and settings.

Of a reading it is the reading's numbers, under its name: `norms` or `influence` in place of the weights.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from sightline.errors import TooLargeError
from sightline.explore.run import Run

CSV_CELLS = 1_000_000
NPZ_BYTES = 64 << 20


def csv(run: Run, layer: int, head: int, rows: slice, columns: slice) -> bytes:
    """A line for every visible cell: positions, tokens in quotes, and `weight`, or the reading by its name."""
    cells, queries, keys = _rectangle(run, layer, head, rows, columns, CSV_CELLS, "cells as CSV")
    lines = [f"query,key,query_token,key_token,{'weight' if run.of == 'weights' else run.of}"]
    quoted = [_quoted(token) for token in keys]
    for i, row in enumerate(cells):
        start = f"{rows.start + i},"
        query = _quoted(queries[i])
        for j in np.flatnonzero(~np.isnan(row)):
            lines.append(f"{start}{columns.start + j},{query},{quoted[j]},{float(row[j])!r}")
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def npz(run: Run, layer: int, head: int, rows: slice, columns: slice) -> bytes:
    """`weights`, or the reading by its name: float32, NaN where hidden. Tokens, `first`, `about` (JSON). No pickle."""
    cells, queries, keys = _rectangle(run, layer, head, rows, columns, NPZ_BYTES // 4, "cells as npz")
    about = {
        "run": run.id,
        "model": run.model,
        "layer": run.layers[layer].number,
        "layer_name": run.layers[layer].name,
        "head": run.layers[layer].numbers[head],
        "rows": [rows.start, rows.stop],
        "columns": [columns.start, columns.stop],
        "normalizer": run.layers[layer].normalizer,
        "of": run.of,
    }
    if run.base is not None:
        about |= {"run": run.base.id, "aim": run.meta.get("aim"), "value": run.meta.get("value")}
    file = io.BytesIO()
    arrays: dict[str, Any] = {
        run.of: cells,
        "queries": np.array(queries, dtype=np.str_),
        "keys": np.array(keys, dtype=np.str_),
        "first": np.array([rows.start, columns.start]),
        "about": np.array(json.dumps(about)),
    }
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _rectangle(
    run: Run, layer: int, head: int, rows: slice, columns: slice, limit: int, what: str
) -> tuple[np.ndarray, list[str], list[str]]:
    view = run.view(layer, head)
    about = run.layers[layer]
    view.inside("query", [rows.start, rows.stop - 1], about.queries)
    view.inside("key", [columns.start, columns.stop - 1], about.keys)
    cells = (rows.stop - rows.start) * (columns.stop - columns.start)
    if cells > limit:
        raise TooLargeError(
            f"too many {what}",
            expected=f"at most {limit:,}",
            got=f"{cells:,}",
            hint="a smaller rectangle, e.g. zoom in first",
        )
    queries = _tokens(run.labels.texts, rows)
    return view.tile(rows, columns), queries, _tokens(run.key_labels(about).texts, columns)


def _tokens(texts: list[str], span: slice) -> list[str]:
    return [texts[i] if i < len(texts) else "" for i in range(span.start, span.stop)]


def _quoted(token: str) -> str:
    """A token as a field of CSV, as it is: a reader of CSV gives it back."""
    return '"' + token.replace('"', '""') + '"'
