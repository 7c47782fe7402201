"""Attention over a sequence that lies on several ranks: keys and values go around a ring, queries stay.

Every rank does its queries against the keys that are with it, by the kernel that would do that call alone, and joins
what it found with what it had: outputs weighted by what their keys have of the row's sum. So no rank ever holds more
than two parts of the keys. Backwards the keys go around once more, and the gradients of keys and values with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends import cpu_bands, passes
from sightline.backends.derivatives import no_forward, no_second
from sightline.backends.tiles import bias_index, row_numbers
from sightline.lens.levels import Levels
from sightline.lens.rows import output_and_rows
from sightline.parallel import torch_ring
from sightline.parallel.places import Piece, Whole, block

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.parallel.ranks import Ranks


class Layout(NamedTuple):
    """Where everything is: the ranks, the pieces that each holds of the queries and of the keys, and the whole map."""

    ranks: Ranks
    queries: list[list[Piece]]
    keys: list[list[Piece]]
    whole: Whole
    balance: str
    seed: int  # of dropout
    backend: str
    by_torch: bool  # whether its own ring does it

    @property
    def own(self) -> list[Piece]:
        """The pieces of the queries of this rank."""
        return self.queries[self.ranks.rank]

    def length(self, rank: int) -> int:
        """How many keys a rank holds."""
        return sum(piece.length for piece in self.keys[rank])

    def around(self, what: str, tensors: list[Tensor], home: int = 0) -> Iterator[tuple[int, list[Tensor]]]:
        """Tensors `[…, keys, …]` of each rank in turn, with its number; the last `home` are passed on once more.

        They are the receiver's own: what it adds to them goes on with them. The axis of the keys is the last but one.
        """
        size, steps = self.ranks.size, self.ranks.size - (not home)
        for step in range(size):
            source = self.ranks.source(step)
            yield source, tensors
            if step < steps:
                going = slice(None) if step < size - 1 else slice(len(tensors) - home, None)
                coming = self.length(self.ranks.source(step + 1))
                shapes = [(*t.shape[:-2], coming, t.shape[-1]) for t in tensors[going]]
                tensors[going] = self.ranks.rotate(f"{what}, step {step + 1} of {steps}", tensors[going], shapes)


class Rows(NamedTuple):
    """The one number for every local row that its weights need, and what that lacks: see `lens.levels`."""

    number: Tensor  # [*batch, heads, queries]
    rest: Tensor


def forward(call: Call, layout: Layout) -> tuple[Tensor, Rows]:
    """The output of the local queries over all keys, before a sink took its share, and their numbers."""
    if layout.by_torch:
        out, number = torch_ring.run(call, layout.ranks, layout.whole, layout.balance)
        return out, Rows(number, torch.zeros_like(number))
    s, dtype = call.sizes, call.compute_dtype
    alone = call.replace(sinks=None)
    shape = (*s.batch, s.heads, s.queries)
    out = torch.zeros(*shape, s.value_dim, dtype=dtype, device=call.device)
    largest = torch.full(shape, -torch.inf, dtype=dtype, device=call.device)
    sums = torch.zeros_like(largest)
    for source, (k, v) in layout.around("keys and values", [call.k.contiguous(), call.v.contiguous()]):
        for rows in layout.own:
            for columns in layout.keys[source]:
                part = block(alone, layout.whole, k, v, rows, columns)
                if part is None:
                    continue
                if not call.normalizer.is_softmax:
                    seen = passes.forward(part, _seed(layout, rows, columns), False)[0]
                    out[..., rows.local, :] += seen.to(dtype)
                    continue
                new, number, rest = _part(part, layout, rows, columns)
                here = rows.local
                join(out[..., here, :], largest[..., here], sums[..., here], new, number, rest)
    out = out.to(call.q.dtype)
    if not call.normalizer.is_softmax:
        counts = [_counts(call, layout.whole, rows) for rows in layout.own]
        number = torch.cat([count.expand(*shape[:-1], count.shape[-1]) for count in counts], -1)
        return out, Rows(number, torch.zeros_like(number))
    number = torch.where(sums > 0, largest + sums.log(), largest)
    rest = torch.where(sums > 0, largest - number + sums.log(), 0.0)
    needed = (number.abs() > _exact(call)) & number.isfinite() & rest.isfinite()
    return out, Rows(number, torch.where(needed, rest, 0.0))


def _exact(call: Call) -> float:
    """Up to this size a number is exact enough as it is."""
    return 0.0 if call.q.dtype in (torch.float16, torch.bfloat16) else Levels(call, call.q).limit


def _counts(call: Call, whole: Whole, rows: Piece) -> Tensor:
    """How many keys of all ranks each query sees."""
    part = call.replace(sizes=call.sizes._replace(queries=rows.length), mask=None)
    every = Piece(slice(0, whole.keys), 0)
    # Of keys only their number matters; this rank may hold none.
    wide = call.k.new_zeros(()).expand(*call.k.shape[:-2], whole.keys, call.k.shape[-1])
    seen = block(part, whole._replace(bias=None), wide, wide, rows, every)
    if seen is None:
        return torch.zeros(rows.length, dtype=call.compute_dtype, device=call.device)
    return row_numbers(seen)


def _part(part: Call, layout: Layout, rows: Piece, columns: Piece) -> tuple[Tensor, Tensor, Tensor]:
    """The output of a block by itself, its numbers, and what these lack."""
    if part.dropout:
        out, number = passes.forward(part, _seed(layout, rows, columns), False)
    else:
        out, number = output_and_rows(part, layout.backend)
    levels = Levels(part, number)
    rest = levels.rest(slice(0, part.sizes.queries)) if levels.any() else torch.zeros_like(number)
    return out, number, rest


def join(out: Tensor, largest: Tensor, sums: Tensor, new: Tensor, number: Tensor, rest: Tensor | None) -> None:
    """Join a block with what was there, in place. A row that saw nothing has the number -inf and the sum 0."""
    level = torch.maximum(largest, number)
    # -inf - -inf is NaN.
    base = level.masked_fill(level == -torch.inf, 0.0)
    before = sums * (largest - base).exp()
    added = (number - base if rest is None else number - base + rest).exp()
    total = before + added
    some = total.masked_fill(total == 0, 1.0)
    # Outputs are large: half precision is read as it is, and nothing of their size is made.
    out.mul_((before / some)[..., None]).addcmul_(new, (added / some)[..., None])
    sums.copy_(total)
    largest.copy_(level)


def _seed(layout: Layout, rows: Piece, columns: Piece) -> int:
    """Of every block its own, the same forwards and backwards."""
    return (layout.seed + rows.start * (layout.whole.keys + 1) + columns.start) % 2**62


class Attention(torch.autograd.Function):
    """The local output, and the rows of the keys alone; the gradients of q, k, v, bias and sinks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, call: Call, layout: Layout
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, rows = forward(call, layout)
        total = rows.number
        if sinks is not None:
            out, total = cpu_bands.with_sinks(sinks, out, rows.number)
        ctx.call, ctx.layout = call.replace(q=None, k=None, v=None, sinks=None, bias=None), layout
        ctx.save_for_backward(q, k, v, bias, sinks, out, total)
        ctx.mark_non_differentiable(rows.number, rows.rest)
        return out, rows.number, rows.rest

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple:
        q, k, v, bias, sinks, out, row = ctx.saved_tensors
        layout: Layout = ctx.layout
        wants_bias = bias is not None and ctx.needs_input_grad[3]
        whole = layout.whole if bias is None else layout.whole._replace(bias=bias.detach())
        call = ctx.call.replace(q=q, k=k, v=v)
        return (*_Backward.apply(grad, q, k, v, bias, sinks, out, row, call, layout, whole, wants_bias), None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        no_forward("sl.parallel.attention")


class _Backward(torch.autograd.Function):
    """The backward pass as a function of its own, which refuses a gradient of itself in words."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        out: Tensor,
        row: Tensor,
        call: Call,
        layout: Layout,
        whole: Whole,
        wants_bias: bool,
    ) -> tuple:
        dtype = call.compute_dtype
        grad_q = torch.zeros(q.shape, dtype=dtype, device=q.device)
        grad_bias = torch.zeros_like(bias, dtype=dtype) if wants_bias and bias is not None else None
        sent = [k.contiguous(), v.contiguous(), *(torch.zeros(t.shape, dtype=dtype, device=q.device) for t in (k, v))]
        around = layout.around("gradients, keys and values", sent, home=2)
        for source, (keys, values, grad_k, grad_v) in around:
            for rows in layout.own:
                for columns in layout.keys[source]:
                    part = block(call, whole, keys, values, rows, columns)
                    if part is None:
                        continue
                    here = rows.local
                    found = passes.backward(
                        part,
                        _seed(layout, rows, columns),
                        cpu_bands.can(part),
                        grad[..., here, :],
                        out[..., here, :],
                        row[..., here],
                        grad_bias is not None,
                        is_part=True,
                    )
                    grad_q[..., here, :] += found[0]
                    grad_k[..., columns.local, :] += found[1]
                    grad_v[..., columns.local, :] += found[2]
                    if grad_bias is not None and found[3] is not None:
                        span = slice(columns.start, columns.start + columns.length)
                        index = bias_index(grad_bias, slice(rows.start, rows.start + rows.length), span)
                        grad_bias[index] += found[3]
        grad_sinks = None
        if sinks is not None:
            delta = (grad.to(dtype) * out.to(dtype)).sum(-1)
            share = (sinks[..., None].to(dtype) - row.masked_fill(row == -torch.inf, 0.0)).exp()
            grad_sinks = -(share * delta).sum(-1).sum_to_size(sinks.shape)
            grad_sinks = layout.ranks.reduced("gradients of the sinks", grad_sinks, torch.add).to(sinks.dtype)
        if grad_bias is not None and bias is not None:
            grad_bias = layout.ranks.reduced("gradients of the bias", grad_bias, torch.add).to(bias.dtype)
        grad_k, grad_v = sent[2], sent[3]
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias, grad_sinks

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        no_second("sl.parallel.attention")
