"""From a set of requests to one pass over the map: by the Triton kernel where it can, else by the walk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from sightline.lens import geometry, pictures
from sightline.lens.by_map import by_map, is_worth_it
from sightline.lens.cpu import plan as cpu_plan
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.gpu import reading_trial, trial
from sightline.lens.gpu import readings as gpu_readings
from sightline.lens.job import Allowed, Between, Job, Weighted
from sightline.lens.readings import SIGNED, Extra, Reader, times_sizes
from sightline.lens.requests import Picture, Request, Top, of_what
from sightline.lens.requests import Received as OfKeys
from sightline.lens.statistics import FUSED, STATISTICS
from sightline.lens.tiles.accumulators import Accumulator, Pixels, RowSums
from sightline.lens.tiles.parts import Readings, gathers
from sightline.lens.tiles.walk import walk
from sightline.memory import require

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.levels import Levels

Asked: TypeAlias = Request | Weighted | Between | Allowed


def compute(levels: Levels, requests: list[Asked], extra: Extra | None = None) -> dict[Any, Any]:
    """The results of all requests, by one pass over the map; what is not of weights is read by a walk beside it."""
    call = levels.call
    if torch.is_autocast_enabled(call.device.type):
        with torch.autocast(call.device.type, enabled=False):
            return compute(levels, requests, extra)
    with torch.no_grad():
        # What keys received of norms is what they received, times one number each.
        scaled = {request: _of_weights(request) for request in requests if _is_received_norms(request)}
        plain = [request for request in requests if _is_plain(request)]
        plain += [request for request in scaled.values() if request not in plain]
        others = [request for request in requests if not _is_plain(request) and request not in scaled]
        found: dict[Any, Any] = {}
        if others:
            assert extra is not None
            job = _plan(call, others)
            found |= _with_pictures(call, job, *_readings(levels, job, extra))
        if plain:
            job = _plan(call, plain)
            found |= _with_pictures(call, job, *_pass(levels, job))
        for request, weights in scaled.items():
            assert extra is not None
            found[request] = times_sizes(found[weights], extra)
        return {request: found[request] for request in requests}


def _is_plain(request: Asked) -> bool:
    """Whether the passes for weights know it."""
    if isinstance(request, Weighted):
        return request.of == "weights" and request.reduce == "sum"
    return isinstance(request, str) or (isinstance(request, Top | Picture) and request.of == "weights")


def _is_received_norms(request: Asked) -> bool:
    return isinstance(request, Weighted | OfKeys) and request.of == "norms" and request.reduce == "sum"


def _of_weights(request: Asked) -> Asked:
    return Weighted(request.weights) if isinstance(request, Weighted) else "received"


def _readings(levels: Levels, job: Job, extra: Extra) -> tuple[dict[Any, Any], dict[tuple, Tensor]]:
    """By kernels where they can; else by a walk over all maps at once, on a CPU over each by itself, side by side."""
    if gpu_readings.takes(levels, extra):
        mine, rest = gpu_readings.split(levels, job)
        if any(mine) and reading_trial.passed(levels.call, mine, extra, gpu_readings.run, _by_walk):
            both = gpu_readings.run(levels, mine, extra)
            if both is not None:
                left = _by_walk(levels, rest, extra)[0] if any(rest) else {}
                return both[0] | left, both[1]
    if not is_worth_it(levels.call):
        return _by_walk(levels, job, extra)
    return by_map(levels, job, extra, _by_walk)


def _with_pictures(call: Call, job: Job, found: dict[Any, Any], grids: dict[tuple, Tensor]) -> dict[Any, Any]:
    """All results, with the pictures that are not finished yet made from their pixels."""
    unfinished = [picture for picture in job.pictures if picture not in found]
    shared = Counter(map(pictures.grid_key, unfinished))
    for picture in unfinished:
        key = pictures.grid_key(picture)
        grid = grids[key].clone() if shared[key] > 1 else grids[key]
        found[picture] = pictures.finish(call, picture, grid, *job.grids[key])
    return found


def _pass(levels: Levels, job: Job) -> tuple[dict[Any, Any], dict[tuple, Tensor]]:
    """By the fastest pass there is; what it does not know goes to the walk beside it."""
    known = job if job.rows <= FUSED else job._replace(rows=job.rows & FUSED)
    both = _fused(levels, known) if known is job or any(known) else None
    if both is None:
        return _by_walk(levels, job)
    found, grids = both
    rows, tops = job.rows - known.rows, [top for top in job.tops if top not in found]
    if rows or tops:
        found |= _by_walk(levels, Job(rows, [], tops, {}, []))[0]
    return found, grids


def _fused(levels: Levels, job: Job) -> tuple[dict[Any, Any], dict[tuple, Tensor]] | None:
    """By kernels, or by the sweep of a CPU; None if neither can do such a call. Some strongest keys may be missing."""
    call = levels.call
    both = None
    if gpu_plan.takes(levels) and trial.passed(call, job, gpu_plan.run, _by_walk):
        both = gpu_plan.run(levels, job)
    if both is None and cpu_plan.can(call) and not levels.coarse:
        both = cpu_plan.run(levels, job, *_rectangle(call, job))
    return both


def _plan(call: Call, requests: list[Asked]) -> Job:
    s = call.sizes
    maps = torch.Size(s.batch).numel() * s.heads
    job = Job(set(), [], [], {}, [])
    for request in requests:
        if isinstance(request, Picture):
            vertical, horizontal = geometry.axes(request, s.queries, s.keys)
            pixels = maps * (request.size[0] * request.size[1] if request.size else vertical.bins * horizontal.bins)
            require(
                "this picture", 2 * pixels * call.compute_dtype.itemsize, call.device, "a smaller size, or larger cells"
            )
            job.grids[pictures.grid_key(request)] = (vertical, horizontal)
            job.pictures.append(request)
        elif isinstance(request, Top):
            n = min(request.n, s.keys)
            require(
                f"top({request.n})",
                maps * s.queries * (request.n + 2 * n) * (8 + call.compute_dtype.itemsize),
                call.device,
                "fewer keys per query, or tile() for a part of the map",
            )
            job.tops.append(request)
        elif isinstance(request, str) and request in STATISTICS:
            job.rows.add(request)
        else:
            job.received.append(request)
    return job


def _by_walk(levels: Levels, job: Job, extra: Extra | None = None) -> tuple[dict[Any, Any], dict[tuple, Tensor]]:
    call = levels.call
    parts: dict[Any, Accumulator] = {}
    readings: dict[str, list[Accumulator]] = {}
    if job.rows:
        parts["rows"] = RowSums(call, job.rows)
    for request in (*job.received, *job.tops):
        parts[request] = gathers(call, request)
    for key, (vertical, horizontal) in job.grids.items():
        parts[key] = Pixels(call, vertical, horizontal, largest=key[-1], signed=key[-2] in SIGNED)
    for key, part in parts.items():
        readings.setdefault(key[-2] if isinstance(key, tuple) else of_what(key), []).append(part)
    every = list(parts.values())
    if readings.keys() - {"weights"}:
        assert extra is not None
        every = [Readings(Reader(call, extra, together=readings.keys() >= SIGNED), readings)]
    walk(levels, every, *_rectangle(call, job), align=_alignment(job), weights_only=extra is not None and not job.rows)
    found: dict[Any, Any] = {}
    grids = {key: parts.pop(key).result() for key in job.grids}
    for key, part in parts.items():
        if key == "rows":
            found.update(part.result())  # type: ignore[call-overload]
        else:
            found[key] = part.result()
    return found, grids  # type: ignore[return-value]


def _rectangle(call: Call, job: Job) -> tuple[slice, slice]:
    """The part of the map the pass must see: all of it, unless only pictures of a part are asked for."""
    if job.rows or job.received or job.tops or not job.grids:
        return slice(0, call.sizes.queries), slice(0, call.sizes.keys)
    vertical, horizontal = zip(*job.grids.values(), strict=True)
    rows, columns = (slice(min(a.start for a in axes), max(a.stop for a in axes)) for axes in (vertical, horizontal))
    return rows, columns


def _alignment(job: Job) -> tuple[int, int]:
    """Cells per pixel of the one picture whose pixels are all of one size, so that tiles hold whole pixels."""
    for vertical, horizontal in job.grids.values():
        return max(vertical.regular, 1), max(horizontal.regular, 1)
    return 1, 1
