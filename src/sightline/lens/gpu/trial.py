"""Whether the kernels give the right numbers on this machine: asked once for each kind of pass, on a small map.

Kernels are compiled where they run, by whatever Triton is there, for whatever GPU, and a compiler that gets one of them
wrong says nothing. So before a kind of pass is used, it does a map of some hundred rows that torch's operations do too.
What differs is not used, and said once.

A kernel that reads where it may not ends all work of its process on that GPU: then nothing can take its place, and an
error says so.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline import caches
from sightline.backends.call import make_call
from sightline.errors import SightlineError
from sightline.lens import geometry, pictures
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.levels import Levels
from sightline.lens.requests import Picture
from sightline.lens.rows import rows_only
from sightline.masks import Dense, Mask, causal, padding, window
from sightline.positions import alibi

if TYPE_CHECKING:
    from sightline.backends.call import Call

_QUERIES, _KEYS, _HEADS = 150, 301, 2
# What a wrong kernel gives is off by more than this part of the largest number.
_BOUND = 1e-2
# Of the strongest keys so many are the same; of others the weights are nearly equal.
_SHARED = 0.9

Results = tuple[dict[Any, Any], dict[tuple, Tensor]]
ByKernels = Callable[[Levels, Any], Results | None]
ByWalk = Callable[[Levels, Any], Results]

# Kinds of passes that are remembered.
_MOST = 4096
_passed: dict[Hashable, bool] = caches.held("lens.trials", {}, _MOST)
# Whoever asks while another thread is trying waits for what it finds; the trial itself may ask too.
_lock = threading.RLock()
_trying: set[Hashable] = set()


class Kind(NamedTuple):
    """All that the kernels for a pass depend on."""

    device: torch.device
    dtype: torch.dtype
    dim: int
    mask: tuple[str, ...]
    bias: str | None  # "table" or "slopes"
    softcap: bool
    sinks: bool
    rows: frozenset[str]
    received: bool
    tops: tuple[int, ...]
    pictures: tuple[tuple[bool, bool], ...]  # whether of maxima, whether of a part of the map


def passed(call: Call, job: Any, by_kernels: ByKernels, by_walk: ByWalk) -> bool:
    """Whether the kernels may do such a job: they have done a small one right."""
    return tried(_kind(call, job), lambda kind: _try(kind, job, by_kernels, by_walk))


def tried(kind: Any, attempt: Callable[[Any], str | None]) -> bool:
    """Whether kernels of a kind may be used: an attempt, made once, says why not, or None."""
    right = _passed.get(kind)
    if right is None:
        with _lock:
            if kind in _trying:
                return True
            right = _passed.get(kind)
            if right is None:
                _wait_for(kind.device)  # what went wrong before is of others
                _trying.add(kind)
                try:
                    why_not = attempt(kind)  # an error is no answer: the next one asks again
                except Exception as error:
                    if _is_lost(kind.device):
                        raise _lost(kind, _first_line(error)) from error
                    raise
                finally:
                    _trying.remove(kind)
                if why_not is not None and _is_lost(kind.device):
                    raise _lost(kind, why_not)
                right = caches.put(_passed, kind, why_not is None, _MOST)
                if why_not is not None:
                    _say(kind, why_not)
    return right


def mask_and_bias(call: Call) -> tuple[tuple[str, ...], str | None]:
    """What kernels have to know of a call's mask and bias."""
    rules, tables = gpu_plan.split(call.mask)
    whole = all(rule.sees_first_key for rule in rules)
    mask = (*(["rule" if whole else "stretch"] if rules else []), *(["table"] if tables else []))
    return mask, None if call.bias is None else "table" if isinstance(call.bias, Tensor) else "slopes"


def _kind(call: Call, job: Any) -> Kind:
    return Kind(
        call.device,
        call.q.dtype,
        call.sizes.dim,
        *mask_and_bias(call),
        call.softcap is not None,
        call.sinks is not None,
        frozenset(job.rows),
        bool(job.received),
        tuple(sorted({top.n for top in job.tops})),
        _kinds_of_pictures(job),
    )


def _kinds_of_pictures(job: Any) -> tuple[tuple[bool, bool], ...]:
    """One rides along with what else is asked for, the next has a pass of its own: two of a kind are not as one."""
    each = Counter((key[-1], any(span is not None for span in key[2:4])) for key in job.grids)
    return tuple(sorted(kind for kind, count in each.items() for _ in range(min(count, 2))))


def _lengths(kind: Kind) -> tuple[int, ...]:
    """How many keys a trial has; for the strongest n both n blocks of columns and more, which other kernels do."""
    from sightline.kernels.layout import default_tiling
    from sightline.kernels.top_keys import MOST

    most = max((n for n in kind.tops if n <= MOST), default=0)
    few = most * default_tiling(kind.dim, kind.dtype).columns
    return (few, few + _KEYS) if few else (_KEYS,)


def _try(kind: Kind, job: Any, by_kernels: ByKernels, by_walk: ByWalk) -> str | None:
    """Why the kernels may not do such a job, or None if they may."""
    tried = (_try_with(keys, kind, job, by_kernels, by_walk) for keys in _lengths(kind))
    return next((why_not for why_not in tried if why_not is not None), None)


def small_call(kind: Any, keys: int) -> tuple[Call, Callable[..., Tensor]]:
    """A call of some hundred rows, of the kind's device, dtypes, mask and bias; and what draws more numbers for it."""
    draw = torch.Generator("cpu").manual_seed(0)

    def new(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        # Whatever device and dtype the user has made the default ones.
        return torch.randn(*size, generator=draw, dtype=torch.float32, device="cpu").to(kind.device, dtype)

    # Keys that are not one block, heads that share keys, rows that see few columns and many.
    q, k = new(1, _HEADS, _QUERIES, kind.dim, dtype=kind.dtype), new(1, 1, keys, kind.dim, dtype=kind.dtype)
    mask: Mask | None = None
    if "rule" in kind.mask:
        mask = causal()
    elif "stretch" in kind.mask:
        mask = window(max(keys - _KEYS, 0) + 70) & padding([keys - 9])
    if "table" in kind.mask:
        table = Dense(new(_QUERIES, keys) > -1.0)
        mask = table if mask is None else mask & table
    bias: Any = new(_QUERIES, keys) if kind.bias == "table" else alibi(_HEADS) if kind.bias == "slopes" else None
    call = make_call(
        q, k, k, mask=mask, bias=bias, softcap=5.0 if kind.softcap else None, sinks=new(_HEADS) if kind.sinks else None
    )
    return call, new


def _try_with(keys: int, kind: Kind, job: Any, by_kernels: ByKernels, by_walk: ByWalk) -> str | None:
    call, _ = small_call(kind, keys)
    small = [
        Picture(
            cell=(7, 13 + i),
            reduce="max" if largest else "sum",
            rows=slice(_QUERIES // 8, _QUERIES - 3) if part else None,
            columns=slice(3, keys - 5) if part else None,
        )
        for i, (largest, part) in enumerate(kind.pictures)
    ]
    grids = {pictures.grid_key(picture): geometry.axes(picture, _QUERIES, keys) for picture in small}
    trial = job._replace(received=["received"] if kind.received else [], grids=grids, pictures=small)
    levels = Levels(call, rows_only(call))
    return compared(lambda: by_kernels(levels, trial), lambda: by_walk(levels, trial), _same)


def compared(
    by_kernels: Callable[[], Results | None], by_walk: Callable[[], Results], same: Callable[[Results, Results], bool]
) -> str | None:
    """Why kernels may not be used, from what they and the walk give; None if they may."""
    try:
        got = by_kernels()
    except torch.OutOfMemoryError:
        raise  # of the moment, not of the kernels
    except Exception as error:
        return f"do not run ({_first_line(error)})"
    return None if got is None or same(got, by_walk()) else "give wrong numbers"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}"


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _is_lost(device: torch.device) -> bool:
    """Whether a GPU no longer answers this process: an access that is not allowed is said again to whoever asks."""
    try:
        _wait_for(device)
    except RuntimeError:
        return True
    return False


def _lost(kind: Any, got: str) -> SightlineError:
    """What there is to say when a trial has ended all work on a GPU."""
    readings = hasattr(kind, "value_dim")
    return SightlineError(
        f"a kernel of the lens has ended all work of this process on {kind.device}",
        expected=f"a kernel for {'readings' if readings else 'statistics'} that runs there: {kind}",
        got=got,
        hint=f"a new process with SIGHTLINE_{'READINGS' if readings else 'KERNELS'}=torch in its environment: torch's "
        "operations do it then, more slowly",
    )


def _say(kind: Any, why_not: str) -> None:
    warnings.warn(
        f"the lens's GPU kernels {why_not} on this machine ({torch.cuda.get_device_name(kind.device)}, torch "
        f"{torch.__version__}) for {kind.dtype}, heads of {kind.dim}: torch's operations do it instead, more slowly",
        UserWarning,
        stacklevel=3,
    )


def _same(got: Results, want: Results) -> bool:
    pairs = [(got[0][name], found) for name, found in want[0].items() if name in got[0]]
    pairs += [(got[1][key], grid) for key, grid in want[1].items() if key in got[1]]
    return all(_close(one, other) for one, other in pairs)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):  # strongest keys and their weights: of nearly equal weights either key
        shared = (one[0][..., :, None] == other[0][..., None, :]).any(-1)
        if float(shared.float().mean()) < _SHARED:
            return False
        one, other = one[1], other[1]
    one, other = one.double(), other.double()
    if not torch.equal(one == -torch.inf, other == -torch.inf):
        return False
    one, other = (x.masked_fill(x == -torch.inf, 0.0) for x in (one, other))
    return bool((one - other).abs().max() <= _BOUND * other.abs().max().clamp_min(1e-30))
