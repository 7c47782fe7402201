"""Places worth going to: the strong links of a head, one after the other, and those that are like a pinned one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.errors import InputError
from sightline.explore.head_view import HeadView
from sightline.explore.links import Link, Special, not_plain
from sightline.explore.overview import cells_of
from sightline.explore.pyramid import DIRECT

# Cells that are looked at in one go, bins of an overview that are looked into, links of one head that are given.
BAND, BINS, MOST = 1 << 20, 64, 64


def strong_links(view: HeadView, special: Special | None, n: int = MOST) -> list[Link]:
    """The strongest links of a head that are not a matter of course, the strongest first; for each query its own.

    Of a long map those in the bins with the largest maxima, as far as they are known.
    """
    if not view.exact:
        raise InputError(
            "strong links need q and k, which were not kept",
            expected="a run that kept q and k",
            got="a run without them",
            hint="sl.watch(model, keep_qk=True)",
        )
    found: list[Link] = []
    for rows, columns in _parts(view):
        cells = np.nan_to_num(view.tile(rows, columns), nan=0.0)
        size = np.where(not_plain(view, rows, columns, special), np.abs(cells), 0.0)
        best = size.argmax(1)
        for i in np.argsort(-size[np.arange(len(best)), best], kind="stable")[:n]:
            if size[i, best[i]] > 0:
                found.append(Link(rows.start + int(i), columns.start + int(best[i]), float(cells[i, best[i]])))
    by_query: dict[int, Link] = {}
    for link in sorted(found, key=lambda link: (-abs(link.weight), link.query, link.key)):
        by_query.setdefault(link.query, link)
    return list(by_query.values())[:n]


def like(links: Sequence[Link], query: int, key: int, names: Sequence[str], keys: Sequence[str]) -> list[Link]:
    """Of these links those that are like one of them: the same two words, one of the two, or the same distance.

    >>> links = [Link(5, 2, 0.9), Link(9, 2, 0.8), Link(7, 1, 0.7)]
    >>> like(links, 5, 2, ["", "a", "b", "", "", "they", "", "they", "", "it"], ["", "a", "b"])
    [Link(query=9, key=2, weight=0.8), Link(query=7, key=1, weight=0.7)]
    """

    def score(link: Link) -> int:
        same = 2 * _same(names, link.query, query) + 2 * _same(keys, link.key, key)
        return same + (link.query - link.key == query - key)

    others = [link for link in links if link.query != query and score(link) > 0]
    return sorted(others, key=lambda link: (-score(link), -abs(link.weight)))


def _same(names: Sequence[str], a: int, b: int) -> bool:
    return a < len(names) and b < len(names) and names[a].strip().casefold() == names[b].strip().casefold()


def _parts(view: HeadView) -> list[tuple[slice, slice]]:
    if view.queries * view.keys <= DIRECT:
        step = max(1, BAND // view.keys)
        starts = range(0, view.queries, step)
        return [(slice(start, min(start + step, view.queries)), slice(0, view.keys)) for start in starts]
    for overview in (view.pyramid.fine, view.pyramid.stored):
        if overview is not None and overview.complete:
            order = np.argsort(-overview.maxima, axis=None, kind="stable")[:BINS]
            places = [divmod(int(place), overview.maxima.shape[1]) for place in order]
            levels = overview.levels
            return [
                (
                    cells_of(slice(i, i + 1), levels[0], view.queries),
                    cells_of(slice(j, j + 1), levels[1], view.keys),
                )
                for i, j in places
            ]
    return []
