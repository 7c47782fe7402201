"""What can be asked of runs beyond their tiles: portraits, thumbnails, links, rollout, steps, files to take away."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sightline.errors import InputError
from sightline.explore import export, measures, readings, report, thumbs, worked_table
from sightline.explore.arrays import array
from sightline.explore.cache import Cache
from sightline.explore.links import first_head, link_of
from sightline.explore.model_runs import Models
from sightline.explore.run import Run

KEPT = 32 << 20


class File(NamedTuple):
    """A file to take away."""

    name: str
    media_type: str
    content: bytes


class Atlas:
    """Answers about runs. What several answers need is kept, up to a number of bytes.

    `models` are those that can be run once more, for steps with values.
    """

    def __init__(self, models: Models | None = None, kept: Cache[Any] | None = None) -> None:
        self.models = models
        self.kept: Cache[Any] = Cache(KEPT) if kept is None else kept

    def portraits(self, run: Run) -> tuple[dict[str, Any], bool]:
        """Every head's measures, the heads that are alike, and the head to look at first; and whether all is exact."""
        if run.base is not None:
            body, complete = self.portraits(run.base)
            return readings.portraits(run, body), complete
        heads, complete = measures.measure(run)
        pictures, exact = self.pictures(run)
        complete &= exact
        first = first_head(run, heads)
        body = {
            "heads": heads,
            "measures": measures.listed(heads),
            "similar": measures.similar(pictures),
            "first": first,
            "complete": complete,
        }
        return body, complete

    def thumbs(self, run: Run) -> tuple[bytes, bool]:
        """The thumbnails of all heads, one after the other; and whether all are exact."""
        pictures, complete = self.pictures(run)
        return b"".join(picture.tobytes() for picture in pictures), complete

    def pictures(self, run: Run) -> tuple[list[np.ndarray], bool]:
        """For every layer its thumbnails `[heads, 64, 64]`, and whether all are exact."""
        key = (run.key, "thumb arrays")
        kept = self.kept.get(key)
        if kept is not None:
            return kept, True
        complete, pictures = True, []
        most = None if run.base is None else readings.most(run)
        for layer in run.layers:
            made = [thumbs.thumb(run.view(layer.index, head).pyramid, most=most) for head in range(layer.heads)]
            pictures.append(np.stack([picture for picture, _ in made]))
            complete &= all(exact for _, exact in made)
        if complete:
            self.kept.put(key, pictures, sum(picture.nbytes for picture in pictures))
        return pictures, complete

    def link(self, run: Run, layer: int, head: int) -> dict[str, Any]:
        """The strongest link of a head that is not a matter of course."""
        link = link_of(run, layer, head)
        return {"link": None if link is None else list(link)}

    def rollout(self, run: Run, queries: list[int]) -> np.ndarray:
        """How much every token fed some positions, through all layers."""
        follow = getattr(run.account, "rollout", None)
        if follow is None:
            raise InputError("this run has no rollout", expected="a watched run", got="single sights", hint="rows")
        # The mean, so that the shares of one or of several positions sum to 1.
        return np.mean([array(follow(query)[run.batch]) for query in queries], axis=0, dtype=np.float64).astype("<f4")

    def steps(self, run: Run, layer: int, head: int, query: int, top: int, key: int | None) -> dict[str, Any]:
        """The worked table of one query."""
        about, view = run.layer(layer), run.view(layer, head)
        view.inside("query", [query], about.queries)
        if key is not None:
            view.inside("key", [key], about.keys)
        models = self.models
        # The model itself knows nothing of edits: of those the run has what it attended to with them.
        again = models is not None and run.model in models and worked_table.has_ids(run, layer)
        if not again or run.meta.get("edits"):
            models = None
        place = (run.key, "steps of", layer, head if models is None else None)
        kept = self.kept.get(place)
        if kept is None:
            if models is None:
                kept = worked_table.of_sight(run, layer, head)
            else:
                kept = worked_table.of_model(run, models.get(str(run.model))[0], layer)
            self.kept.put(place, kept, sum(x.numel() * x.element_size() for x in (kept.done.q, kept.done.k)))
        number = 0 if models is None else about.numbers[head]
        return worked_table.table(kept, number, query, top, key, with_values=models is not None)

    def export(self, run: Run, format: str, layer: int, head: int, rows: slice | None, columns: slice | None) -> File:
        """A rectangle of one head, or all of it, as CSV or npz; or the run as a page that needs no server."""
        about = run.layer(layer)
        band = slice(0, about.queries) if rows is None else rows
        across = slice(0, about.keys) if columns is None else columns
        run.view(layer, head)  # says if there is none
        name = f"sightline-{run.id[:8]}-layer{about.number}-head{about.numbers[head]}"
        name += "" if run.of == "weights" else f"-{run.of}"
        if format == "html":
            return File(f"sightline-{run.id[:8]}.html", "text/html; charset=utf-8", report.report(run))
        if format == "csv":
            return File(f"{name}.csv", "text/csv; charset=utf-8", export.csv(run, layer, head, band, across))
        return File(f"{name}.npz", "application/octet-stream", export.npz(run, layer, head, band, across))
