"""The pass on the CPU where a compiled kernel does whole maps, products included (`kernels/native/tile.c`).

A sweep in tiles pays for Python after each product, and computes what lies above the diagonal of a tile for nobody.
For short contexts, where a tile is the map, that is most of the pass. The kernel takes some rows at a time with the
keys that they see, in memory that is linear in the keys. It knows no soft-cap, no infinities, no holes between keys,
and of pictures one of sums over all of the map.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline.kernels.native import tile as native_tile
from sightline.kernels.native.maps import Maps
from sightline.lens.cpu.buffers import Block, zeros
from sightline.lens.cpu.native import LINES
from sightline.lens.cpu.threads import spread
from sightline.lens.levels import level_of
from sightline.lens.pictures import means_of
from sightline.lens.statistics import ENTROPY, MAX_SCORE, STATISTICS, TOTAL, Rows

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.cpu.stretches import Stretches
    from sightline.lens.job import Job
    from sightline.lens.levels import Levels

# Keys up to which packed keys of a head stay in the cache of a core.
_KEYS = 2048
# Cells of a call from which on it is worth it.
_CELLS = native_tile.CELLS
# Pieces of work, whatever the number of cores, and cells below which waking threads takes longer than it saves.
_PIECES, _ALONE = 8, 1 << 19
# A map is one core's work: fewer large ones than these are cut up by the sweep, for all cores.
_MAPS = 4
_LN_2, _LOG2_E = math.log(2), math.log2(math.e)


def can(call: Call, count: int = 1) -> bool:
    """Whether the kernel can do such a call, or so many at once, as far as can be told without mask and numbers."""
    s = call.sizes
    maps = count * math.prod(s.batch) * s.heads
    cells = maps * s.queries * s.keys
    return (
        call.compute_dtype == torch.float32
        and call.softcap is None
        and s.keys <= _KEYS
        and cells >= _CELLS
        and (maps >= _MAPS or cells < _ALONE)
        and native_tile.maps() is not None
    )


def takes(levels: Levels, job: Job, rows: slice, columns: slice, seen: Stretches) -> bool:
    """Whether the kernel can do a job."""
    call, s = levels.call, levels.call.sizes
    if not can(call) or job.tops or len(job.grids) > 1 or any(one != "received" for one in job.received):
        return False
    if seen.holes is not None or (rows, columns) != (slice(0, s.queries), slice(0, s.keys)):
        return False
    for key, axes in job.grids.items():
        ends = [(axis.start, axis.stop) for axis in axes]
        if key[-1] or ends != [(0, s.queries), (0, s.keys)]:
            return False
    return levels.holds


def run(levels: Levels, job: Job, seen: Stretches) -> tuple[dict[Any, Any], dict[tuple, Tensor]]:
    """The results of a job that the kernel takes."""
    call, s = levels.call, levels.call.sizes
    kernel = native_tile.maps()
    assert kernel is not None
    shape = (*s.batch, s.heads)
    maps = math.prod(shape)
    q, k = (_in_rows(x, s.batch) for x in (call.q, call.k))
    level = (levels.row * -_LOG2_E).contiguous()  # the lse of a fused kernel may lie in another order
    level.masked_fill_(level == torch.inf, 0.0)
    rest = torch.zeros_like(level).masked_fill_(levels.large, torch.nan) if levels.any() else None
    factors = None if levels.taken is None else levels.taken.neg().exp().expand_as(level).contiguous()
    first, stop = (np.ascontiguousarray(x, np.int32) for x in seen[:2])
    if len(first) != len(stop):
        first, stop = (np.ascontiguousarray(x) for x in np.broadcast_arrays(first, stop))
    result = torch.empty(4, *shape, s.queries, device="cpu") if job.rows else None
    received = torch.empty(*shape, s.keys, device="cpu") if job.received else None
    tall = across = 0
    picture, edges, unit, means = None, (None, None), 1.0, means_of(job.pictures, job.grids)
    for key, axes in job.grids.items():
        picture = zeros(*shape, *(axis.bins for axis in axes), dtype=torch.float32, cleared=False)
        if not all(axis.regular == 1 for axis in axes):
            edges = tuple(np.ascontiguousarray(axis.edges, np.int32) for axis in axes)  # type: ignore[assignment]
        tall, across = (axis.bins for axis in axes)
        unit = 1 / means[key][1] if key in means else 1.0
    told = Maps(
        **{name: _address(x) for name, x in (("q", q), ("k", k), ("level", level), ("rest", rest))},
        **{name: _address(x) for name, x in (("factors", factors), ("first", first), ("stop", stop))},
        **{name: _address(x) for name, x in (("result", result), ("received", received), ("picture", picture))},
        **{name: _address(x) for name, x in (("row_edges", edges[0]), ("column_edges", edges[1]))},
        maps=maps, heads=s.heads, groups=s.groups, members=len(first), queries=s.queries, keys=s.keys, dim=s.dim,
        q_batch=q.stride(0), q_head=q.stride(1), q_next=q.stride(2),
        k_batch=k.stride(0), k_head=k.stride(1), k_next=k.stride(2),
        pixel_rows=tall, pixel_columns=across,
        scale=call.scale * _LOG2_E, place=s.keys - s.queries, unit=unit,
    )  # fmt: skip
    _in_pieces(kernel, told, maps, s, int((stop - first).clip(0).sum()) * maps // len(first))
    if rest is not None:
        levels.put(slice(0, s.queries), rest * _LN_2)
    found: dict[Any, Any] = {} if result is None else _rows(levels, job, result, rest, factors)
    if received is not None:
        found |= dict.fromkeys(job.received, received)
    grids = {}
    for key in job.grids:
        assert picture is not None
        if key in means:
            found[means[key][0]] = picture
        else:
            grids[key] = picture
    return found, grids


def _in_pieces(kernel: Any, told: Maps, maps: int, s: Any, cells: int) -> None:
    """All maps, those that share keys one after the other where there are enough."""
    size = -(-maps // _PIECES)
    if size >= s.groups:
        size = -(-size // s.groups) * s.groups

    def piece(start: int) -> None:
        block = Block(kernel.memory(s.keys, s.dim), torch.float32)
        kernel.run(ctypes.byref(told), start, min(start + size, maps), block.numbers.data_ptr())
        block.free()

    alone = cells < _ALONE
    if alone:
        size = maps
    spread([partial(piece, start) for start in range(0, maps, size)], alone=alone)


def _rows(levels: Levels, job: Job, result: Tensor, rest: Tensor | None, factors: Tensor | None) -> dict[str, Tensor]:
    """The row statistics, from logarithms of base 2 to natural ones."""
    sums = dict(zip(LINES, result))
    found: dict[str, Tensor] = {}
    for name in job.rows:
        if name == MAX_SCORE.name:
            largest = sums["largest"]
            hidden = largest <= -1e29
            x = largest * _LN_2 + level_of(levels.row)
            x = (x if rest is None else x + rest * _LN_2).masked_fill_(hidden, -torch.inf)
        elif name == ENTROPY.name:
            x = sums[name] * _LN_2
        elif name == TOTAL.name and factors is not None:
            x = sums[name] * factors
        else:
            x = sums[name].clone()
        found[name] = STATISTICS[name].finished(Rows({name: x}))
    return found


def _in_rows(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """`[batch, heads, time, dim]` in float32, the numbers of a row in order."""
    x = x.detach().to(torch.float32).reshape(math.prod(batch), *x.shape[-3:])
    return x if x.stride(-1) == 1 else x.contiguous()


def _address(x: Tensor | np.ndarray | None) -> int | None:
    if x is None:
        return None
    return x.data_ptr() if isinstance(x, Tensor) else x.ctypes.data
