"""A pass over readings on a CPU: every map by itself, so that a tile and all that is made of it stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from sightline.lens.cpu.threads import spread
from sightline.lens.levels import Levels
from sightline.lens.select import select

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.job import Job
    from sightline.lens.readings import Extra

# Cells of a map below which it costs more to take maps apart than to walk over them together.
_SMALL = 1 << 16

Both: TypeAlias = tuple[dict[Any, Any], dict[tuple, Tensor]]


def is_worth_it(call: Call) -> bool:
    """Whether the maps of a call are taken one by one."""
    s = call.sizes
    maps = math.prod(s.batch) * s.heads
    return call.device.type == "cpu" and maps > 1 and s.queries * s.keys >= _SMALL


def by_map(levels: Levels, job: Job, extra: Extra, run: Callable[[Levels, Job, Extra], Both]) -> Both:
    """What `run` finds of each map, put together."""
    call, s = levels.call, levels.call.sizes
    places = product(product(*map(range, s.batch)), range(s.heads))

    def one(member: tuple[int, ...], head: int) -> list[Any]:
        own = {request: _selected(request, member, head) for request in job.received}
        part = Levels(*select(call, levels.row, member, [head]))
        found, grids = run(part, job._replace(received=list(own.values())), extra.select(s.groups, member, [head]))
        return [*(found[own[request]] for request in job.received), *(found[top] for top in job.tops), *grids.values()]

    every = spread([partial(one, *place) for place in places])

    def together(parts: Any) -> Any:
        if isinstance(parts[0], tuple):
            return tuple(together(several) for several in zip(*parts, strict=True))
        return torch.cat(parts).reshape(*s.batch, s.heads, *parts[0].shape[1:])

    results = iter([together(parts) for parts in zip(*every, strict=True)])
    return {request: next(results) for request in (*job.received, *job.tops)}, {key: next(results) for key in job.grids}


def _selected(request: Any, member: tuple[int, ...], head: int) -> Any:
    return request.select(member, [head]) if hasattr(request, "select") else request
