"""Whether the kernels give the right numbers on this machine: asked once for each kind of pass, on a small map.

Kernels are compiled where they run, by whatever Triton is there, for whatever GPU, and a compiler that gets one of them
wrong says nothing. So before a kind of pass is used, it does a map of some hundred rows that torch's operations do too.
What differs is not used, and said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.attention.call import make_call
from sightline.lens import geometry, on_gpu, pictures
from sightline.lens.levels import Levels
from sightline.lens.requests import Picture
from sightline.lens.rows import rows_only
from sightline.masks import Dense, Mask, causal, padding, window
from sightline.positions import Alibi, alibi

if TYPE_CHECKING:
    from sightline.attention.call import Call

_QUERIES, _KEYS, _HEADS = 150, 301, 2
# What a wrong kernel gives is off by more than this part of the largest number.
_BOUND = 1e-2

Results = tuple[dict[Any, Any], dict[tuple, Tensor]]
ByKernels = Callable[[Levels, Any], Results | None]
ByWalk = Callable[[Levels, Any], Results]

_passed: dict[Hashable, bool] = {}


class Kind(NamedTuple):
    """All that the kernels for a pass depend on."""

    device: torch.device
    dtype: torch.dtype
    dim: int
    mask: tuple[str, ...]
    bias: type | None
    softcap: bool
    sinks: bool
    rows: frozenset[str]
    received: bool
    tops: tuple[int, ...]
    maxima: tuple[bool, ...]  # of each picture


def passed(call: Call, job: Any, by_kernels: ByKernels, by_walk: ByWalk) -> bool:
    """Whether the kernels may do such a job: they have done a small one right."""
    kind = _kind(call, job)
    if kind not in _passed:
        _passed[kind] = True  # the trial itself asks too
        _passed[kind] = _try(kind, job, by_kernels, by_walk)
    return _passed[kind]


def _kind(call: Call, job: Any) -> Kind:
    rules, tables = on_gpu.split(call.mask)
    whole = all(on_gpu.from_the_first(rule) for rule in rules)
    mask = (*(["rule" if whole else "stretch"] if rules else []), *(["table"] if tables else []))
    return Kind(
        call.device,
        call.q.dtype,
        call.sizes.dim,
        mask,
        None if call.bias is None else type(call.bias),
        call.softcap is not None,
        call.sinks is not None,
        frozenset(job.rows),
        bool(job.received),
        tuple(sorted({top.n for top in job.tops})),
        tuple(sorted({key[-1] for key in job.grids})),
    )


def _try(kind: Kind, job: Any, by_kernels: ByKernels, by_walk: ByWalk) -> bool:
    draw = torch.Generator().manual_seed(0)

    def new(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*size, generator=draw).to(kind.device, dtype)

    # Keys that are not one block, heads that share keys, rows that see few columns and many.
    q, k = new(1, _HEADS, _QUERIES, kind.dim, dtype=kind.dtype), new(1, 1, _KEYS, kind.dim, dtype=kind.dtype)
    mask: Mask | None = None
    if "rule" in kind.mask:
        mask = causal()
    elif "stretch" in kind.mask:
        mask = window(70) & padding([_KEYS - 9])
    if "table" in kind.mask:
        table = Dense(new(_QUERIES, _KEYS) > -1.0)
        mask = table if mask is None else mask & table
    bias: Any = new(_QUERIES, _KEYS) if kind.bias is Tensor else alibi(_HEADS) if kind.bias is Alibi else None
    call = make_call(
        q, k, k, mask=mask, bias=bias, softcap=5.0 if kind.softcap else None, sinks=new(_HEADS) if kind.sinks else None
    )
    small = [Picture(cell=(7, 13), reduce="max" if largest else "sum") for largest in kind.maxima]
    grids = {pictures.grid_key(picture): geometry.axes(picture, _QUERIES, _KEYS) for picture in small}
    trial = job._replace(received=["received"] if kind.received else [], grids=grids, pictures=small)
    levels = Levels(call, rows_only(call))
    got, want = by_kernels(levels, trial), by_walk(levels, trial)
    if got is None or _same(got, want):
        return True
    warnings.warn(
        f"the lens's GPU kernels give wrong numbers on this machine ({torch.cuda.get_device_name(kind.device)}, torch "
        f"{torch.__version__}) for {kind.dtype}, heads of {kind.dim}: torch's operations do it instead, more slowly",
        UserWarning,
        stacklevel=2,
    )
    return False


def _same(got: Results, want: Results) -> bool:
    pairs = [(got[0][name], found) for name, found in want[0].items() if name in got[0]]
    pairs += [(got[1][key], grid) for key, grid in want[1].items() if key in got[1]]
    return all(_close(one, other) for one, other in pairs)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):  # strongest keys and their weights: of equal weights either key
        one, other = one[1], other[1]
    one, other = one.double(), other.double()
    if not torch.equal(one == -torch.inf, other == -torch.inf):
        return False
    one, other = (x.masked_fill(x == -torch.inf, 0.0) for x in (one, other))
    return bool((one - other).abs().max() <= _BOUND * other.abs().max().clamp_min(1e-30))
