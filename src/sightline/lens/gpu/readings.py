"""The pass over readings by the Triton kernels: which part of a job they can do, and how a call is put to it.

What they cannot do is done by torch's tiles: spans, shares of a rule, more than 32 keys, strongest keys under a bias
that is a tensor, g and v of different dtypes, heads or values wider than `WIDEST`, numbers that are not finite, and all
that the kernels for weights cannot do. `SIGHTLINE_READINGS=torch` leaves everything to these.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline import caches
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.job import Allowed, Between, Job, Weighted
from sightline.lens.readings import SIGNED
from sightline.lens.requests import Received as OfKeys
from sightline.lens.requests import of_what

if TYPE_CHECKING:
    from sightline.kernels.reading_columns import Bins, Layout
    from sightline.kernels.readings import Reading
    from sightline.lens.geometry import Axis
    from sightline.lens.levels import Levels
    from sightline.lens.readings import Extra
    from sightline.masks import Mask
    from sightline.shapes import Sizes

Results = tuple[dict[Any, Any], dict[tuple, Tensor]]

# Heads and values that are wider are left to torch's tiles. Two products of sixteen steps each need more registers for
# addresses than there are, and ptxas 12.8 then takes one of the pooling product's from a register that holds something
# else: reads beyond a program's memory, which end a process's use of its GPU, or wrong numbers.
WIDEST = 128
# What is kept of how passes are laid out, on the GPU: so many, and so many bytes.
_LAYOUTS, _LAYOUT_BYTES = 64, 256 << 20


def takes(levels: Levels, extra: Extra) -> bool:
    """Whether the kernels may do a call at all; which part of a job they do says `split`."""
    v, grad = extra.v, extra.grad
    if os.environ.get("SIGHTLINE_READINGS") == "torch" or not gpu_plan.takes(levels):
        return False
    if levels.call.sizes.dim > WIDEST:
        return False
    return (
        v is None
        or grad is None
        or (v.dtype == grad.dtype and 0 < v.shape[-1] <= WIDEST and v.dtype in gpu_plan.DTYPES)
    )


def split(levels: Levels, job: Job) -> tuple[Job, Job]:
    """The part of a job that the kernels do, and the rest."""
    from sightline.kernels.reading_edges import MOST

    keys: list[Any] = [request for request in job.received if not isinstance(request, Between | Allowed)]
    tops = [] if isinstance(levels.call.bias, Tensor) else [request for request in job.tops if request.n <= MOST]
    mine = job._replace(rows=set(), received=keys, tops=tops)
    rest = Job(
        job.rows,
        [request for request in job.received if isinstance(request, Between | Allowed)],
        [request for request in job.tops if request not in tops],
        {},
        [],
    )
    return mine, rest


class _Go(NamedTuple):
    """One pass over the map: what it finds of keys, how each request is made, and of which picture the pixels."""

    asked: dict[str, list[Any]]
    grid: tuple | None
    axes: tuple[Axis, Axis] | None
    tops: list[Any]


def run(levels: Levels, job: Job, extra: Extra) -> Results | None:
    """The results of a job by the kernels; None if its mask is more than they know, or something is not finite."""
    from sightline.kernels.readings import NotTaken

    readings = list(
        dict.fromkeys([*(map(of_what, (*job.received, *job.tops))), *(key[-2] for key in job.grids)]),
    )
    made = _readings(levels, readings, extra)
    if made is None:
        return None
    try:
        return _passes(levels, job, made)
    except NotTaken:
        return None


def _passes(levels: Levels, job: Job, made: dict[str, Reading]) -> Results:
    """The passes for some readings. The first one makes all it can before it asks what the numbers are."""
    from sightline.kernels.reading_columns import columns

    call, s = levels.call, levels.call.sizes

    def shaped(x: Tensor) -> Tensor:
        return x if len(s.batch) == 1 else x.reshape(*s.batch, *x.shape[1:])

    def layout(reading: Reading, axes: tuple[Axis, Axis] | None) -> Layout:
        known = gpu_plan.is_positional(call.mask)
        return _layout(call.mask if known else None, known, s, reading.exact, call.device, axes)

    found: dict[Any, Any] = {}
    grids: dict[tuple, Tensor] = {}
    for of, reading in made.items():
        for go in _goes(job, of, s.queries, s.keys):
            laid = layout(reading, go.axes)
            bins, tops = _strongest(reading, go.tops, laid)
            largest = go.grid is not None and go.grid[-1]
            result = columns(reading.q, reading, frozenset(go.asked), laid, None, largest, bins)
            found |= {request: shaped(result[how]) for how, several in go.asked.items() for request in several}
            found |= {request: (shaped(keys), shaped(cells)) for request, (keys, cells) in tops.items()}
            if go.grid is not None:
                grids[go.grid] = shaped(result["grid"])
    for request in job.received:
        if isinstance(request, Weighted):
            reading = made[request.of]
            weights = request.weights.to(call.device).reshape(-1, s.heads, s.queries)
            if request.reduce == "magnitude" and request.of not in SIGNED:
                weights, how = weights.abs(), "sum"
            else:
                how = request.reduce
            result = columns(reading.q, reading, frozenset({how}), layout(reading, None), weights)
            found[request] = shaped(result[how])
    return found, grids


def _strongest(
    reading: Reading, tops: list[Any], layout: Layout
) -> tuple[Bins | None, dict[Any, tuple[Tensor, Tensor]]]:
    """What a pass does with the largest cells of stretches of columns, and where the strongest of each row then are."""
    from sightline.kernels.reading_columns import Bins, bins_for
    from sightline.kernels.reading_edges import edges

    if not tops:
        return None, {}
    q = reading.q
    queries, keys = q.shape[2], reading.rules.given["keys"]
    # Behind the keys that there are is nothing.
    found = {
        top: (
            torch.full((*q.shape[:3], top.n), -1, dtype=torch.int64, device=q.device),
            torch.zeros((*q.shape[:3], top.n), dtype=torch.float32, device=q.device),
        )
        for top in tops
    }
    count, width = bins_for(
        max(min(top.n, keys) for top in tops), queries, keys, q.shape[3] * q.element_size(), layout.tiling
    )

    def take(first: int, strongest: Tensor) -> None:
        for top, results in found.items():
            edges(q, reading, top.n, results, first, strongest, layout.rows, width)

    return Bins(count, width, take), found


def _goes(job: Job, of: str, queries: int, keys: int) -> list[_Go]:
    """The passes over the map for one reading."""
    wanted: dict[str, list[Any]] = {}
    for request in job.received:
        if isinstance(request, OfKeys) and request.of == of:
            how = "sum" if request.reduce == "magnitude" and of not in SIGNED else request.reduce
            wanted.setdefault(how, []).append(request)
    tops = [request for request in job.tops if request.of == of]
    sums = {how: several for how, several in wanted.items() if how != "max"}
    largest = {how: several for how, several in wanted.items() if how == "max"}
    found: list[_Go] = []
    for key, axes in job.grids.items():
        if key[-2] != of:
            continue
        vertical, horizontal = axes
        asked: dict[str, list[Any]] = {}
        mine: list[Any] = []
        if (vertical.start, vertical.stop, horizontal.start, horizontal.stop) == (0, queries, 0, keys):
            # What is asked of keys and rows rides along with a picture of the whole map.
            asked, sums, largest = (largest, sums, {}) if key[-1] else (sums, {}, largest)
            if not key[-1]:
                mine, tops = tops, []
        found.append(_Go(asked, key, axes, mine))
    if sums or tops:
        found.append(_Go(sums, None, None, tops))
    if largest:
        found.append(_Go(largest, None, None, []))
    return found


@caches.memo_by_bytes("lens.reading_layouts", _LAYOUTS, _LAYOUT_BYTES)  # every layer of a model asks for the same
def _layout(
    mask: Mask | None, known: bool, s: Sizes, exact: bool, device: torch.device, axes: tuple[Axis, Axis] | None
) -> Layout:
    """How the rows and columns of a pass lie. The mask counts only if it is `known` to be the same for every layer."""
    from sightline.kernels.layout import Columns, plain_rows, tiles_seen
    from sightline.kernels.reading_columns import Layout
    from sightline.kernels.readings import default_tiling

    tiling = default_tiling(exact)
    layout = Layout(plain_rows(0, s.queries, tiling.rows), Columns(0, s.keys), tiling)
    if axes is not None:
        rows, columns, parts, as_floats = gpu_plan.pixels_of(*axes, s, tiling, device)
        layout = Layout(rows, columns, tiling, parts, as_floats)
    if not known:
        return layout
    intervals = None if mask is None else gpu_plan.intervals_of(mask, s.queries, s.keys, device)
    shift = s.keys - s.queries
    return layout._replace(seen=tiles_seen(intervals, layout.rows, layout.columns, tiling, shift, False, device))


def _readings(levels: Levels, names: list[str], extra: Extra) -> dict[str, Reading] | None:
    """The readings of a call for the kernels."""
    from sightline.kernels.layout import aligned
    from sightline.kernels.readings import Numbers, Reading
    from sightline.kernels.rules import Rules

    call = levels.call
    options = gpu_plan.options_of(call)
    if options is None:
        return None
    q, k, lse = gpu_plan.as_kernels_take(levels)
    signed = [of for of in names if of in SIGNED]
    given: dict[str, Tensor] = {}

    def flat(x: Tensor, axes: int) -> Tensor:
        return x.reshape(-1, *x.shape[-axes:])

    if signed:
        assert extra.v is not None
        assert extra.grad is not None
        given |= {"v": aligned(flat(extra.v, 3)), "grad": aligned(flat(extra.grad, 3))}
    if "pull" in names:
        assert extra.along is not None
        given["along"] = flat(extra.along.float(), 2).contiguous()
    if "norms" in names:
        assert extra.sizes is not None
        given["sizes"] = flat(extra.sizes.float(), 2).contiguous()
    measured = gpu_plan.measured_of(levels, options)
    numbers = Numbers(given, lse, measured.large[-1])
    factors = None if levels.taken is None else levels.taken.neg().exp().float().reshape(lse.shape).contiguous()
    rules = Rules(q, k, **options)
    return {
        of: Reading(of, rules, options["intervals"], lse, measured.rest, numbers, factors=factors, **given)
        for of in names
    }
