"""One head as the explorer asks about it: rows, columns, cells, tracks, and its strongest links, as plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.explore.arrays import array
from sightline.explore.overview import TRACK
from sightline.explore.pyramid import DIRECT, Pyramid
from sightline.lens.requests import Top
from sightline.lens.statistics import kept_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sightline.lens import Sight

# A rectangle that is looked at cell by cell for its maximum; a bin of the highest level is no larger.
PEEK = 1 << 22


class HeadView:
    """Answers about one head, from the sight of that head alone.

    >>> import torch, sightline as sl
    >>> view = HeadView(sl.look(torch.eye(3)[None], torch.eye(3)[None], scale=9.0))
    >>> view.row([1]).round(3).tolist()
    [0.0, 1.0, 0.0]
    """

    def __init__(self, sight: Sight, of: str = "weights") -> None:
        self.sight, self.of = sight, of
        self.queries, self.keys = sight.shape[-2:]
        self.pyramid = Pyramid(sight, of)

    @property
    def exact(self) -> bool:
        """Whether any cell can be told: q and k were kept, or the map is small and was kept whole."""
        return self.pyramid.exact or self._whole is not None

    @property
    def _whole(self) -> np.ndarray | None:
        stored = self.pyramid.stored
        return stored.sums if stored is not None and stored.levels == (0, 0) else None

    def row(self, queries: Sequence[int]) -> np.ndarray:
        """The rows of some queries, added up; NaN for a key that none of them may see."""
        self.inside("query", queries, self.queries)
        return self._strip([(slice(q, q + 1), slice(0, self.keys)) for q in queries], 0)

    def column(self, keys: Sequence[int]) -> np.ndarray:
        """The columns of some keys, added up; NaN for a query that may see none of them."""
        self.inside("key", keys, self.keys)
        return self._strip([(slice(0, self.queries), slice(k, k + 1)) for k in keys], 1)

    def tracks(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The entropy of every query and what every key received; None while that is being computed."""
        kept = self.sight.kept
        if self.of != "weights":
            return array(self.sight.statistic(TRACK)[0]), array(self.sight.received(of=self.of)[0])
        if (TRACK in kept and "received" in kept) or (self.pyramid.exact and self.queries * self.keys <= DIRECT):
            self.sight.prepare(TRACK, "received")
            return array(self.sight.statistic(TRACK)[0]), array(self.sight.received()[0])
        if self.pyramid.fine is not None:
            return self.pyramid.fine.tracks(self.sight)
        raise _not_kept(f"{TRACK} and received")

    def cell(self, query: int, key: int) -> dict[str, Any]:
        """One cell: its weight and score, its rank in the row, and the entropy and other statistics of the row."""
        self.inside("query", [query], self.queries)
        self.inside("key", [key], self.keys)
        row = self._weights(query)
        weight = float(row[key])
        found: dict[str, Any] = {"query": query, "key": key, "visible": weight == weight, "weight": _number(weight)}
        if weight == weight:
            seen = row[~np.isnan(row)]
            before = np.count_nonzero(row[:key] == weight)
            found["rank"] = int(np.count_nonzero(seen > weight) + before + 1)
            found["of"] = len(seen)
            if self.pyramid.exact:
                found["score"] = _number(self._score(query, key))
        found[TRACK] = _number(_entropy(row))
        if self.of != "weights":
            cell = self.tile(slice(query, query + 1), slice(key, key + 1))
            found["reading"] = _number(float(cell[0, 0]))
        found["others"] = self.statistics(query)
        return found

    def _weights(self, query: int) -> np.ndarray:
        if self.of == "weights":
            return self.row([query])
        return tile_of(self.sight, slice(query, query + 1), slice(0, self.keys))[0, 0]

    def statistics(self, query: int) -> list[dict[str, Any]]:
        """The other statistics that were computed of a row: how each is called, and its value."""
        self.inside("query", [query], self.queries)
        kept = self.sight.kept
        return [
            {"name": name, "label": shown.label, "unit": shown.unit, "value": _number(float(kept[name][0, query]))}
            for name, shown in kept_rows(kept).items()
            if name != TRACK
        ]

    def patch(self, rows: slice, columns: slice) -> dict[str, Any]:
        """A rectangle: the mean over its visible cells, its largest weight, and where that is."""
        for name, span, length in (("rows", rows, self.queries), ("cols", columns, self.keys)):
            if not 0 <= span.start < span.stop <= length:
                raise InputError(
                    f"the {name} are not a part of the map",
                    expected=f"start:stop inside 0:{length}",
                    got=f"{span.start}:{span.stop}",
                    hint=f"{name}=0:{min(length, 64)}",
                )
        cells = (rows.stop - rows.start) * (columns.stop - columns.start)
        if cells > PEEK:
            raise InputError(
                "this rectangle is too large to look at cell by cell",
                expected=f"at most {PEEK:,} cells",
                got=f"{cells:,}",
                hint="a smaller rectangle, or a tile of a higher level",
            )
        weights = self.tile(rows, columns)
        seen = ~np.isnan(weights)
        found: dict[str, Any] = {"visible": int(seen.sum()), "cells": cells}
        if found["visible"]:
            place = int(np.nanargmax(np.abs(weights)))
            query, key = divmod(place, weights.shape[1])
            found |= {
                "mean": float(weights[seen].mean(dtype=np.float64)),
                "max": float(weights.flat[place]),
                "at": [rows.start + query, columns.start + key],
            }
        return found

    def strongest(self, query: int, n: int) -> list[tuple[int, float]]:
        """The `n` strongest keys of a query; of equal weights the lower key first."""
        self.inside("query", [query], self.queries)
        kept = [request for request in self.sight.kept if isinstance(request, Top) and request.n >= n]
        if not self.exact and kept:
            keys, weights = (part[0, query].tolist() for part in self.sight.kept[kept[0]])
            return [(key, weight) for key, weight in zip(keys, weights, strict=True) if key >= 0][:n]
        row = self.row([query])
        size = np.nan_to_num(np.abs(row), nan=-1.0)
        order = np.argsort(-size, kind="stable")[:n]
        return [(int(key), float(row[key])) for key in order if size[key] >= 0]

    def _strip(self, spans: Sequence[tuple[slice, slice]], dim: int) -> np.ndarray:
        total = np.full(self.keys if dim == 0 else self.queries, np.nan, np.float64)
        for rows, columns in spans:
            part = self.tile(rows, columns).ravel()
            total = np.where(np.isnan(part), total, np.nan_to_num(total) + part)
        return total.astype(np.float32)

    def tile(self, rows: slice, columns: slice) -> np.ndarray:
        """Exact weights, NaN where hidden."""
        if self.pyramid.exact:
            return tile_of(self.sight, rows, columns, self.of)[0]
        if self._whole is None:
            raise _not_kept("a row or a cell")
        return _hidden(self.sight, self._whole[rows, columns][None], rows, columns)[0]

    def _score(self, query: int, key: int) -> float:
        """The score of a cell: scaled, capped, with its bias."""
        return float(self.sight.scores(query, key).item())

    def inside(self, name: str, places: Sequence[int], length: int) -> None:
        """Raise unless all of these positions exist."""
        for place in places:
            if not 0 <= place < length:
                raise InputError(
                    f"there is no such {name}", expected=f"0 to {length - 1}", got=place, hint="positions count from 0"
                )
        if not places:
            raise InputError(f"no {name} was named", expected="one or more", got="none", hint="e.g. q=9,12")


def tile_of(sight: Sight, rows: slice, columns: slice, of: str = "weights") -> np.ndarray:
    """Exact cells of every head of a sight without batch axes, `[heads, rows, columns]`; NaN where hidden."""
    weights = array(sight.tile(rows, columns, of=of) if of != "weights" else sight.tile(rows, columns))
    return _hidden(sight, weights.reshape(-1, *weights.shape[-2:]), rows, columns)


def _hidden(sight: Sight, cells: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
    if sight.mask is None:
        return cells
    queries, keys = sight.shape[-2:]
    seen = sight.mask.tile(rows, columns, queries, keys, sight.device)
    return np.where(seen.expand(cells.shape).cpu().numpy(), cells, np.float32(np.nan))


def _entropy(row: np.ndarray) -> float:
    weights = row[~np.isnan(row)].astype(np.float64)
    total = weights.sum()
    if not total > 0:
        return 0.0
    weights = weights[weights > 0] / total
    return float(-(weights * np.log(weights)).sum())


def _number(x: float) -> float | None:
    """A number that JSON can hold."""
    return x if np.isfinite(x) else None


def _not_kept(what: str) -> InputError:
    return InputError(
        f"{what} needs q and k, which were not kept",
        expected="a run that kept q and k",
        got="a run without them",
        hint="sl.watch(model, keep_qk=True)",
    )
