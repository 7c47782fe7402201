"""The pass over readings by the Triton kernels: which part of a job they can do, and how a call is put to it.

What they cannot do is done by torch's tiles: spans, shares of a rule, more than 32 keys, strongest keys under a bias
that is a tensor, g and v of different dtypes, heads or values wider than `WIDEST`, numbers that are not finite, and all
that the kernels for weights cannot do. `SIGHTLINE_READINGS=torch` leaves everything to these.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.job import Allowed, Between, Job, Weighted
from sightline.lens.readings import SIGNED
from sightline.lens.requests import Received as OfKeys
from sightline.lens.requests import of_what

if TYPE_CHECKING:
    from sightline.kernels.reading_columns import Grid
    from sightline.kernels.readings import Reading
    from sightline.lens.levels import Levels
    from sightline.lens.readings import Extra

Results = tuple[dict[Any, Any], dict[tuple, Tensor]]

# Heads and values that are wider are left to torch's tiles. Two products of sixteen steps each need more registers for
# addresses than there are, and ptxas 12.8 then takes one of the pooling product's from a register that holds something
# else: reads beyond a program's memory, which end a process's use of its GPU, or wrong numbers.
WIDEST = 128


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


def run(levels: Levels, job: Job, extra: Extra) -> Results | None:
    """The results of a job by the kernels; None if its mask is more than they know, or something is not finite."""
    from sightline.kernels.reading_columns import columns
    from sightline.kernels.reading_edges import edges

    s = levels.call.sizes
    readings = list(
        dict.fromkeys([*(map(of_what, (*job.received, *job.tops))), *(key[-2] for key in job.grids)]),
    )
    made = _readings(levels, readings, extra)
    if made is None:
        return None
    q = gpu_plan.as_kernels_take(levels)[0]

    def shaped(x: Tensor) -> Tensor:
        return x if len(s.batch) == 1 else x.reshape(*s.batch, *x.shape[1:])

    found: dict[Any, Any] = {}
    grids: dict[tuple, Tensor] = {}
    for of, (reading, bound) in made.items():
        for asked, grid, key in _goes(job, of, s.queries, s.keys):
            result = columns(q, reading, frozenset(asked), None, grid, bound)
            found |= {request: shaped(result[how]) for how, several in asked.items() for request in several}
            if key is not None:
                grids[key] = shaped(result["grid"])
    for request in job.received:
        if isinstance(request, Weighted):
            reading, _ = made[request.of]
            weights = request.weights.to(q.device).reshape(-1, s.heads, s.queries)
            if request.reduce == "magnitude" and request.of not in SIGNED:
                weights, how = weights.abs(), "sum"
            else:
                how = request.reduce
            found[request] = shaped(columns(q, reading, frozenset({how}), weights)[how])
    for request in job.tops:
        keys, cells = edges(q, made[request.of][0], min(request.n, s.keys))
        if request.n > s.keys:
            keys = torch.nn.functional.pad(keys, (0, request.n - s.keys), value=-1)
            cells = torch.nn.functional.pad(cells, (0, request.n - s.keys))
        found[request] = shaped(keys), shaped(cells)
    return found, grids


def _goes(job: Job, of: str, queries: int, keys: int) -> list[tuple[dict[str, list[Any]], Grid | None, tuple | None]]:
    """What each pass over the map finds: of keys, how each request is made; and the grid of a picture."""
    from sightline.kernels.reading_columns import Grid

    wanted: dict[str, list[Any]] = {}
    for request in job.received:
        if isinstance(request, OfKeys) and request.of == of:
            how = "sum" if request.reduce == "magnitude" and of not in SIGNED else request.reduce
            wanted.setdefault(how, []).append(request)
    sums = {how: several for how, several in wanted.items() if how != "max"}
    largest = {how: several for how, several in wanted.items() if how == "max"}
    found: list[tuple[dict[str, list[Any]], Grid | None, tuple | None]] = []
    for key, (vertical, horizontal) in job.grids.items():
        if key[-2] != of:
            continue
        grid = Grid(vertical.edges, horizontal.edges, key[-1])
        asked: dict[str, list[Any]] = {}
        if (vertical.start, vertical.stop, horizontal.start, horizontal.stop) == (0, queries, 0, keys):
            # What is asked of keys rides along with a picture of the whole map.
            asked, sums, largest = (largest, sums, {}) if key[-1] else (sums, {}, largest)
        found.append((asked, grid, key))
    return [*found, *((asked, None, None) for asked in (sums, largest) if asked)]


def _readings(levels: Levels, names: list[str], extra: Extra) -> dict[str, tuple[Reading, float]] | None:
    """The readings of a call for the kernels, each with what the cells of a row sum up to at most."""
    from sightline.kernels.layout import aligned
    from sightline.kernels.readings import Reading
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
    # Whole numbers know no NaN, and a maximum passes it by. One wait for all.
    ends = [x.abs().max() if name in ("along", "sizes") else torch.maximum(x.amax(), -x.amin()).float()
            for name, x in given.items()]  # fmt: skip
    most = torch.stack([*ends, torch.where(lse == -torch.inf, 0.0, lse.float()).abs().max()]).tolist()
    if not all(x < float("inf") for x in most):  # NaN is below nothing
        return None
    largest = dict(zip(given, most[:-1], strict=True))
    bounds = {"weights": 1.0, "norms": largest.get("sizes", 0.0)}
    if signed:
        bounds["influence"] = largest["v"] * largest["grad"] * given["v"].shape[-1]
        bounds["pull"] = bounds["influence"] + largest.get("along", 0.0)
    if not all(x < 1e38 for x in bounds.values()):
        return None
    rest = gpu_plan.measured_of(levels, options).rest
    factors = None if levels.taken is None else levels.taken.neg().exp().float().reshape(lse.shape).contiguous()
    rules = Rules(q, k, **options)
    return {
        of: (Reading(of, rules, options["intervals"], lse, rest, factors=factors, **given), bounds[of]) for of in names
    }
