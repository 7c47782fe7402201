"""The pass on the CPU: which jobs it can do, and how one is cut into pieces of work for the cores.

It knows softmax without bias, for masks that leave every row one stretch of keys; the walk does all others. A piece
of work is some bands of rows of one map, swept by `sweep.py`. How a job is cut does not depend on the number of
cores, and what the pieces found is added in their order, so the same call always gives the same bits.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline.kernels.native import tile as native_tile
from sightline.lens.cpu import whole_maps
from sightline.lens.cpu.bands import Band, bands
from sightline.lens.cpu.buffers import zeros
from sightline.lens.cpu.hiding import Limits
from sightline.lens.cpu.row_sums import Scales
from sightline.lens.cpu.stretches import stretches
from sightline.lens.cpu.strips import ColumnPool
from sightline.lens.cpu.sweep import Plan, Sweep
from sightline.lens.cpu.threads import spread
from sightline.lens.levels import level_of
from sightline.lens.pictures import means_of
from sightline.lens.statistics import MAX_SCORE, STATISTICS, Rows

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.kernels.native.tile import Kernel
    from sightline.lens.geometry import Axis
    from sightline.lens.job import Job
    from sightline.lens.levels import Levels

# Cells of a map below which the walk, which takes all maps of a batch at once, is faster.
_SMALL = 1 << 16
# Rows and columns of a tile: it and what is made of it stay in the cache. The strongest keys are found in long rows.
_TILE, _LONG_TILE = (512, 1024), (256, 2048)
# There should be so many pieces of work at least, so that no core is left without any.
_PIECES = 32
# Cells below which waking threads takes longer than it saves.
_ALONE = 1 << 19
_COMPILED = native_tile.CELLS
_LN_2, _LOG2_E = math.log(2), math.log2(math.e)


def can(call: Call) -> bool:
    """Whether the sweep can do this call, as far as can be told without looking at the mask."""
    s = call.sizes
    return (
        call.device.type == "cpu"
        and call.normalizer.is_softmax
        and call.bias is None
        and min(s.heads, s.queries, s.keys, s.dim, *s.batch) > 0
        and (s.queries * s.keys >= _SMALL or whole_maps.can(call))
    )


def run(levels: Levels, job: Job, rows: slice, columns: slice) -> tuple[dict[Any, Any], dict[tuple, Tensor]] | None:
    """The results of a job over a rectangle of the map, or None if a row may see more than one stretch of keys."""
    call, row = levels.call, levels.row
    s, dtype = call.sizes, call.compute_dtype
    seen = stretches(call)
    if seen is None:
        return None
    whole_rows = columns == slice(0, s.keys)
    seen = seen.clip(columns)
    if whole_maps.takes(levels, job, rows, columns, seen):
        return whole_maps.run(levels, job, seen)
    if s.queries * s.keys < _SMALL:
        return None
    maps = math.prod(s.batch) * s.heads
    kernel = _kernel(levels)
    height, width = _LONG_TILE if job.tops else _TILE
    # Sums first: the rows are taken in the order that suits the first picture.
    keys = sorted(job.grids, key=lambda key: key[-1])
    axes = [job.grids[key] for key in keys]
    requests = sorted(job.received, key=lambda request: request != "received")
    by_query = [None if request == "received" else request.weights for request in requests]  # type: ignore[union-attr]
    means = means_of(job.pictures, job.grids)
    whole = bool(keys) and not keys[0][-1] and _is_whole(axes[0], call)
    # Nothing else needs the weights, and the rows of the picture are those of the map.
    of_cells = (
        kernel is not None
        and whole
        and (rows, columns) == (slice(0, s.queries), slice(0, s.keys))
        and len(keys) == 1
        and all(axis.regular == 1 for axis in axes[0])
        and len(by_query) < 2
        and not any(x is not None for x in by_query)
        and not job.tops
    )
    cut = bands(rows, height, [vertical for vertical, _ in axes], dtype)
    order = torch.cat([band.order for band in cut])
    plan = Plan(
        call=call,
        level=_level(row, maps),
        rest=_rest(levels, rows, maps, whole_rows),
        measures=whole_rows,
        factor=None if levels.taken is None else levels.taken.neg().exp().reshape(maps, -1, 1),
        seen=seen,
        limits=Limits.of(seen, s.keys, dtype),
        order=None if all(band.in_order for band in cut) else order,
        places=(order.to(dtype) + (s.keys - s.queries)).numpy(),
        start=rows.start,
        height=min(height, rows.stop - rows.start),
        width=min(width, columns.stop - columns.start),
        rows={
            name: np.full((maps, s.queries), -np.inf if name == "largest" else 0.0, dtype=_numpy(dtype))
            for name in _row_sums(job)
        },
        tops=[_nothing(maps, s.queries, top.n, dtype) for top in job.tops],
        by_query=by_query,
        columns=[
            ColumnPool(horizontal, key[-1], dtype, 1 / means[key][1] if key in means else 1.0)
            for key, (_, horizontal) in zip(keys, axes, strict=True)
        ],
        strip_rows=[
            0 if of_cells else max((pool.count for band in cut if (pool := band.pools[i])), default=0)
            for i in range(len(keys))
        ],
        strip_gives_received=whole and bool(requests) and by_query[0] is None,
        scales=Scales.of(s.queries + s.keys + 1, dtype),
        kernel=kernel,
        of_cells=of_cells,
    )
    parts = _parts(cut, -(-_PIECES // maps))
    received = [zeros(maps, len(parts), s.keys, dtype=dtype) for _ in requests]
    grids = [zeros(maps, vertical.bins, horizontal.bins, dtype=dtype) for vertical, horizontal in axes]
    _sweep(plan, parts, received, grids)
    if plan.rest is not None and whole_rows:
        plan.rest.nan_to_num_(nan=0.0)
        levels.put(rows, plan.rest.view(row.shape)[..., rows] * _LN_2)
    found: dict[Any, Any] = dict(_rows(plan, levels))
    found |= {top: (_in_order(k, plan), _in_order(w, plan)) for top, (k, w) in zip(job.tops, plan.tops, strict=True)}
    found |= {request: x.sum(1) for request, x in zip(requests, received, strict=True)}

    def shaped(x: Any) -> Any:
        return tuple(map(shaped, x)) if isinstance(x, tuple) else x.view(*s.batch, s.heads, *x.shape[1:])

    found |= {means[key][0]: grid for key, grid in zip(keys, grids, strict=True) if key in means}
    return (
        {key: shaped(value) for key, value in found.items()},
        {key: shaped(grid) for key, grid in zip(keys, grids, strict=True) if key not in means},
    )


def _kernel(levels: Levels) -> Kernel | None:
    """The compiled kernel, if there is one and it can do this call: it knows no infinities."""
    call, s = levels.call, levels.call.sizes
    cells = math.prod(s.batch) * s.heads * s.queries * s.keys
    if call.compute_dtype != torch.float32 or cells < _COMPILED:
        return None
    found = native_tile.kernel()
    return found if found is not None and levels.holds else None


def _sweep(plan: Plan, parts: list[list[Band]], received: list[Tensor], grids: list[Tensor]) -> None:
    """Sweep over all parts of all maps. What parts of a map share is theirs alone until all are done.

    `received` has a line for each part of each map.
    """
    maps = math.prod(plan.call.sizes.batch) * plan.call.sizes.heads
    spans = [[_pixel_rows(part, i) for part in parts] for i in range(len(grids))]
    apart = [all(a[1] <= b[0] for a, b in pairwise(rows)) for rows in spans]
    pieces = []
    # The same part of all maps one after the other, so that what is to be done is known already.
    for n, part in enumerate(parts):
        for index in range(maps):
            sums = [x[index, n] for x in received]
            tops = [0 if ok else rows[n][0] for rows, ok in zip(spans, apart, strict=True)]
            pixels = [
                x[index] if ok else zeros(*x[index, slice(*rows[n])].shape, dtype=x.dtype)
                for x, rows, ok in zip(grids, spans, apart, strict=True)
            ]
            pieces.append(Sweep(plan, index, part, sums, pixels, tops))
    # The largest first, so that none is left for the end.
    order = sorted(pieces, key=lambda piece: -piece.cells)
    spread([piece.run for piece in order], alone=sum(piece.cells for piece in pieces) < _ALONE)
    for buffers in plan.spare:
        buffers.block.free()
    for piece in pieces:
        for i, ok in enumerate(apart):
            if not ok:
                whole = grids[i][piece.index, piece.tops[i] : piece.tops[i] + len(piece.grids[i])]
                (torch.maximum if plan.columns[i].largest else torch.add)(whole, piece.grids[i], out=whole)


def _pixel_rows(part: list[Band], i: int) -> tuple[int, int]:
    """The rows of a picture that some bands touch."""
    pools = [pool for band in part if (pool := band.pools[i])]
    return (pools[0].top, pools[-1].top + pools[-1].count) if pools else (0, 0)


def _parts(cut: list[Band], count: int) -> list[list[Band]]:
    """Bands that follow each other, in some parts of nearly equal length."""
    count = min(count, len(cut))
    return [cut[len(cut) * i // count : len(cut) * (i + 1) // count] for i in range(count)]


def _is_whole(axes: tuple[Axis, Axis], call: Call) -> bool:
    """Whether a picture shows the whole map."""
    return all(a.start == 0 and a.stop == n for a, n in zip(axes, (call.sizes.queries, call.sizes.keys), strict=True))


def _row_sums(job: Job) -> list[str]:
    """What is summed for each row."""
    names: list[str] = [name for name in ("entropy", "distance", "total") if name in job.rows]
    return names + (["largest"] if MAX_SCORE.name in job.rows else [])


def _level(lse: Tensor, maps: int) -> Tensor:
    """What makes logarithms of weights, base 2, of scores: `[maps, queries, 1]`."""
    level = (lse * -_LOG2_E).reshape(maps, -1, 1)
    # A row that sees nothing is all hidden; here it must only not be NaN.
    return level.masked_fill_(level == torch.inf, 0.0)


def _rest(levels: Levels, rows: slice, maps: int, whole_rows: bool) -> Tensor | None:
    """What is to be taken from logarithms beside the level, base 2: `[maps, queries, 1]`; None if there is nothing.

    Of whole rows NaN stands for what is to be measured.
    """
    if not levels.any(rows):
        return None
    if whole_rows:
        found = torch.zeros_like(levels.row).masked_fill_(levels.large, torch.nan)
    else:
        found = torch.zeros_like(levels.row)
        found[..., rows] = levels.rest(rows) * _LOG2_E
    return found.reshape(maps, -1, 1)


def _rows(plan: Plan, levels: Levels) -> dict[str, Tensor]:
    """The row statistics, from logarithms of base 2 to natural ones."""
    sums = {name: _in_order(torch.from_numpy(found), plan) for name, found in plan.rows.items()}
    if "entropy" in sums:
        sums["entropy"] *= _LN_2
    largest = sums.pop("largest", None)
    if largest is not None:
        hidden = largest <= -1e29
        largest.mul_(_LN_2).add_(level_of(levels.row).reshape(largest.shape))
        if plan.rest is not None:
            largest.add_(plan.rest.view(largest.shape), alpha=_LN_2)
        sums[MAX_SCORE.name] = largest.masked_fill_(hidden, -torch.inf)
    if "total" in sums and plan.factor is not None:
        sums["total"].mul_(plan.factor.view(sums["total"].shape))
    return {name: STATISTICS[name].finished(Rows({name: found})) for name, found in sums.items()}


def _numpy(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32


def _in_order(x: Tensor, plan: Plan) -> Tensor:
    """Rows in the order of the map, from the order in which they were taken."""
    return x if plan.order is None else torch.empty_like(x).index_copy_(1, plan.order, x)


def _nothing(maps: int, queries: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Places for the n strongest keys of every query."""
    return torch.full((maps, queries, n), -1, device="cpu"), torch.zeros(maps, queries, n, dtype=dtype, device="cpu")
