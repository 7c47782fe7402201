"""The strongest link of a head that is not a matter of course: not to the first token, the ones beside it or itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sightline.explore import measures
from sightline.explore.head_view import HeadView
from sightline.explore.overview import Overview, cells_of
from sightline.explore.pyramid import DIRECT
from sightline.explore.run import Layer, Run

# Cells that are looked at in one go, and bins of an overview before the search gives up.
BAND, BINS = 1 << 20, 256
# Heads whose link is looked for before the first picture is chosen.
CANDIDATES = 32


class Link(NamedTuple):
    """A query, a key, and the weight between them."""

    query: int
    key: int
    weight: float


class Special(NamedTuple):
    """Which queries and which keys are no words, such as [SEP]; and whether keys are of another text."""

    queries: np.ndarray
    keys: np.ndarray
    elsewhere: bool = False

    @classmethod
    def of(cls, run: Run, layer: Layer) -> Special:
        return cls(run.special_queries(layer), run.special_keys(layer), layer.cross)


def first_head(run: Run, heads: list[list[measures.Measures]]) -> tuple[int, int]:
    """The head to look at first: of the most interesting ones the one whose strongest link stands out most.

    A head that copies or refers comes before one that is focused in many small ways; and a link to a key that all
    queries look at, a second sink, before none.
    """
    ranked = measures.ranked(heads)
    best, choice = 0.0, ranked[0] if ranked else (0, 0)
    small = max((layer.queries * layer.keys for layer in run.layers), default=0) <= BAND
    for layer, head in ranked[: CANDIDATES if small else CANDIDATES // 4]:
        link = link_of(run, layer, head)
        if link is None:
            continue
        others = np.delete(run.view(layer, head).column([link.key]), link.query)
        usual = float(np.nanmean(others)) if (~np.isnan(others)).any() else 0.0
        worth = measures.interest(heads[layer][head]) * (link.weight - usual)
        if worth > best + 1e-9:
            best, choice = worth, (layer, head)
    return choice


def link_of(run: Run, layer: int, head: int) -> Link | None:
    """The strongest link between two words of a run."""
    return strongest_link(run.view(layer, head), Special.of(run, run.layer(layer)))


def strongest_link(view: HeadView, special: Special | None = None) -> Link | None:
    """The strongest link that is neither first-token, self, previous nor next; of equal ones the first.

    None if there is no such link, or it is not known.

    >>> import sightline as sl, torch
    >>> strongest_link(HeadView(sl.look(torch.eye(4)[None], torch.eye(4)[[2, 3, 0, 1]][None], scale=9.0)))
    Link(query=0, key=2, weight=0.99...)
    """
    if view.exact and view.queries * view.keys <= DIRECT:
        step = max(1, BAND // view.keys)
        bands = [slice(start, min(start + step, view.queries)) for start in range(0, view.queries, step)]
        found = [_largest(view, band, slice(0, view.keys), special) for band in bands]
        return max((link for link in found if link), key=lambda link: abs(link.weight), default=None)
    for overview in (view.pyramid.fine, view.pyramid.stored):
        if view.exact and overview is not None and overview.complete:
            return _best_first(view, overview, special)
    return None


def _best_first(view: HeadView, overview: Overview, special: Special | None) -> Link | None:
    """Look into the bins with the largest maxima until no other bin can hold a stronger link."""
    order = np.argsort(-overview.maxima, axis=None, kind="stable")
    best: Link | None = None
    for place in order[:BINS]:
        i, j = divmod(int(place), overview.maxima.shape[1])
        if best is not None and overview.maxima[i, j] <= best.weight:
            break
        rows = cells_of(slice(i, i + 1), overview.levels[0], view.queries)
        columns = cells_of(slice(j, j + 1), overview.levels[1], view.keys)
        found = _largest(view, rows, columns, special)
        if found is not None and (best is None or found.weight > best.weight):
            best = found
    return best


def _largest(view: HeadView, rows: slice, columns: slice, special: Special | None) -> Link | None:
    weights = np.nan_to_num(view.tile(rows, columns), nan=0.0)
    weights = np.where(not_plain(view, rows, columns, special), weights, 0.0)
    spot = int(np.abs(weights).argmax())
    query, column = divmod(spot, weights.shape[1])
    weight = float(weights[query, column])
    return Link(rows.start + query, columns.start + column, weight) if weight else None


def not_plain(view: HeadView, rows: slice, columns: slice, special: Special | None) -> np.ndarray:
    """Which cells are no matter of course."""
    # Query i stands at key i + keys - queries.
    place = np.arange(rows.start, rows.stop)[:, None] + view.keys - view.queries
    key = np.arange(columns.start, columns.stop)
    plain = np.broadcast_to(key == 0, (len(place), len(key)))
    if special is None or not special.elsewhere:  # keys of a memory have no place beside a query
        plain = plain | (abs(key - place) <= 1)
    if special is not None:
        plain = plain | special.keys[columns] | special.queries[rows, None]
    return ~plain
