"""The pass by the Triton kernel: which jobs it can do, and how a call is put to it."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.lens.pictures import means_of
from sightline.masks import Band, Dense, Padding, Prefix
from sightline.masks.base import And
from sightline.positions import Alibi

if TYPE_CHECKING:
    from sightline.attention.call import Call
    from sightline.kernels.layout import Slots, Tiling
    from sightline.kernels.measure import Measured
    from sightline.lens.compute import Job
    from sightline.lens.geometry import Axis
    from sightline.lens.levels import Levels
    from sightline.masks import Mask
    from sightline.shapes import Sizes

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The oldest Triton whose kernels ran on a GPU.
_TRITON = (3, 6)
# Columns that are pooled inside a thread, and rows of a pixel in one tile: at most.
_POOLED, _TAKEN = 64, 4


def can(call: Call) -> bool:
    """Whether the kernel can do this call; the walk in torch operations does all others."""
    return (
        for_kernels(call)
        and call.normalizer.is_softmax
        and (call.bias is None or isinstance(call.bias, Tensor | Alibi))
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
        and call.q.dtype in _DTYPES
        and 0 < s.dim <= 256
        and min(s.heads, s.queries, s.keys, *s.batch) > 0
        and _has_triton()
    )


@functools.cache
def _has_triton() -> bool:
    """Whether there is a Triton that the kernels were tested with: older ones, of older torches, go to the walk."""
    try:
        import triton
    except ImportError:
        return False
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= _TRITON


def split(mask: Mask | None) -> tuple[list[Mask], list[Mask]]:
    """The parts of a conjunction: rules, and tables of booleans."""
    if mask is None:
        return [], []
    if isinstance(mask, And):
        (rules, tables), (more_rules, more_tables) = split(mask.left), split(mask.right)
        return rules + more_rules, tables + more_tables
    is_table = isinstance(mask, Dense) or (isinstance(mask, Padding) and mask.real is not None)
    return ([], [mask]) if is_table else ([mask], [])


def run(levels: Levels, job: Job) -> tuple[dict[Any, Any], dict[tuple, Tensor]] | None:
    """The results of a job by the kernels, or None if the mask turns out not to be one stretch of keys per row.

    The strongest keys may be missing from them: their kernels do not do every call.
    """
    from sightline.kernels.look import look
    from sightline.kernels.rows import max_scores
    from sightline.kernels.top import MOST, top

    call, s = levels.call, levels.call.sizes
    options = _options(call)
    if options is None:
        return None
    q, k, lse = _as_kernels_take(levels)
    measured = _measured(levels, options)
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
    known = _is_positional(call.mask)
    shape = (call.mask if known else None, known, s, call.q.dtype, call.device)
    pixels = tuple((key, axes, means[key][1] if key in means else 0) for key, axes in job.grids.items())
    largest = edges = lse
    width = s.keys
    for go in _goes(*shape, frozenset(want), max((request.n for request in tops), default=0), pixels):
        result = look(
            q, k, lse, measured, rows=go.rows, columns=go.columns, want=go.asked, tiling=go.tiling, seen=go.seen,
            bins=go.bins, pixel_unit=go.unit, factors=factors, **options,
        )  # fmt: skip
        if "largest" in result:
            largest, edges, width = result["largest"], result["bin_edges"], go.width
        for key in go.grids:
            grid = shaped(result["maxima" if key[-1] else "sums"])
            if go.unit == 1.0:
                grids[key] = grid
            else:
                found[means[key][0]] = grid
        found.update({name: shaped(result[name]) for name in go.statistics if name in result})
    for request in job.received:
        if request != "received":
            weights = request.weights.reshape(-1, s.heads, s.queries)  # type: ignore[union-attr]
            go = _goes(*shape, frozenset({"received"}), 0, ())[0]
            part = look(
                q, k, lse, measured, rows=go.rows, columns=go.columns, want=go.asked, tiling=go.tiling, seen=go.seen,
                weights=weights, factors=factors, **options,
            )  # fmt: skip
            found[request] = shaped(part["received"])
    for request in tops:
        rules = {name: options[name] for name in ("scale", "softcap", "slopes", "intervals", "table", "starts")}
        keys, weights, least = top(q, k, lse, measured.rest, largest, edges, width, request.n, **rules)
        if factors is not None:
            weights *= factors[..., None]
        found[request] = shaped(keys), shaped(weights)
        if "max_score" in job.rows and "max_score" not in found:
            found["max_score"] = shaped(max_scores(lse, measured.rest, least))
    if "total" in found and factors is not None:
        found["total"] = found["total"] * shaped(factors)
    return found, grids


def rest(levels: Levels) -> Tensor:
    """What the lse of each row lacks, as the kernels measure it, natural logarithm, `[*batch, heads, queries]`."""
    options = _options(levels.call)
    if options is None:
        return levels.rest(slice(0, levels.call.sizes.queries))
    return _measured(levels, options).rest.view(levels.row.shape) * math.log(2)


def _measured(levels: Levels, options: dict[str, Any]) -> Measured:
    """What `measure` finds of the rows of a call, once."""
    if levels.on_gpu is None:
        from sightline.kernels.measure import measure

        levels.on_gpu = measure(*_as_kernels_take(levels), levels.limit, **options)
    return levels.on_gpu


def _as_kernels_take(levels: Levels) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and lse with one batch axis."""
    call, row = levels.call, levels.row
    q, k = (t if t.dim() == 4 else t.reshape(-1, *t.shape[-3:]) for t in (call.q, call.k))
    lse = row if row.dim() == 3 else row.reshape(-1, *row.shape[-2:])
    return q, k, lse.contiguous()


def _options(call: Call) -> dict[str, Any] | None:
    """What a call asks of the kernels beside its tensors, or None if its mask is more than they know."""
    masked = _masks(call)
    if masked is None:
        return None
    return {
        **masked,
        "scale": call.scale,
        "softcap": call.softcap,
        "slopes": call.bias.slopes.to(call.device, torch.float32) if isinstance(call.bias, Alibi) else None,
        "bias": _four_axes(call.bias, call) if isinstance(call.bias, Tensor) else None,
    }


class _Go(NamedTuple):
    """One go of the kernel over the map: what it is to find, and how its rows and columns are laid out."""

    asked: frozenset[str]
    statistics: frozenset[str]  # of what is asked, what is not a picture
    grids: tuple[tuple, ...]  # the pictures' grids
    rows: Slots
    columns: Slots
    tiling: Tiling
    seen: Tensor | None
    unit: float  # of a pixel's sum
    bins: int = 1
    width: int = 0  # columns of a bin


@functools.lru_cache(maxsize=64)  # every layer of a model asks for the same
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
    from sightline.kernels.layout import default_tiling
    from sightline.kernels.top import bins_for

    found: list[_Go] = []
    pending = list(pixels)
    while want or pending:
        # A picture of the whole map rides along with the rest; sums and maxima of the same pixels go together.
        taken = [entry for entry in pending if entry[0][:4] == pending[0][0][:4]] if pending else []
        if taken and want and (taken[0][0][2] is not None or taken[0][0][3] is not None):
            taken = []
        rows, columns = _whole(s)
        asked = want | {"maxima" if key[-1] else "sums" for key, _, _ in taken}
        tiling = default_tiling(s.dim, dtype, asked)
        unit, bins, width = 1.0, 1, s.keys
        if taken:
            _, (vertical, horizontal), cells = taken[0]
            rows, columns = _rows(vertical, device, tiling.rows), _columns(horizontal, device)
            unit = 1 / cells if len(taken) == 1 and cells else 1.0
        if most and "max_score" in want:
            parts = 2 * -(-columns.slots // (2 * tiling.columns))
            bins = bins_for(most, math.prod(s.batch) * s.heads * s.queries, parts)
            width = -(-parts // bins) * tiling.columns
        seen = _seen(mask, s, device, rows, columns, tiling, bool(taken), "distance" in want) if known else None
        grids = tuple(key for key, _, _ in taken)
        found.append(_Go(asked, want, grids, rows, columns, tiling, seen, unit, bins, width))
        pending = [entry for entry in pending if entry not in taken]
        want = frozenset()
    return tuple(found)


def _masks(call: Call) -> dict[str, Any] | None:
    """The mask as intervals and a table, or None if it is more than that."""
    s, device, mask = call.sizes, call.device, call.mask
    if mask is None:
        return {"intervals": None, "starts": False, "table": None}
    if _is_positional(mask):
        both = _intervals(mask, s.queries, s.keys, device)
        return {"intervals": both, "starts": not _from_the_first(mask), "table": None}
    rules, tables = split(mask)
    intervals: tuple[Tensor, Tensor] | None = None
    for rule in rules:
        known = _is_positional(rule)
        part = _intervals(rule, s.queries, s.keys, device) if known else rule.intervals(s.queries, s.keys, device)
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
    return {"intervals": every, "starts": not all(_from_the_first(rule) for rule in rules), "table": table}


def _is_positional(mask: Mask | None) -> bool:
    """Whether a mask is a plain value: what follows from it is the same for every layer, and is kept."""
    return mask is None or isinstance(mask, Band | Prefix)


def _from_the_first(mask: Mask) -> bool:
    """Whether every row that sees anything sees key 0."""
    return isinstance(mask, Prefix) or (isinstance(mask, Band) and mask.left is None)


@functools.lru_cache(maxsize=32)
def _intervals(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The intervals of a positional mask, `[1, queries]`."""
    both = mask.intervals(queries, keys, device)
    assert both is not None
    first, stop = (x.to(torch.int32).reshape(1, queries).contiguous() for x in both)
    return first, stop


def _seen(
    mask: Mask | None,
    s: Sizes,
    device: torch.device,
    rows: Slots,
    columns: Slots,
    tiling: Tiling,
    pictured: bool,
    sides: bool,
) -> Tensor:
    from sightline.kernels.layout import chunks, tiles_seen

    intervals = None if mask is None else _intervals(mask, s.queries, s.keys, device)
    chunk = chunks(rows, tiling, pictured)
    return tiles_seen(intervals, rows, columns, tiling, *chunk, s.keys - s.queries, sides, device)


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


def _whole(s: Sizes) -> tuple[Slots, Slots]:
    """All rows and columns, without a picture."""
    from sightline.kernels.layout import Slots

    return Slots(0, s.queries, 1, s.queries), Slots(0, s.keys, 1, s.keys)


def _columns(axis: Axis, device: torch.device) -> Slots:
    """The slots of a picture's columns: cells as they are if pixels are of one handy size, else padded pixels."""
    group = min(axis.regular & -axis.regular, _POOLED)
    if group >= 8:
        return _as_they_are(axis, group=group)
    return _padded(axis, device, 16 if _widest(axis) > 8 else 8)


def _rows(axis: Axis, device: torch.device, height: int) -> Slots:
    """The slots of a picture's rows: a tile of some height takes a few rows of several pixels, or of one large one."""
    widest = _widest(axis)
    taken = min(_TAKEN, height // 8, max(2, 1 << (widest - 1).bit_length()))
    # A chunk of several large pixels would be a large part of the map.
    if widest >= 2 * height and height // taken * widest > (axis.stop - axis.start) // 16:
        taken = height
    if axis.regular and axis.regular % taken == 0:
        return _as_they_are(axis, apart=height // taken)
    return _padded(axis, device, taken, height // taken)


def _widest(axis: Axis) -> int:
    return int((axis.edges[1:] - axis.edges[:-1]).max())


def _as_they_are(axis: Axis, group: int = _POOLED, apart: int = 1) -> Slots:
    from sightline.kernels.layout import Slots

    return Slots(axis.start, axis.stop - axis.start, axis.bins, axis.regular, None, group, apart)


def _padded(axis: Axis, device: torch.device, unit: int, apart: int = 1) -> Slots:
    """Pixels of so many slots, a multiple of the unit, that the widest fits."""
    from sightline.kernels.layout import Slots

    length, cell = axis.stop - axis.start, axis.regular
    pixel = -(-_widest(axis) // unit) * unit
    edges = torch.from_numpy(axis.edges).to(device, torch.int32)
    per, of = (1, cell) if cell else (axis.bins, length)
    return Slots(axis.start, length, axis.bins, pixel, edges, unit, apart, per, of)
