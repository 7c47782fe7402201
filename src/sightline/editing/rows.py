"""Some rows over the keys that are left to them, by the plain kernel: pieces, joined by their lse.

A rectangle that is cut leaves rectangles. Where a causal mask crosses one of these, it is cut once more, so that every
piece is all visible, or a square under its diagonal: what torch's own kernel does at its best. With `x` cut, and the
pieces of rows 3 to 7 numbered:

```
 row 3   1 x x 2
 row 4   1 x x 2 2
 row 5   1 x x 2 2 2
 row 6   1 x x 2 2 2 2
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends import cpu_bands, passes
from sightline.backends.derivatives import no_forward, no_second
from sightline.lens.levels import Levels
from sightline.lens.rows import output_and_rows
from sightline.parallel.places import Piece, Whole
from sightline.parallel.places import block as piece_of
from sightline.parallel.ring import join

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.masks import Mask

# Beyond these an lse is too coarse to join pieces by: what it lacks is measured.
_COARSE = {torch.float64: 1e5, torch.float32: 64.0}
_COARSE_IN_HALF = 4096.0


class Recipe(NamedTuple):
    """All of a part of a call but its tensors."""

    call: Call
    rows: slice  # of the whole call
    runs: list[slice]  # the keys that are left
    mask: Mask | None
    queries: int  # of the whole call
    measured: bool | None  # whether what each lse lacks is measured; None: where one is coarse

    def pieces(self) -> Iterator[tuple[Piece, Piece]]:
        """Rows and keys that one call of the kernel takes."""
        rows, keys, band = self.rows, self.call.sizes.keys, None if self.mask is None else self.mask.band
        offset = None
        if band is not None and band.right == 0 and band.left is None:
            offset = band.offset(self.queries, keys)
        for run in self.runs:
            for some, columns in [(rows, run)] if offset is None else _under_diagonal(rows, run, offset):
                if some.start < some.stop and columns.start < columns.stop:
                    local = slice(some.start - rows.start, some.stop - rows.start)
                    yield Piece(local, some.start), Piece(columns, columns.start)

    def parts(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[Call, slice, slice]]:
        """The same as calls, with their local rows and their keys; those that see nothing are left out."""
        whole, call = Whole(self.queries, self.call.sizes.keys, self.mask, None), self.call.replace(q=q)
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


def _added(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, measured: bool) -> tuple[Tensor, Tensor, Tensor]:
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


class CutRows(torch.autograd.Function):
    """Some rows over the keys that are left to them: the output, and the lse of these keys."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, recipe: Recipe
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
        return (*_Backward.apply(grad, *ctx.saved_tensors, ctx.recipe), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        no_forward("an edit of long rows")


class _Backward(torch.autograd.Function):
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
        recipe: Recipe,
    ) -> tuple:
        dtype = recipe.call.replace(q=q).compute_dtype
        grads = [torch.zeros_like(t, dtype=dtype) for t in (q, k, v)]
        for part, rows, columns in recipe.parts(q, k, v):
            some = (grad[..., rows, :], out[..., rows, :], total[..., rows])
            found = passes.backward(part, 0, cpu_bands.can(part), *some, False, is_part=True)[:3]
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
