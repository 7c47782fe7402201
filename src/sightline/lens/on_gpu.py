"""The pass by the Triton kernel: which jobs it can do, and how a call is put to it."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.lens.pictures import means_of
from sightline.masks import Band, Dense, Padding, Prefix
from sightline.masks.base import And
from sightline.positions import Alibi

if TYPE_CHECKING:
    from sightline.attention.call import Call
    from sightline.kernels.layout import Slots, Tiling
    from sightline.lens.compute import Job
    from sightline.lens.geometry import Axis
    from sightline.masks import Mask

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
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


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def split(mask: Mask | None) -> tuple[list[Mask], list[Mask]]:
    """The parts of a conjunction: rules, and tables of booleans."""
    if mask is None:
        return [], []
    if isinstance(mask, And):
        (rules, tables), (more_rules, more_tables) = split(mask.left), split(mask.right)
        return rules + more_rules, tables + more_tables
    is_table = isinstance(mask, Dense) or (isinstance(mask, Padding) and mask.real is not None)
    return ([], [mask]) if is_table else ([mask], [])


def run(call: Call, row: Tensor, job: Job) -> tuple[dict[Any, Any], dict[tuple, Tensor]] | None:
    """The results of a job by the kernels, or None if the mask turns out not to be one stretch of keys per row.

    The strongest keys may be missing from them: their kernels do not do every call.
    """
    from sightline.kernels.layout import default_tiling
    from sightline.kernels.look import look
    from sightline.kernels.rows import max_scores
    from sightline.kernels.top import MOST, bins_for, top

    s = call.sizes
    masked = _masks(call)
    if masked is None:
        return None
    options: dict[str, Any] = {
        **masked,
        "scale": call.scale,
        "softcap": call.softcap,
        "slopes": call.bias.slopes.to(call.device) if isinstance(call.bias, Alibi) else None,
        "bias": _four_axes(call.bias, call) if isinstance(call.bias, Tensor) else None,
    }
    q, k = (t.reshape(-1, *t.shape[-3:]) for t in (call.q, call.k))
    lse = row.reshape(-1, s.heads, s.queries)

    def shaped(x: Tensor) -> Tensor:
        return x.reshape(*s.batch, *x.shape[1:])

    found: dict[Any, Any] = {}
    grids: dict[tuple, Tensor] = {}
    want = set(job.rows)
    if call.sinks is not None and want & {"entropy", "distance"}:
        want.add("total")
    plain = [request for request in job.received if request == "received"]
    if plain:
        want.add("received")
    tops = [] if isinstance(call.bias, Tensor) else [request for request in job.tops if request.n <= MOST]
    if tops:
        want.add("max_score")  # whose bins tell where to look
    pending = list(job.grids.items())
    means = means_of(job.pictures, job.grids)
    bins, width = 1, s.keys
    largest = edges = lse
    while want or pending:
        # A picture of the whole map rides along with the rest; sums and maxima of the same pixels go together.
        taken = [entry for entry in pending if entry[0][:4] == pending[0][0][:4]] if pending else []
        if taken and want and (taken[0][0][2] is not None or taken[0][0][3] is not None):
            taken = []
        rows, columns = _whole(call)
        asked = frozenset(want | {"maxima" if key[-1] else "sums" for key, _ in taken})
        tiling = default_tiling(s.dim, call.q.dtype, asked)
        if taken:
            vertical, horizontal = taken[0][1]
            rows, columns = _rows(vertical, call, tiling.rows), _columns(horizontal, call)
        unit = 1.0
        if len(taken) == 1 and taken[0][0] in means:
            unit = 1 / means[taken[0][0]][1]
        if tops and "max_score" in want:
            parts = 2 * -(-columns.slots // (2 * tiling.columns))
            bins = bins_for(max(request.n for request in tops), lse.numel(), parts)
            width = -(-parts // bins) * tiling.columns
        seen = None
        if rows.edges is None and columns.edges is None and _is_positional(call.mask):
            sides = "distance" in want
            seen = _seen(call.mask, s.queries, s.keys, call.device, rows, columns, tiling, bool(taken), sides)
        result = look(
            q, k, lse, rows=rows, columns=columns, want=asked, tiling=tiling, seen=seen, bins=bins, pixel_unit=unit,
            **options,
        )  # fmt: skip
        largest, edges = result.get("largest", largest), result.get("bin_edges", edges)
        for key, _ in taken:
            pixels = shaped(result["maxima" if key[-1] else "sums"])
            if unit == 1.0:
                grids[key] = pixels
            else:
                found[means[key][0]] = pixels
            pending = [entry for entry in pending if entry[0] != key]
        found.update({name: shaped(result[name]) for name in want if name in result})
        want = set()
    for request in job.received:
        if request not in plain:
            weights = request.weights.reshape(-1, s.heads, s.queries)  # type: ignore[union-attr]
            rows, columns = _whole(call)
            part = look(q, k, lse, rows=rows, columns=columns, want=frozenset({"received"}), weights=weights, **options)
            found[request] = shaped(part["received"])
    for request in tops:
        rules = {name: options[name] for name in ("scale", "softcap", "slopes", "intervals", "table", "starts")}
        keys, weights, least = top(q, k, lse, largest, edges, width, request.n, **rules)
        found[request] = shaped(keys), shaped(weights)
        if "max_score" in job.rows and "max_score" not in found:
            found["max_score"] = shaped(max_scores(lse, least))
    return found, grids


def _masks(call: Call) -> dict[str, Any] | None:
    """The mask as intervals and a table, or None if it is more than that."""
    s, device = call.sizes, call.device
    rules, tables = split(call.mask)
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
    both = None if intervals is None else tuple(_per_batch(x, call) for x in intervals)
    return {"intervals": both, "starts": not all(_from_the_first(rule) for rule in rules), "table": table}


def _is_positional(mask: Mask | None) -> bool:
    """Whether a mask is a plain value: what follows from it is the same for every layer, and is kept."""
    return mask is None or isinstance(mask, Band | Prefix)


def _from_the_first(mask: Mask) -> bool:
    """Whether every row that sees anything sees key 0."""
    return isinstance(mask, Prefix) or (isinstance(mask, Band) and mask.left is None)


@functools.lru_cache(maxsize=32)
def _intervals(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    both = mask.intervals(queries, keys, device)
    assert both is not None
    return both[0].to(torch.int32), both[1].to(torch.int32)


@functools.lru_cache(maxsize=32)
def _seen(
    mask: Mask | None,
    queries: int,
    keys: int,
    device: torch.device,
    rows: Slots,
    columns: Slots,
    tiling: Tiling,
    pictured: bool,
    sides: bool,
) -> Tensor:
    from sightline.kernels.layout import chunks, tiles_seen

    intervals = None
    if mask is not None:
        first, stop = _intervals(mask, queries, keys, device)
        intervals = (first[None], stop[None])
    chunk = chunks(rows, tiling, pictured)
    return tiles_seen(intervals, rows, columns, tiling, *chunk, keys - queries, sides, device)


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


def _whole(call: Call) -> tuple[Slots, Slots]:
    """All rows and columns, without a picture."""
    from sightline.kernels.layout import Slots

    s = call.sizes
    return Slots(0, s.queries, 1, s.queries), Slots(0, s.keys, 1, s.keys)


def _columns(axis: Axis, call: Call) -> Slots:
    """The slots of a picture's columns: cells as they are if pixels are of one handy size, else padded pixels."""
    group = min(axis.regular & -axis.regular, _POOLED)
    if group >= 8:
        return _as_they_are(axis, group=group)
    return _padded(axis, call, 16 if _widest(axis) > 8 else 8)


def _rows(axis: Axis, call: Call, height: int) -> Slots:
    """The slots of a picture's rows: a tile of some height takes a few rows of several pixels, or of one large one."""
    widest = _widest(axis)
    taken = min(_TAKEN, height // 8, max(2, 1 << (widest - 1).bit_length()))
    # A chunk of several large pixels would be a large part of the map.
    if widest >= 2 * height and height // taken * widest > (axis.stop - axis.start) // 16:
        taken = height
    if axis.regular and axis.regular % taken == 0:
        return _as_they_are(axis, apart=height // taken)
    return _padded(axis, call, taken, height // taken)


def _widest(axis: Axis) -> int:
    return int((axis.edges[1:] - axis.edges[:-1]).max())


def _as_they_are(axis: Axis, group: int = _POOLED, apart: int = 1) -> Slots:
    from sightline.kernels.layout import Slots

    return Slots(axis.start, axis.stop - axis.start, axis.bins, axis.regular, None, group, apart)


def _padded(axis: Axis, call: Call, unit: int, apart: int = 1) -> Slots:
    """Pixels of so many slots, a multiple of the unit, that the widest fits."""
    from sightline.kernels.layout import Slots

    length, cell = axis.stop - axis.start, axis.regular
    pixel = -(-_widest(axis) // unit) * unit
    edges = torch.from_numpy(axis.edges).to(call.device, torch.int32)
    per, of = (1, cell) if cell else (axis.bins, length)
    return Slots(axis.start, length, axis.bins, pixel, edges, unit, apart, per, of)
