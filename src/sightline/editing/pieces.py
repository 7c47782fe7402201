"""Cuts by the plain kernel: what is left of a row's keys is done piece by piece, and joined by the pieces' lse.

Rows that see nothing of what is cut are left as they are; the others are done some heads at a time (`editing/rows.py`).
A cut by a rule is one piece, and the rule stays a rule. Memory is linear in the context, forwards and backwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends.nonfinite import transformed
from sightline.editing.cells import Picked, Uncut
from sightline.editing.rows import CutRows, Recipe

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.editing.maps import Block
    from sightline.editing.plan import Act
    from sightline.masks import Mask
    from sightline.watching.intercept.looked import Attended

# Cells of the touched rows from which on pieces are faster than their map, and more pieces than are worth a call each.
SMALL, MOST = 1 << 20, 64
# What some heads are added up in, in float32: as many are done at once.
BYTES = 1 << 27


class Cut(NamedTuple):
    """Rows of some heads from which the same is cut."""

    members: list[int]
    heads: list[int]
    rows: slice
    runs: list[slice]  # the keys that are left
    mask: Mask | None  # of the whole call, for these members and heads
    touched: Tensor | None = None  # `[members, heads, rows]`: which rows are meant, where that is not all of them


def cut(block: Block, attended: Attended, row: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
    """The output of a call, and the lse of its keys if that is given, with the rows of a block done again.

    None if the edits of the block are others than cuts, or are sooner done on their map.
    """
    cuts = plan(block)
    if cuts is None:
        return None
    call, given, fresh = block.call, attended.out, attended.fresh
    if given is None and (left := _left(cuts, call)) is not None:
        cuts, given = cuts + left, _empty(call)
    out = attended.given if given is None else given
    learns = torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in (out, call.q, call.k, call.v, call.sinks)
    )
    if learns or transformed() or not fresh:
        out = out.clone()  # gradients flow through what is written into it
    row = None if row is None else row.clone()
    parts = cuts if learns else [part for one in cuts for part in _divided(one, call)]
    coarse = [_put(one, call, out, row, None if learns else False) for one in parts]
    # All is on its way before anybody waits for a GPU's answer.
    if not learns and coarse and bool(torch.stack(coarse).any()):
        for one, is_coarse in zip(parts, coarse, strict=True):
            if bool(is_coarse):
                _put(one, call, out, row, True)
    return out, row


def _left(cuts: list[Cut], call: Call) -> list[Cut] | None:
    """The rows above those of some cuts, if these take the lower half or more of all heads.

    The model's own kernel need not run then: what it gave of all rows would be thrown away but for these.
    """
    s = call.sizes
    every = sum(len(one.members) * len(one.heads) for one in cuts) == math.prod(s.batch) * s.heads
    if not every or any(
        one.touched is not None or one.rows.stop < s.queries or one.rows.start > s.queries // 2 for one in cuts
    ):
        return None
    return [one._replace(rows=slice(0, one.rows.start), runs=[slice(0, s.keys)]) for one in cuts if one.rows.start]


def _empty(call: Call) -> Tensor:
    """Memory for an output; its axes lie there as those of the queries do, as torch's kernels have it."""
    s, q = call.sizes, call.q
    return torch.empty_like(q if s.value_dim == s.dim else q[..., :1].expand(*q.shape[:-1], s.value_dim))


def _put(one: Cut, call: Call, out: Tensor, row: Tensor | None, measured: bool | None) -> Tensor:
    """Do the rows of a cut, and put them where they belong; whether some lse was too coarse to join pieces by."""
    part = _selected(call, one)
    bare = part.replace(q=None, k=None, v=None, sinks=None)
    recipe = Recipe(bare, one.rows, one.runs, one.mask, call.sizes.queries, measured)
    with torch.autocast(call.device.type, enabled=False):
        new, lse, coarse = CutRows.apply(part.q, part.k, part.v, part.sinks, recipe)
    at = _index(one, call)
    if one.touched is not None:
        marks = one.touched.to(call.device)
        new = torch.where(marks[..., None], new.to(out.dtype), out[at])
        lse = lse if row is None else torch.where(marks, lse.to(row.dtype), row[at])
    out[at] = new.to(out.dtype)
    if row is not None:
        row[at] = lse.to(row.dtype)
    return coarse


def _divided(one: Cut, call: Call) -> Iterator[Cut]:
    """The same, so many members and heads at a time that what they are added up in fits into memory."""
    members, heads, groups = len(one.members), len(one.heads), call.sizes.groups
    count = max(1, BYTES // max(1, (one.rows.stop - one.rows.start) * call.sizes.value_dim * 4))
    if count >= heads:
        width, height = heads, min(members, count // heads)
    else:
        # Heads that share keys stay together, or are divided evenly.
        width, height = count - count % groups if count >= groups else _divisor(groups, count), 1
    for i in range(0, members, height):
        for j in range(0, heads, width):
            yield _part(one, slice(i, min(i + height, members)), slice(j, min(j + width, heads)))


def _divisor(number: int, most: int) -> int:
    return next(n for n in range(most, 0, -1) if number % n == 0)


def _part(one: Cut, members: slice, heads: slice) -> Cut:
    """Some members and heads of a cut."""
    if (members, heads) == (slice(0, len(one.members)), slice(0, len(one.heads))):
        return one
    mask = one.mask
    if mask is not None and not mask.is_positional:
        mask = Picked.of(mask, *(list(range(some.start, some.stop)) for some in (members, heads)))
    touched = None if one.touched is None else one.touched[members, heads]
    return one._replace(members=one.members[members], heads=one.heads[heads], mask=mask, touched=touched)


def plan(block: Block) -> list[Cut] | None:
    """The rows of a block by what is cut from them."""
    call, acts = block.call, block.acts
    members, heads, rows = block.shape
    if (
        any(act.step != "cut" or not act.edit.options.get("renormalize", True) for act in acts)
        or not call.normalizer.is_softmax
        or call.bias is not None
        or call.dropout
        or members * heads * rows * call.sizes.keys <= SMALL
    ):
        return None
    if all(act.edit.options.get("mask") is None for act in acts):
        cuts = list(_rectangles(block))
        if sum(max(1, len(one.runs)) for one in cuts) <= MOST:
            return cuts
    return [_by_rule(block)]


def _rectangles(block: Block) -> Iterator[Cut]:
    call, acts = block.call, block.acts
    s = call.sizes
    marks = torch.stack([act.rows for act in acts])
    changes = (marks[:, 1:] != marks[:, :-1]).any(0).nonzero().flatten() + 1
    edges = [0, *changes.tolist(), s.queries]
    for start, stop in pairwise(edges):
        here = [act for act in acts if act.rows[start]]
        for members, mine in _alike(block.members.tolist(), here, "examples"):
            for heads, both in _alike(block.heads.tolist(), mine, "heads"):
                if not both:
                    continue
                gone = torch.stack([act.columns for act in both]).any(0)
                rows = _reached(call, slice(start, stop), gone)
                if rows.start < rows.stop:
                    yield Cut(members, heads, rows, _runs(~gone), _mask(call, members, heads))


def _alike(numbers: list[int], acts: list[Act], axis: str) -> Iterator[tuple[list[int], list[Act]]]:
    """Members or heads by the acts that are about them."""

    def told(number: int) -> tuple[bool, ...]:
        return tuple(bool(getattr(act, axis)[number]) for act in acts)

    for which, some in groupby(sorted(numbers, key=told), told):
        yield sorted(some), [act for act, on in zip(acts, which, strict=True) if on]


def _reached(call: Call, rows: slice, gone: Tensor) -> slice:
    """Those of some rows that may see a key that is gone: a band hides it from all others."""
    places = gone.nonzero().flatten()
    if not len(places):
        return slice(0, 0)
    start, stop, first, last = rows.start, rows.stop, int(places[0]), int(places[-1])
    for rule in () if call.mask is None else call.mask.conjuncts():
        if rule.band is not None:
            offset = rule.band.offset(call.sizes.queries, call.sizes.keys)
            left, right = rule.band.limits(call.sizes.queries, call.sizes.keys)
            start = start if right is None else max(start, first - right - offset)
            stop = stop if left is None else min(stop, last + left - offset + 1)
    return slice(start, max(start, stop))


def _by_rule(block: Block) -> Cut:
    """All that a block touches as one piece, under a mask that leaves out what is cut."""
    call = block.call
    members, heads = block.members.tolist(), block.heads.tolist()
    rows = slice(int(block.rows[0]), int(block.rows[-1]) + 1)
    mask = _mask(call, members, heads)
    for act in block.acts:
        left = Picked.of(Uncut.of(act, call.device), members, heads)
        mask = left if mask is None else mask & left
    touched = torch.zeros(len(members), len(heads), rows.stop - rows.start, dtype=torch.bool)
    touched[..., block.rows - rows.start] = block.touched(block.acts).cpu()
    return Cut(members, heads, rows, [slice(0, call.sizes.keys)], mask, touched)


def _mask(call: Call, members: list[int], heads: list[int]) -> Mask | None:
    mask, whole = call.mask, (len(members), len(heads)) == (call.sizes.batch[0], call.sizes.heads)
    return mask if mask is None or whole or mask.is_positional else Picked.of(mask, members, heads)


def _selected(call: Call, one: Cut) -> Call:
    """The call of the rows of a cut, over all keys."""
    s, groups = call.sizes, call.sizes.groups
    members, heads = _axis(one.members), _axis(one.heads)
    key_heads: Any = [head // groups for head in one.heads]
    used = sorted(set(key_heads))
    if [head for head in used for _ in range(len(key_heads) // len(used))] == key_heads:
        key_heads = used  # as many heads of each: they share keys as they did
    q = call.q[members][:, heads, one.rows]
    k, v = (t[members][:, _axis(key_heads)] for t in (call.k, call.v))
    sinks = call.sinks
    if sinks is not None:
        sinks = sinks.expand(s.batch[0], s.heads) if sinks.dim() < 2 else sinks.reshape(-1, s.heads)
        sinks = sinks.expand(s.batch[0], s.heads)[members][:, heads]
    sizes = s._replace(
        batch=(len(one.members),), heads=len(one.heads), kv_heads=k.shape[1], queries=one.rows.stop - one.rows.start
    )
    return call.replace(q=q, k=k, v=v, sinks=sinks, mask=None, sizes=sizes)


def _axis(numbers: list[int]) -> Any:
    """An index that copies nothing where it need not."""
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return torch.tensor(numbers)


def _index(one: Cut, call: Call) -> tuple[Any, Any, Any]:
    """Where the rows of a cut are in a tensor of the call: slices, if these can say it."""
    members, heads = _axis(one.members), _axis(one.heads)
    if isinstance(members, slice) and isinstance(heads, slice):
        return members, heads, one.rows
    rows = torch.arange(one.rows.start, one.rows.stop, device=call.device)
    both = (torch.tensor(x, device=call.device) for x in (one.members, one.heads))
    return next(both).view(-1, 1, 1), next(both).view(1, -1, 1), rows.view(1, 1, -1)


def _runs(left: Tensor) -> list[slice]:
    """Stretches of what is marked."""
    steps = torch.diff(left.to(torch.int8), prepend=left.new_zeros(1).to(torch.int8))
    edges = steps.nonzero().flatten().tolist() + ([len(left)] if len(left) and left[-1] else [])
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
