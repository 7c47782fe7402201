"""Whether the kernels of readings give the right numbers on this machine: tried as `trial` tries those of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.lens import geometry, pictures
from sightline.lens.gpu import trial
from sightline.lens.job import Job, Weighted
from sightline.lens.levels import Levels
from sightline.lens.readings import Extra, dot, sizes_of_values
from sightline.lens.requests import Picture, Top
from sightline.lens.requests import Received as OfKeys
from sightline.lens.rows import output_and_rows

if TYPE_CHECKING:
    from sightline.backends.call import Call

# What a wrong kernel gives is off by more than this part of the largest number.
_BOUND = 1e-2
# Of the strongest keys so many are the same; of others the cells are nearly equal.
_SHARED = 0.9

By = Callable[[Levels, Job, Extra], Any]


class Kind(NamedTuple):
    """All that the kernels for a pass over readings depend on."""

    device: torch.device
    dtype: torch.dtype
    dim: int
    mask: tuple[str, ...]
    bias: str | None
    softcap: bool
    sinks: bool
    value_dtype: torch.dtype | None
    value_dim: int
    received: frozenset[tuple[str, str, bool]]  # the reading, what is made of a column, and whether queries weigh
    tops: frozenset[tuple[str, int]]
    pictures: frozenset[tuple[str, bool, bool]]  # the reading, whether of maxima, whether of a part of the map


def passed(call: Call, job: Job, extra: Extra, by_kernels: By, by_walk: By) -> bool:
    """Whether the kernels may do such a job: they have done a small one right."""
    return trial.tried(_kind(call, job, extra), lambda kind: _try(kind, by_kernels, by_walk))


def _kind(call: Call, job: Job, extra: Extra) -> Kind:
    received = {(r.of, r.reduce, isinstance(r, Weighted)) for r in job.received if isinstance(r, OfKeys | Weighted)}
    v = extra.v
    return Kind(
        call.device,
        call.q.dtype,
        call.sizes.dim,
        *trial.mask_and_bias(call),
        call.softcap is not None,
        call.sinks is not None,
        None if v is None else v.dtype,
        0 if v is None else v.shape[-1],
        frozenset(received),
        frozenset((top.of, top.n) for top in job.tops),
        frozenset((key[-2], key[-1], any(span is not None for span in key[2:4])) for key in job.grids),
    )


def _lengths(kind: Kind) -> tuple[int, ...]:
    """How many keys a trial has; for the strongest n both n stretches of columns and more, which other kernels do."""
    from sightline.kernels.reading_edges import MOST
    from sightline.kernels.readings import default_tiling

    most = max((n for _, n in kind.tops if n <= MOST), default=0)
    few = most * 2 * default_tiling(torch.float32 in (kind.dtype, kind.value_dtype)).columns
    return (few, few + trial._KEYS) if few else (trial._KEYS,)


def _try(kind: Kind, by_kernels: By, by_walk: By) -> str | None:
    """Why the kernels may not do such a job, or None if they may."""
    tried = (_try_with(keys, kind, by_kernels, by_walk) for keys in _lengths(kind))
    return next((why_not for why_not in tried if why_not is not None), None)


def _try_with(keys: int, kind: Kind, by_kernels: By, by_walk: By) -> str | None:
    call, new = trial.small_call(kind, keys)
    s = call.sizes
    extra = Extra(sizes=sizes_of_values(call, call.k))
    if kind.value_dtype is not None:
        v = new(*s.batch, s.kv_heads, s.keys, kind.value_dim, dtype=kind.value_dtype)
        grad = new(*s.batch, s.heads, s.queries, kind.value_dim, dtype=kind.value_dtype)
        out, row = output_and_rows(
            call.replace(v=v.to(call.q.dtype), sizes=s._replace(value_dim=kind.value_dim)), "auto"
        )
        extra = Extra(v, grad, dot(grad, out), sizes_of_values(call, v))
    else:
        _, row = output_and_rows(call, "auto")
    levels = Levels(call, row)
    small = [
        Picture(
            cell=(7, 13 + i),
            reduce="max" if largest else "sum",
            rows=slice(9, s.queries - 3) if part else None,
            columns=slice(3, s.keys - 5) if part else None,
            of=of,
        )
        for i, (of, largest, part) in enumerate(sorted(kind.pictures))
    ]
    received: list[Any] = [
        Weighted(new(*s.batch, s.heads, s.queries), of, reduce) if weighted else OfKeys(of, reduce)
        for of, reduce, weighted in sorted(kind.received)
    ]
    grids = {pictures.grid_key(picture): geometry.axes(picture, s.queries, s.keys) for picture in small}
    job = Job(set(), received, [Top(n, of) for of, n in sorted(kind.tops)], grids, small)
    return trial.compared(lambda: by_kernels(levels, job, extra), lambda: by_walk(levels, job, extra), _same)


def _same(got: trial.Results, want: trial.Results) -> bool:
    pairs = [(got[0].get(request), found) for request, found in want[0].items()]
    pairs += [(got[1].get(key), grid) for key, grid in want[1].items()]
    return all(one is not None and _close(one, other) for one, other in pairs)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):  # strongest keys and their cells: of nearly equal sizes either key
        shared = (one[0][..., :, None] == other[0][..., None, :]).any(-1)
        alike = one[0] == other[0]
        if float(shared.float().mean()) < _SHARED:
            return False
        return _near(one[1].abs(), other[1].abs()) and _near(one[1] * alike, other[1] * alike)
    return _near(one, other)


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are the same, but for rounding.

    The largest of cells by magnitude has a sign, and of one above 0 and one below it that are nearly as large, rounding
    chooses: so of few numbers the sign may be the other one.
    """
    one, other = one.double(), other.double()
    bound = _BOUND * other.abs().max().clamp_min(1e-30)
    if not bool(((one.abs() - other.abs()).abs() <= bound).all()):  # not of NaN
        return False
    return float(((one - other).abs() <= bound).double().mean()) >= _SHARED
