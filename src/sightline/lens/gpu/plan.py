"""The pass by the Triton kernel: which jobs it can do, and how a call is put to it.

`SIGHTLINE_KERNELS=torch` leaves everything to torch's operations.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sightline import caches
from sightline.lens.pictures import means_of

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.kernels.layout import Columns, Rows, Tiling
    from sightline.kernels.measure import Measured
    from sightline.lens.geometry import Axis
    from sightline.lens.job import Job
    from sightline.lens.levels import Levels
    from sightline.masks import Mask
    from sightline.shapes import Sizes

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The oldest Triton whose kernels ran on a GPU.
_TRITON = (3, 6)
# The most maps of one launch: what the second axis of a CUDA grid holds.
_MAPS = 65535
# Rows of a pixel, at least, when a large one is cut into parts: a pass goes over the rows of sixteen at a time.
_PART = 32
# Bytes of a picture that is made of parts.
_PARTS = 16 << 20
# What is kept of how passes are laid out, on the GPU: so many, and so many bytes. One of a million rows has some 16 MB.
_LAYOUTS, _LAYOUT_BYTES = 64, 256 << 20
_INTERVALS, _INTERVAL_BYTES = 32, 64 << 20


def can(call: Call) -> bool:
    """Whether the kernel can do this call; the walk in torch operations does all others."""
    return (
        for_kernels(call)
        and call.normalizer.is_softmax
        and (call.bias is None or isinstance(call.bias, Tensor) or call.bias.slopes is not None)
        # The kernels add a table to the product before it is scaled.
        and (not isinstance(call.bias, Tensor) or (call.softcap is None and call.scale != 0))
    )


def takes(levels: Levels) -> bool:
    """Whether the kernels do a call whose rows are known.

    They add a bias before they scale: what is left of scores beside -1e9 would be another rounding's.
    """
    return can(levels.call) and not (isinstance(levels.call.bias, Tensor) and levels.coarse)


def for_kernels(call: Call) -> bool:
    """Whether queries and keys are such that kernels can read them."""
    s = call.sizes
    return (
        call.device.type == "cuda"
        and torch.version.cuda is not None
        and call.q.dtype in DTYPES
        and 0 < s.dim <= 256
        and min(s.heads, s.queries, s.keys, *s.batch) > 0
        and math.prod(s.batch) * s.heads <= _MAPS
        and os.environ.get("SIGHTLINE_KERNELS") != "torch"
        and _has_triton()
    )


@caches.memo("lens.triton")
def _has_triton() -> bool:
    """Whether there is a Triton that the kernels were tested with: older ones, of older torches, go to the walk."""
    try:
        import triton
    except ImportError:
        return False
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= _TRITON


def split(mask: Mask | None) -> tuple[list[Mask], list[Mask]]:
    """The parts of a conjunction: rules, and tables of booleans."""
    every = [] if mask is None else mask.conjuncts()
    return [rule for rule in every if not rule.is_table], [rule for rule in every if rule.is_table]


def run(levels: Levels, job: Job) -> tuple[dict[Any, Any], dict[tuple, Tensor]] | None:
    """The results of a job by the kernels, or None if the mask turns out not to be one stretch of keys per row.

    The strongest keys may be missing from them: their kernels do not do every call.
    """
    from sightline.kernels.map_pass import look
    from sightline.kernels.row_stats import max_scores
    from sightline.kernels.top_keys import MOST, top

    call, s = levels.call, levels.call.sizes
    options = options_of(call)
    if options is None:
        return None
    q, k, lse = as_kernels_take(levels)
    measured = measured_of(levels, options)
    factors = None if levels.taken is None else levels.taken.neg().exp().reshape(lse.shape).contiguous()

    def shaped(x: Tensor) -> Tensor:
        return x if len(s.batch) == 1 else x.reshape(*s.batch, *x.shape[1:])

    found: dict[Any, Any] = {}
    grids: dict[tuple, Tensor] = {}
    want = set(job.rows)
    if "received" in job.received:
        want.add("received")
    tops = [] if isinstance(call.bias, Tensor) else [request for request in job.tops if request.n <= MOST]
    if tops:
        want.add("max_score")  # whose bins tell where to look
    means = means_of(job.pictures, job.grids) if job.grids else {}
    # Which tiles see something follows from the rules alone: a table beside them only hides more.
    alone = [call.mask] if is_positional(call.mask) else split(call.mask)[0]
    rule = alone[0] if alone else None
    known = len(alone) < 2 and is_positional(rule)
    shape = (rule if known else None, known, s, call.q.dtype, call.device)
    pixels = tuple((key, axes, means[key][1] if key in means else 0) for key, axes in job.grids.items())
    largest, binned = lse, None

    def one(go: _Go, weights: Tensor | None) -> dict[str, Tensor]:
        return look(
            q, k, lse, measured, rows=go.rows, columns=go.columns, want=go.asked, tiling=go.tiling, seen=go.seen,
            bins=go.bins, as_floats=go.as_floats, pixel_unit=go.unit, weights=weights, **options,
        )  # fmt: skip

    for go in _goes(*shape, frozenset(want), max((request.n for request in tops), default=0), pixels):
        result = one(go, factors if go.asked & {"received", "sums", "maxima"} else None)
        if "largest" in result:
            largest, binned = result["largest"], go
        if go.grid is not None:
            grid = shaped(go.joined(result["maxima" if go.grid[-1] else "sums"]))
            if go.unit == 1.0:
                grids[go.grid] = grid
            else:
                found[means[go.grid][0]] = grid
        found.update({name: shaped(result[name]) for name in go.asked if name in result})
    for request in job.received:
        if request != "received":
            weights = request.weights.reshape(-1, s.heads, s.queries).float()  # type: ignore[union-attr]
            go = _goes(*shape, frozenset({"received"}), 0, ())[0]
            found[request] = shaped(one(go, weights if factors is None else weights * factors)["received"])
    for request in tops:
        rules = {name: options[name] for name in ("scale", "softcap", "slopes", "intervals", "table", "starts")}
        assert binned is not None
        keys, weights, least = top(q, k, lse, measured.rest, largest, binned.rows, binned.width, request.n, **rules)
        if factors is not None:
            weights *= factors[..., None]
        found[request] = shaped(keys), shaped(weights)
        if "max_score" in job.rows and "max_score" not in found:
            found["max_score"] = shaped(max_scores(lse, measured.rest, least))
    if "total" in found and factors is not None:
        found["total"] = found["total"] * shaped(factors)
    return {name: result for name, result in found.items() if name not in ("sums", "maxima")}, grids


def rest(levels: Levels) -> Tensor:
    """What the lse of each row lacks, as the kernels measure it, natural logarithm, `[*batch, heads, queries]`."""
    options = options_of(levels.call)
    if options is None:
        return levels.rest(slice(0, levels.call.sizes.queries))
    return measured_of(levels, options).rest.view(levels.row.shape) * math.log(2)


def measured_of(levels: Levels, options: dict[str, Any]) -> Measured:
    """What `measure` finds of the rows of a call, once."""
    if levels.on_gpu is None:
        from sightline.kernels.measure import measure

        levels.on_gpu = measure(*as_kernels_take(levels), levels.limit, **options)
    return levels.on_gpu


def as_kernels_take(levels: Levels) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and lse with one batch axis, q and k aligned."""
    from sightline.kernels.layout import aligned

    call, row = levels.call, levels.row
    q, k = (aligned(t if t.dim() == 4 else t.reshape(-1, *t.shape[-3:])) for t in (call.q, call.k))
    lse = row if row.dim() == 3 else row.reshape(-1, *row.shape[-2:])
    return q, k, lse.contiguous()


def options_of(call: Call) -> dict[str, Any] | None:
    """What a call asks of the kernels beside its tensors, or None if its mask is more than they know."""
    masked = _masks(call)
    if masked is None:
        return None
    slopes = None if call.bias is None or isinstance(call.bias, Tensor) else call.bias.slopes
    return {
        **masked,
        "scale": call.scale,
        "softcap": call.softcap,
        "slopes": None if slopes is None else slopes.to(call.device, torch.float32),
        "bias": _four_axes(call.bias, call) if isinstance(call.bias, Tensor) else None,
    }


class _Go(NamedTuple):
    """One go of the kernel over the map: what it is to find, and how its rows and columns are laid out."""

    asked: frozenset[str]
    grid: tuple | None  # the key of the picture's grid
    rows: Rows
    columns: Columns
    parts: tuple[int, int]  # of a pixel, down and across
    tiling: Tiling
    seen: Tensor | None
    as_floats: bool
    unit: float  # of a pixel's sum
    bins: int
    width: int  # columns of a bin

    def joined(self, grid: Tensor) -> Tensor:
        """Pixels out of their parts."""
        from sightline.kernels.layout import joined

        return joined(grid, *self.parts, largest="maxima" in self.asked)


@caches.memo_by_bytes("lens.goes", _LAYOUTS, _LAYOUT_BYTES)  # every layer of a model asks for the same
def _goes(
    mask: Mask | None,
    known: bool,
    s: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    want: frozenset[str],
    most: int,
    pixels: tuple[tuple[tuple, tuple[Axis, Axis], int], ...],
) -> tuple[_Go, ...]:
    """The goes that find some statistics, the bins that tell where the `most` strongest keys are, and some pictures.

    Of a picture there is its grid's key, its axes, and how many cells a pixel has if its mean is wanted. The mask
    counts only if it is `known` to be the same for every layer.
    """
    from sightline.kernels.layout import Columns, default_tiling, plain_rows, tiles_seen
    from sightline.kernels.map_pass import bin_width
    from sightline.kernels.top_keys import bins_for

    tiling = default_tiling(s.dim, dtype)
    pending = sorted(pixels, key=lambda entry: entry[0][-1])  # sums first
    found: list[_Go] = []
    intervals = None if mask is None else intervals_of(mask, s.queries, s.keys, device)
    while want or pending:
        rows, columns = plain_rows(0, s.queries, tiling.rows), Columns(0, s.keys)
        asked, grid, parts, unit, as_floats = want, None, (1, 1), 1.0, True
        # Sums of the whole map ride along with the rest. Maxima have the room in which the others are added up.
        if pending and (not want or not (pending[0][0][-1] or any(span is not None for span in pending[0][0][2:4]))):
            grid, axes, cells = pending.pop(0)
            asked = want | {"maxima" if grid[-1] else "sums"}
            rows, columns, parts, as_floats = pixels_of(*axes, s, tiling, device)
            unit = 1 / cells if cells else 1.0
        bins, width = 1, s.keys
        if most and "max_score" in want:
            halves = 2 * -(-s.keys // (2 * tiling.columns))
            bins = bins_for(most, math.prod(s.batch) * s.heads * s.queries, halves)
            width = bin_width(columns, tiling, bins)
        seen = None
        if known:
            seen = tiles_seen(intervals, rows, columns, tiling, s.keys - s.queries, "distance" in want, device)
        found.append(_Go(asked, grid, rows, columns, parts, tiling, seen, as_floats, unit, bins, width))
        want = frozenset()
    return tuple(found)


def pixels_of(
    vertical: Axis, horizontal: Axis, s: Sizes, tiling: Tiling, device: torch.device
) -> tuple[Rows, Columns, tuple[int, int], bool]:
    """The rows and columns of a picture, the parts that its pixels are made of, and whether their sums are floats.

    Pixels of many rows are made of parts: else the rows of sixteen would be a large part of the map. So are pixels that
    are wider than a block of columns, unless that takes too much memory: the sum of two numbers is the same in any
    order, more than two are added up as whole numbers of 64 bits.
    """
    from sightline.kernels.layout import columns_of, finer, rows_of

    high = max(1, _widest(vertical.edges) // max(_PART, (vertical.stop - vertical.start) // 512))
    wide = -(-_widest(horizontal.edges) // (2 * tiling.columns))
    pixels = math.prod(s.batch) * s.heads * vertical.bins * high * horizontal.bins
    if 4 * pixels * wide > max(_PARTS, 8 * pixels):
        wide = 1
    down, across = finer(vertical.edges, high), finer(horizontal.edges, wide)
    as_floats = _widest(across) <= 2 * tiling.columns
    return rows_of(down, s.queries, tiling.rows, device), columns_of(across, device), (high, wide), as_floats


def _widest(edges: np.ndarray) -> int:
    return int(np.diff(edges).max())


def _masks(call: Call) -> dict[str, Any] | None:
    """The mask as intervals and a table, or None if it is more than that."""
    s, device, mask = call.sizes, call.device, call.mask
    if mask is None:
        return {"intervals": None, "starts": False, "table": None}
    if is_positional(mask):
        both = intervals_of(mask, s.queries, s.keys, device)
        return None if both is None else {"intervals": both, "starts": not mask.sees_first_key, "table": None}
    rules, tables = split(mask)
    intervals: tuple[Tensor, Tensor] | None = None
    for rule in rules:
        known = is_positional(rule)
        part = intervals_of(rule, s.queries, s.keys, device) if known else rule.intervals(s.queries, s.keys, device)
        if part is None:
            return None
        if intervals is not None:
            part = torch.maximum(intervals[0], part[0]), torch.minimum(intervals[1], part[1])
        intervals = part
    if len(tables) > 1:
        return None
    table = None
    if tables:
        table = _four_axes(tables[0].tile(slice(0, s.queries), slice(0, s.keys), s.queries, s.keys, device), call)
    every = None if intervals is None else tuple(_per_batch(x, call) for x in intervals)
    return {"intervals": every, "starts": not all(rule.sees_first_key for rule in rules), "table": table}


def is_positional(mask: Mask | None) -> bool:
    """Whether a mask is a plain value: what follows from it is the same for every layer, and is kept."""
    return mask is None or mask.is_positional


@caches.memo_by_bytes("lens.intervals", _INTERVALS, _INTERVAL_BYTES)
def intervals_of(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """The intervals of a positional mask, `[1, queries]`."""
    both = mask.intervals(queries, keys, device)
    if both is None:
        return None
    first, stop = (x.to(torch.int32).reshape(1, queries).contiguous() for x in both)
    return first, stop


def _per_batch(x: Tensor, call: Call) -> Tensor:
    """[*batch, queries] as int32 [batch or 1, queries]."""
    s = call.sizes
    if all(size == 1 for size in x.shape[:-1]):
        return x.reshape(1, s.queries).to(torch.int32).contiguous()
    return x.expand(*s.batch, s.queries).reshape(-1, s.queries).to(torch.int32).contiguous()


def _four_axes(table: Tensor, call: Call) -> Tensor:
    """A table expanded to [batch, heads, queries, keys] without a copy where its batch axes allow it."""
    s = call.sizes
    size = math.prod(s.batch)
    while table.dim() < 3:
        table = table[None]
    leading = table.shape[:-3]
    if all(n == 1 for n in leading):
        table = table.reshape(1, *table.shape[-3:])
    else:
        table = table.expand(*s.batch, *table.shape[-3:]).reshape(-1, *table.shape[-3:])
    return table.expand(size, s.heads, s.queries, s.keys)
