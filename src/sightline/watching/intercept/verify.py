"""Whether a function that is not known does what its arguments say: a few rows of weights x values against its output.

transformers' own fused functions are known. A function that somebody registered, and the eager code of a model, may add
a bias, scale or cap otherwise, or leave the mask out; no argument would tell. Their output does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.backends.tiles import bias_tile
from sightline.watching.intercept import active
from sightline.watching.intercept.unseen import drop

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.intercept.function_mode import Audience
    from sightline.watching.intercept.looked import Looked

DIFFERS = "its function gives something else than softmax(q k) v"
DROPOUT = "its function is not known, and under dropout its output says nothing about it"
SHAPE = "its function is not known, and gives its output in a shape that cannot be compared"
# Of a call so many rows, heads and members of the batch are compared: the first, the last, and some in between.
_ROWS, _HEADS, _MEMBERS = 5, 3, 2


def is_known(function: Callable) -> bool:
    """Whether a function is transformers' own, whatever it says of itself."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__globals__", {}).get("__name__", "")).startswith("transformers.")


def is_due(who: Audience, known: bool) -> bool:
    """Whether a call is compared: each one of a function that is not known.

    Of a model's own eager code the first few, and then ever fewer: the steps of a generation are many and small.
    """
    if not known:
        return True
    watcher, name = who.wanting[0]
    layer = watcher.seen._layers.get(name)
    calls = getattr(layer, "calls", 0)
    return calls < 4 or calls & (calls - 1) == 0


def record(who: Audience, looked: Looked, doubt: str | None) -> None:
    """Record a call that nothing speaks against; a layer of which something does is unseen from then on."""
    end_key = looked.first_key + looked.call.sizes.keys
    who.note(looked.first_query, end_key)
    for watcher, name in who.wanting:
        if doubt is not None:
            drop(watcher, name, doubt)
        if watcher.seen._unseen.get(name) in (DIFFERS, DROPOUT, SHAPE):
            watcher.note(name, looked.first_query, end_key)
        else:
            watcher.record(who.module, name, looked)


def doubt(
    looked: Looked, value: Tensor, run: Callable[..., Any], result: Any, dropout: float, known: bool
) -> str | None:
    """What speaks against the account of a call, or None.

    `run(dropout=0.0)` calls the function once more, which is done under dropout, and only where it is known to do
    nothing but compute.
    """
    with active.quiet(), torch.no_grad():
        if dropout:
            if not known:
                return DROPOUT
            devices = [value.device] if value.is_cuda else []
            with torch.random.fork_rng(devices=devices):
                result = run(dropout=0.0)
        output, weights = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        s = looked.call.sizes
        shape = (s.batch[0], s.queries, s.heads, value.shape[-1])
        if not isinstance(output, Tensor) or output.numel() != torch.Size(shape).numel():
            return SHAPE
        if output.shape not in (shape, (*shape[:2], shape[2] * shape[3])):
            return SHAPE
        if not isinstance(weights, Tensor) or weights.dim() != 4 or weights.shape[:3] != looked.row.shape:
            weights = None
        output = output.detach().reshape(shape)
        for member in _some(s.batch[0], _MEMBERS):
            if not _agrees(looked, value, output, weights, member):
                return DIFFERS
        return None


def _agrees(looked: Looked, value: Tensor, output: Tensor, weights: Tensor | None, member: int) -> bool:
    """Compare a few rows of one member of the batch with what they should be, in more than its own precision."""
    call, s = looked.call, looked.call.sizes
    # A row that sees nothing is 0 here, and uniform in transformers' eager code.
    seen = (looked.row[member] > -torch.inf).all(0).nonzero().flatten().tolist()
    rows, heads = [seen[i] for i in _some(len(seen), _ROWS)], _some(s.heads, _HEADS)
    if not rows or not heads:
        return True
    low = _precision(call.q, output)
    high = torch.float32 if low in (torch.float16, torch.bfloat16) else torch.float64
    shared = [head // s.groups for head in heads]
    q, k, v = call.q[member, heads][:, rows], call.k[member, shared], value.detach()[member, shared]
    with torch.autocast(call.device.type, enabled=False):
        more = torch.cat([_bias(call, member, heads, row) for row in rows], dim=-2).to(high)
        sinks = None if call.sinks is None else _heads(call.sinks, heads, s.heads).to(high)
        scores = call.scale * (q.to(high) @ k.to(high).mT)
        true = _softmax(_cap(call, scores) + more, sinks)
        # Eager attention rounds its scores, scaled before or after the product; its softmax is in float32.
        qs, ks = q.to(low), k.to(low)
        rough = torch.stack([(qs @ ks.mT) * call.scale, (qs * call.scale) @ ks.mT]).to(high)
        single = None if sinks is None else sinks.float()
        eager = _softmax((_cap(call, rough) + more).to(low).float(), single).to(low)
        theirs = output[member][rows][:, heads].transpose(0, 1).to(high)
        fits = _close(theirs, true @ v.to(high), (eager @ v.to(low)).to(high), low, v.abs().amax())
        if weights is None or weights.shape[-1] < s.keys:
            return fits
        given = weights.detach()[member, heads][:, rows, : s.keys].to(high)
        return fits and _close(given, true, eager.to(high), low, torch.ones((), device=v.device))


def _close(theirs: Tensor, true: Tensor, eager: Tensor, low: torch.dtype, largest: Tensor) -> bool:
    """Within twice the error that eager attention makes in this precision, and the rounding of what is given."""
    error = (eager - true).abs()
    tolerance = 2 * (error[error.isfinite()].max() if error.isfinite().any() else 0.0)
    least = max(torch.finfo(low).eps, torch.finfo(torch.float32).eps)
    tolerance = tolerance + 2 * least * largest.nan_to_num(0.0, 0.0, 0.0).to(true.dtype)
    same = (theirs - true).abs() <= tolerance
    return bool((same | (theirs.isnan() & true.isnan()) | (theirs == true)).all())


def _precision(q: Tensor, output: Tensor) -> torch.dtype:
    """The lowest precision that the function may have computed in."""
    found = [q.dtype, output.dtype]
    if torch.is_autocast_enabled(q.device.type):
        found.append(torch.get_autocast_dtype(q.device.type))
    return max(found, key=lambda dtype: torch.finfo(dtype).eps)


def _bias(call: Call, member: int, heads: list[int], row: int) -> Tensor:
    """What is added to the scores of one row: the bias, and -inf where it is hidden. `[heads, 1, keys]`."""
    s = call.sizes
    rows, keys = slice(row, row + 1), slice(0, s.keys)
    shape = (s.batch[0], s.heads, 1, s.keys)
    found = torch.zeros((), dtype=call.compute_dtype, device=call.device)
    if call.bias is not None:
        found = bias_tile(call, rows, keys)
    if call.mask is not None:
        visible = call.mask.tile(rows, keys, s.queries, s.keys, call.device)
        found = torch.where(visible, found, -torch.inf)
    return found.expand(shape)[member, heads]


def _heads(sinks: Tensor, heads: list[int], count: int) -> Tensor:
    """The sinks of some heads: `[heads, 1, 1]`."""
    return sinks.reshape(-1).expand(count)[heads].view(-1, 1, 1)


def _cap(call: Call, scores: Tensor) -> Tensor:
    return scores if call.softcap is None else (scores / call.softcap).tanh() * call.softcap


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(-1)
    beside = sinks.expand(*scores.shape[:-1], 1)
    return torch.cat([scores, beside], dim=-1).softmax(-1)[..., :-1]


def _some(count: int, most: int) -> list[int]:
    """Numbers below `count`: the first, the last, and some in between.

    >>> _some(9, 3), _some(2, 3), _some(0, 3)
    ([0, 4, 8], [0, 1], [])
    """
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // (most - 1) for i in range(most)]
