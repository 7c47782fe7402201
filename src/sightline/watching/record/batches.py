"""Calls that are alike, as one batch: one account of all of them.

On a GPU the lens's kernels take them, one after another along the batch, however long they are. Elsewhere, and where a
mask is of a batch's rows, the maps are small and are computed whole, in an axis before the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.lens.cpu import whole_maps
from sightline.lens.gpu import plan as gpu_plan
from sightline.watching.record.account import account, cells_of, is_small
from sightline.watching.record.decoding_steps import Block

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.masks import Mask
    from sightline.watching.record.account import Wanted
    from sightline.watching.record.layer import Part
    from sightline.watching.record.shares import Place

# Cells of a call that waits, and of all that are accounted for at once. On a CPU what does not fit its cache is slower.
CELLS = {"cpu": (1 << 16, 1 << 18), "cuda": (1 << 22, 1 << 23)}
# The same for the kernel in C, which takes one map after the other: what is had once for all of them is its start.
_WHOLE = (1 << 18, 1 << 21)
# Bytes of q and k of a call that waits for kernels: longer ones take longer than to have them done.
_BYTES = 16 << 20


class Waiting(NamedTuple):
    """A call that waits, with copies of its q and k."""

    layer: Any  # the `Layer`; None in what must not hold it
    part: Part
    call: Call
    row: Tensor
    place: Place
    k: Tensor | None  # of all heads, to be followed; None if it is followed already
    more: dict[str, Tensor]

    def kind(self) -> tuple:
        """What calls have in common that can be accounted for at once."""
        call, place = self.call, self.place
        return (
            (call.q.shape, call.k.shape, call.q.dtype, call.k.dtype, self.row.dtype, call.q.device),
            (call.scale, call.softcap, key_of(call.mask), None if call.sinks is None else call.sinks.shape),
            (place.row, place.first_key, place.query_position, place.cell, id(place.repeats)),
            (self.k is None, tuple(self.more)),
        )


def is_plain(call: Call) -> bool:
    """Whether a call is softmax of scores alone, with sinks perhaps."""
    if call.bias is not None or call.lost is not None or not call.normalizer.is_softmax:
        return False
    return call.sinks is None or call.sinks.dim() == 1


def by_kernels(call: Call) -> bool:
    """Whether the lens's kernels do a call, and others of its kind along its batch."""
    if not call.q.is_cuda or call.sinks is not None or not gpu_plan.can(call):
        return False
    return (call.mask is None or call.mask.is_positional) and not is_small(8 * cells_of(call))


def by_whole_maps(call: Call, count: int) -> bool:
    """Whether the kernel in C does so many calls at once, one map after the other."""
    return call.device.type == "cpu" and (call.mask is None or call.mask.is_positional) and whole_maps.can(call, count)


def fits(call: Call, device: torch.device) -> bool:
    """Whether a call is so small that it waits for others."""
    cells, most = cells_of(call), CELLS.get(device.type)
    if most is None or not cells:
        return False
    if cells <= most[0] and is_small(cells):
        return True
    if cells <= _WHOLE[0] and by_whole_maps(call, most[1] // most[0]):
        return True
    return call.q.nbytes + call.k.nbytes <= _BYTES and by_kernels(call)


def account_of(group: list[Waiting], wanted: Wanted) -> list[dict[str, Tensor]]:
    """The account of each of some calls that are alike."""
    first, count = group[0], len(group)
    if count == 1:
        return [account(first.call, first.row, wanted, first.place)]
    s, place, kernels = first.call.sizes, first.place, by_kernels(first.call)
    put = torch.cat if kernels else torch.stack
    q, k = (put([getattr(one.call, name) for one in group]) for name in ("q", "k"))
    batch = (count * s.batch[0],) if kernels else (count, *s.batch)
    sinks = stacked_sinks([one.call for one in group])
    call = first.call.replace(q=q, k=k, v=k, sizes=s._replace(batch=batch), sinks=sinks)
    if kernels and place.repeats is not None:
        place = replace(place, repeats=place.repeats.along(s.batch[0], count))
    found = account(call, put([one.row for one in group]), wanted, place)
    if kernels:
        found = {name: x.unflatten(0, (count, -1)) for name, x in found.items()}
        return [{name: x[i] for name, x in found.items()} for i in range(count)]
    return split(found, count)


def may_wait(mask: Mask | None) -> bool:
    """Whether a mask is a rule or a table that can be copied: a function may give something else later."""
    return mask is None or mask.is_positional or mask.is_plain


def key_of(mask: Mask | None) -> object:
    """Something that equal masks share."""
    return mask if mask is None or mask.is_positional else id(mask)


def alike(waiting: list) -> Iterator[list]:
    """Those of one kind together, as many as may be accounted for at once."""
    groups: dict[tuple, list] = {}
    for one in waiting:
        groups.setdefault(one.kind(), []).append(one)
    for group in groups.values():
        first = group[0]
        if isinstance(first, Block):
            s, device = first.call.sizes._replace(keys=first.end_key - first.first_key), first.k.device
            rows = len(first.steps)
        else:
            s, device = first.call.sizes, first.call.q.device
            rows = s.queries
        # Their maps, or the keys themselves in the precision of the account.
        cells = math.prod(s.batch) * s.keys * max(s.heads * rows, s.kv_heads * s.dim)
        most = CELLS[device.type][1]
        if not isinstance(first, Block) and by_whole_maps(first.call, len(group)):
            most = _WHOLE[1]
        size = max(most // max(cells, 1), 1)
        if not isinstance(first, Block) and by_kernels(first.call):
            size = len(group)
        for start in range(0, len(group), size):
            yield group[start : start + size]


def split(found: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """What was found of several layers at once, for each of them; what is of queries alone is the same for all."""
    return [{n: x if n in ("real", "repeated") else x[i] for n, x in found.items()} for i in range(count)]


def apart(x: Tensor, count: int, dim: int) -> Tensor:
    """Layers one after another along an axis, as an axis of their own in front."""
    return x.unflatten(dim, (count, -1)).movedim(dim - 1, 0).contiguous()


def stacked_sinks(calls: list[Call]) -> Tensor | None:
    """The sinks of several layers, `[layers, 1, heads]`."""
    sinks = [call.sinks for call in calls if call.sinks is not None]
    return torch.stack(sinks)[:, None] if sinks else None


class aside:
    """Out of the model's sight: no gradients, no inference mode, no mode of torch that would see what happens here.

    Each of them costs something, also where it changes nothing: then it is left out.
    """

    def __enter__(self) -> None:
        self.stack: list[Any] = [torch._C.DisableTorchFunction()]
        if torch.is_inference_mode_enabled():
            self.stack.append(torch.inference_mode(False))
        if torch.is_grad_enabled() or len(self.stack) > 1:
            self.stack.append(torch.no_grad())
        for one in self.stack:
            one.__enter__()

    def __exit__(self, *error: object) -> None:
        for one in reversed(self.stack):
            one.__exit__(*error)
