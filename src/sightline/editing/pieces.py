"""Cuts by the plain kernel: what is left of a row's keys is done piece by piece, and joined by the pieces' lse.

A rectangle that is cut leaves rectangles. Where a causal mask crosses one of these, it is cut once more, so that every
piece is all visible, or a square under its diagonal: what torch's own kernel does at its best. With `x` cut, and the
pieces of rows 3 to 7 numbered:

```
 row 3   1 x x 2
 row 4   1 x x 2 2
 row 5   1 x x 2 2 2
 row 6   1 x x 2 2 2 2
```

Rows that see nothing of what is cut are left as they are. A cut by a rule is one piece, and the rule stays a rule.
Memory is linear in the context, forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends import cpu_bands, passes
from sightline.backends.derivatives import no_forward, no_second
from sightline.backends.nonfinite import transformed
from sightline.editing.cells import Picked, Uncut
from sightline.lens.levels import Levels
from sightline.lens.rows import output_and_rows
from sightline.parallel.places import Piece, Whole
from sightline.parallel.places import block as piece_of
from sightline.parallel.ring import join

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.editing.maps import Block
    from sightline.editing.plan import Act
    from sightline.masks import Mask

# Cells of the touched rows from which on pieces are faster than their map, and more pieces than are worth a call each.
SMALL, MOST = 1 << 20, 64
# What some heads are added up in, in float32: as many are done at once.
BYTES = 1 << 27
# Beyond these an lse is too coarse to join pieces by: what it lacks is measured.
_COARSE = {torch.float64: 1e5, torch.float32: 64.0}
_COARSE_IN_HALF = 4096.0


class Cut(NamedTuple):
    """Rows of some heads from which the same is cut."""

    members: list[int]
    heads: list[int]
    rows: slice
    runs: list[slice]  # the keys that are left
    mask: Mask | None  # of the whole call, for these members and heads
    touched: Tensor | None = None  # `[members, heads, rows]`: which rows are meant, where that is not all of them


def cut(block: Block, out: Tensor, row: Tensor | None, fresh: bool = False) -> tuple[Tensor, Tensor | None] | None:
    """The output of a call, and the lse of its keys if that is given, with the rows of a block done again.

    None if the edits of the block are others than cuts, or are sooner done on their map. `fresh`: the output is
    nobody else's, and may be written into.
    """
    cuts = plan(block)
    if cuts is None:
        return None
    call = block.call
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


def _put(one: Cut, call: Call, out: Tensor, row: Tensor | None, measured: bool | None) -> Tensor:
    """Do the rows of a cut, and put them where they belong; whether some lse was too coarse to join pieces by."""
    part = _selected(call, one)
    recipe = _Recipe(part.replace(q=None, k=None, v=None, sinks=None), one, call.sizes.queries, measured)
    with torch.autocast(call.device.type, enabled=False):
        new, lse, coarse = _Cut.apply(part.q, part.k, part.v, part.sinks, recipe)
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


class _Recipe(NamedTuple):
    """All of a part of a call but its tensors."""

    call: Call
    cut: Cut
    queries: int  # of the whole call
    measured: bool | None  # whether what each lse lacks is measured; None: where one is coarse

    def pieces(self) -> Iterator[tuple[Piece, Piece]]:
        """Rows and keys that one call of the kernel takes."""
        rows, keys, band = self.cut.rows, self.call.sizes.keys, None if self.cut.mask is None else self.cut.mask.band
        offset = None
        if band is not None and band.right == 0 and band.left is None:
            offset = band.offset(self.queries, keys)
        for run in self.cut.runs:
            for some, columns in [(rows, run)] if offset is None else _under_diagonal(rows, run, offset):
                if some.start < some.stop and columns.start < columns.stop:
                    local = slice(some.start - rows.start, some.stop - rows.start)
                    yield Piece(local, some.start), Piece(columns, columns.start)

    def parts(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[Call, slice, slice]]:
        """The same as calls, with their local rows and their keys; those that see nothing are left out."""
        whole, call = Whole(self.queries, self.call.sizes.keys, self.cut.mask, None), self.call.replace(q=q)
        for rows, columns in self.pieces():
            part = piece_of(call, whole, k, v, rows, columns)
            if part is not None:
                yield part, rows.local, columns.local


def _under_diagonal(rows: slice, run: slice, offset: int) -> list[tuple[slice, slice]]:
    """A rectangle of a causal map as pieces that are all visible, or squares under the diagonal.

    >>> [(f"{r.start}-{r.stop}", f"{c.start}-{c.stop}") for r, c in _under_diagonal(slice(3, 7), slice(0, 5), 0)]
    [('3-7', '0-3'), ('3-5', '3-5'), ('5-7', '3-5')]
    """
    first, stop = rows.start + offset, rows.stop + offset
    at = min(max(run.start, first), run.stop)  # here the diagonal enters
    end = max(at, min(run.stop, stop))  # and here it leaves
    return [
        (rows, slice(run.start, at)),
        (slice(at - offset, end - offset), slice(at, end)),
        (slice(max(end - offset, rows.start), rows.stop), slice(at, end)),
    ]


def _number(part: Call, measured: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The output of a piece, its lse, and what that lacks, if that is to be measured."""
    out, number = output_and_rows(part, "auto")
    if not measured:
        return out, number, None
    levels = Levels(part, number)
    return out, number, levels.rest(slice(0, part.sizes.queries)) if levels.any() else None


def _coarse(number: Tensor, dtype: torch.dtype) -> Tensor:
    return (number.abs() > _COARSE.get(dtype, _COARSE_IN_HALF)) & number.isfinite()


def _added(q: Tensor, k: Tensor, v: Tensor, recipe: _Recipe, measured: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The pieces of some rows joined: the output, the largest lse of a piece, and the sum that belongs to it."""
    s, dtype = recipe.call.sizes, recipe.call.replace(q=q).compute_dtype
    shape = (*s.batch, s.heads, s.queries)
    found: tuple[Tensor, Tensor, Tensor] | None = None
    parts = list(recipe.parts(q, k, v))
    for part, rows, _ in parts:
        new, number, rest = _number(part, measured)
        if found is None and rows == slice(0, s.queries):
            seen = (number != -torch.inf).to(dtype)
            new = new if len(parts) == 1 else new.to(dtype)
            found = new, number.to(dtype), seen if rest is None else seen * rest.exp()
        else:
            if found is None:
                largest = torch.full(shape, -torch.inf, dtype=dtype, device=q.device)
                out = torch.zeros(*shape, s.value_dim, dtype=dtype, device=q.device)
                found = out, largest, torch.zeros_like(largest)
            out, largest, sums = found
            join(out[..., rows, :], largest[..., rows], sums[..., rows], new, number, rest)
        del new  # which is large: it gives way to the next
    if found is None:
        nothing = torch.full(shape, -torch.inf, dtype=dtype, device=q.device)
        return q.new_zeros(*shape, s.value_dim), nothing, torch.zeros_like(nothing)
    return found


class _Cut(torch.autograd.Function):
    """Some rows over the keys that are left to them: the output, and the lse of these keys."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, recipe: _Recipe
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, largest, sums = _added(q, k, v, recipe, bool(recipe.measured))
        # A piece whose lse is far below the largest one has no part in a row, however coarse it is.
        coarse = _coarse(largest, q.dtype).any()
        if recipe.measured is None and bool(coarse):
            out, largest, sums = _added(q, k, v, recipe, True)
        number = total = torch.where(sums > 0, largest + sums.log(), largest)
        if sinks is not None:
            out, total = cpu_bands.with_sinks(sinks, out.to(number.dtype), number)
        out = out.to(q.dtype)
        ctx.recipe = recipe
        ctx.save_for_backward(q, k, v, sinks, out, total)
        ctx.mark_non_differentiable(number, coarse)
        return out, number, coarse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple:
        return (*_CutBackward.apply(grad, *ctx.saved_tensors, ctx.recipe), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        no_forward("an edit of long rows")


class _CutBackward(torch.autograd.Function):
    """The backward pass as a function of its own, which refuses a gradient of itself in words."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        out: Tensor,
        total: Tensor,
        recipe: _Recipe,
    ) -> tuple:
        dtype = recipe.call.replace(q=q).compute_dtype
        grads = [torch.zeros_like(t, dtype=dtype) for t in (q, k, v)]
        for part, rows, columns in recipe.parts(q, k, v):
            some = (grad[..., rows, :], out[..., rows, :], total[..., rows])
            found = passes.backward(part, 0, cpu_bands.can(part), *some, False)[:3]
            for whole, span, new in zip(grads, (rows, columns, columns), found, strict=True):
                whole[..., span, :] += new
        grad_sinks = None
        if sinks is not None:
            delta = (grad.to(dtype) * out.to(dtype)).sum(-1)
            share = (sinks[..., None].to(dtype) - total.masked_fill(total == -torch.inf, 0.0)).exp()
            grad_sinks = -(share * delta).sum(-1).to(sinks.dtype)
        return *(g.to(t.dtype) for g, t in zip(grads, (q, k, v))), grad_sinks

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        no_second("an edit of long rows")
