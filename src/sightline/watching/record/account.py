"""From one attention call to its part of the account: every statistic that was asked for, in one pass.

Small maps (a decoding step, a short text) are computed whole, in a few operations. Larger ones go through the lens,
tile by tile. The overview is a grid of sums (and maxima) over cells of powers of two, at most 512 a side: such grids
can be joined and made coarser exactly, which a growing run needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline.backends.tiles import Columns, scaled_rows
from sightline.errors import InputTypeError
from sightline.lens import Picture, Sight, Top
from sightline.lens.cpu import plan as cpu_plan
from sightline.lens.geometry import Axis
from sightline.lens.html import cell_for
from sightline.lens.levels import Levels, level_of
from sightline.lens.requests import names, parse
from sightline.lens.statistics import DISTANCE, STATISTICS
from sightline.lens.tiles.accumulators import Accumulator, Pixels, Received, RowSums, Seen, Strongest
from sightline.lens.tiles.walk import see, walk
from sightline.watching.record.shares import Place, shares

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.requests import Request

# Cells of a map, over batch and heads, up to which it is computed whole.
_WHOLE = 1 << 22
# The logarithm of a row's sum may be off by this, and by this much of itself.
_OFF = 0.02
# Bins of one layer's overview over batch and heads: 64 MiB.
_BINS = 1 << 24

# What is computed of watched layers alone.
OWN = ("overview", "overview_max", "shares")
DEFAULT = ("entropy", "received", "overview", "shares")


@dataclass
class Wanted:
    """What is computed for every layer, read from `stats=`."""

    rows: list[str] = field(default_factory=list)
    received: bool = False
    overview: tuple[str, ...] = ()
    shares: bool = False
    tops: list[Top] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    readings: list[Any] = field(default_factory=list)  # of cells, other than their weights


def read_stats(stats: Any) -> Wanted:
    """The statistics by name; `overview` and `shares` are those of `watch`, the others those of `sl.observe`.

    >>> read_stats(("entropy", "overview")).overview
    ('sum',)
    """
    if stats is None:
        stats = DEFAULT
    if isinstance(stats, str | Top | Picture):
        stats = (stats,)
    if not isinstance(stats, tuple | list | set | frozenset):
        raise InputTypeError(
            "stats is a tuple of what to compute",
            expected=f"names out of {', '.join((*names(), *OWN))}, sl.Top(n), sl.Picture(…)",
            got=type(stats).__name__,
            hint='stats=("entropy", "received", "overview")',
        )
    wanted = Wanted()
    for own, reduce in (("overview", "sum"), ("overview_max", "max")):
        if own in stats:
            wanted.overview += (reduce,)
    wanted.shares = "shares" in stats
    for request in parse([stat for stat in stats if stat not in OWN]):
        if getattr(request, "of", "weights") != "weights":
            wanted.readings.append(request)
        elif isinstance(request, Top):
            wanted.tops.append(request)
        elif isinstance(request, Picture):
            wanted.pictures.append(request)
        elif request == "received":
            wanted.received = True
        elif request in STATISTICS:
            wanted.rows.append(request)
    return wanted


def cells_for(maps: int, queries: int, keys: int) -> tuple[int, int]:
    """The queries and keys of a bin of the overview: at most 512 bins a side, and a bounded number over all maps.

    >>> cells_for(32, 32768, 32768), cells_for(1024, 300, 300)
    ((64, 64), (4, 4))
    """
    height, width = cell_for(queries), cell_for(keys)
    while maps * -(-queries // height) * -(-keys // width) > _BINS and (height < queries or width < keys):
        height, width = 2 * height, 2 * width
    return height, width


def account(call: Call, row: Tensor, wanted: Wanted, place: Place) -> dict[str, Tensor]:
    """Every statistic of one call, by name, on the device of the call.

    Of several small calls of one kind at once, in an axis before the batch; what is said of queries has no such axis.
    """
    with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
        found = {"row": row}
        levels, s = Levels(call, row), call.sizes
        rows = list(wanted.rows)
        cross = place.query_position < 0
        if wanted.shares and DISTANCE.name not in rows and not cross and not distance_is_known(call, place.steps):
            rows.append(DISTANCE.name)
        if (len(s.batch) > 1 or is_small(cells_of(call))) and not _swept(call, wanted, place):
            if call.device.type == "cuda":
                levels.assume()
            weights = _whole(levels, rows, wanted, place, found)
        else:
            _by_tiles(levels, rows, wanted, place, found)
            # An overview of single cells is the map.
            weights = found.get("overview.sum") if place.cell == (1, 1) and call.device.type == "cpu" else None
        if wanted.shares:
            found.update(shares(levels, place, weights))
        return found


def cells_of(call: Call) -> int:
    """The cells of a call's maps, over batch and heads."""
    s = call.sizes
    return math.prod(s.batch) * s.heads * s.queries * s.keys


def is_small(cells: int) -> bool:
    """Whether maps of so many cells are computed whole."""
    return cells <= _WHOLE


def _swept(call: Call, wanted: Wanted, place: Place) -> bool:
    """Whether the lens has something faster than the whole map on a CPU: from some hundred queries and keys on."""
    if place.steps or place.row % place.cell[0] or place.first_key % place.cell[1] or not cpu_plan.can(call):
        return False
    if len(call.sizes.batch) == 1:
        return True
    # Of several calls at once: what masks say of members of a batch they do not say of these, and the shares of chosen
    # keys are read off the map.
    if call.mask is not None and not call.mask.is_positional:
        return False
    return not wanted.shares or ("sum" in wanted.overview and place.cell == (1, 1))


def distance_is_known(call: Call, steps: bool = False) -> bool:
    """Whether the mean distance follows from what each key received.

    No key comes after its query, none is padding, and neither a sink nor an edit has made rows count differently.
    """
    mask = call.mask
    if call.sinks is not None or call.lost is not None:
        return False
    band = None if mask is None else mask.band
    return steps or call.sizes.queries == 1 or (band is not None and band.right is not None and band.right <= 0)


def _whole(levels: Levels, rows: list[str], wanted: Wanted, place: Place, found: dict[str, Tensor]) -> Tensor | None:
    call, s = levels.call, levels.call.sizes
    parts = _accumulators(call, rows, wanted, place)
    weights = None
    if s.queries and s.keys:
        band, span = slice(0, s.queries), slice(0, s.keys)
        tile = see(levels, scaled_rows(call, band), band, Columns(span, call.mask is not None))
        for part in parts.values():
            part.add(tile)
        weights = tile.weights
        if place.steps:
            found["off"] = _off(tile, levels)
    _collect(parts, found)
    if wanted.pictures:
        _pictures(levels, wanted, found)
    return weights


def _off(tile: Seen, levels: Levels) -> Tensor:
    """Which rows of these keys do not add up to what the kernel found: it had others. `[..., queries]`"""
    if tile.shares is None or tile.level is None:
        return torch.zeros_like(levels.row, dtype=torch.bool)
    number = level_of(levels.row)
    lacks = tile.shares.sum(-1).log() + (tile.level[..., 0] - number)
    return (lacks.abs() > _OFF + _OFF * number.abs()) & levels.row.isfinite() & lacks.isfinite()


def _by_tiles(levels: Levels, rows: list[str], wanted: Wanted, place: Place, found: dict[str, Tensor]) -> None:
    cell = place.cell
    if place.row % cell[0] or place.first_key % cell[1]:
        # Bins that begin inside a call: the lens has no name for such pictures, its walk has.
        parts = _accumulators(levels.call, rows, wanted, place)
        if parts:
            walk(levels, list(parts.values()))
        _collect(parts, found)
        if wanted.pictures:
            _pictures(levels, wanted, found)
        return
    overview = {reduce: Picture(cell=cell, reduce=reduce) for reduce in wanted.overview}
    requests: list[Request] = [
        *rows,
        *(["received"] if wanted.received else []),
        *wanted.tops,
        *wanted.pictures,
        *overview.values(),
    ]
    sight = Sight.of(levels).prepare(*requests)
    for name in rows:
        found[name] = sight.kept[name]
    if wanted.received:
        found["received"] = sight.kept["received"]
    for top in wanted.tops:
        found[f"top.{top.n}.keys"], found[f"top.{top.n}.weights"] = sight.kept[top]
    for i, picture in enumerate(wanted.pictures):
        found[f"picture.{i}"] = sight.value(picture)
    for reduce, picture in overview.items():
        found[f"overview.{reduce}"] = sight.kept[picture]


def _pictures(levels: Levels, wanted: Wanted, found: dict[str, Tensor]) -> None:
    sight = Sight.of(levels).prepare(*wanted.pictures)
    for i, picture in enumerate(wanted.pictures):
        found[f"picture.{i}"] = sight.value(picture)


def _accumulators(call: Call, rows: list[str], wanted: Wanted, place: Place) -> dict[str, Accumulator]:
    s = call.sizes
    parts: dict[str, Accumulator] = {}
    if rows:
        parts["rows"] = RowSums(call, set(rows))
    if wanted.received:
        parts["received"] = Received(call, None)
    for top in wanted.tops:
        parts[f"top.{top.n}"] = Strongest(call, top.n)
    if wanted.overview:
        vertical = bins(place.row, s.queries, place.cell[0])
        horizontal = bins(place.first_key, s.keys, place.cell[1])
        for reduce in wanted.overview:
            parts[f"overview.{reduce}"] = Pixels(call, vertical, horizontal, largest=reduce == "max")
    return parts


def _collect(parts: dict[str, Accumulator], found: dict[str, Tensor]) -> None:
    for name, part in parts.items():
        result = part.result()
        if name == "rows":
            found.update(result)  # type: ignore[call-overload]
        elif name.startswith("top."):
            found[f"{name}.keys"], found[f"{name}.weights"] = result  # type: ignore[misc]
        else:
            found[name] = result  # type: ignore[assignment]


def bins(start: int, length: int, cell: int) -> Axis:
    """The bins of a stretch that begins at `start`, with edges at multiples of `cell` of the whole.

    >>> bins(3, 6, 4).edges  # cells 3 to 9 of the whole: the bins 0-4, 4-8 and 8-12 hold 1, 4 and 1 of them
    array([0, 1, 5, 6])
    """
    if not length:
        return Axis(np.zeros(1, dtype=np.int64), None, cell)
    inner = np.arange(start // cell + 1, -(-(start + length) // cell)) * cell - start
    edges = np.concatenate([[0], inner, [length]]).astype(np.int64)
    return Axis(edges, None, cell if start % cell == 0 else 0)
