"""The two passes of the streaming backend over the tiles of a call: its output, and the gradients of its tensors.

Where torch's fused kernel can do a band, it does (`fused`); else the tiles are plain torch operations, below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.backends import cpu_bands
from sightline.backends.nonfinite import finite, spoiled, unreadable
from sightline.backends.tiles import Tile, bias_index, fold, row_numbers, scaled_rows, score_tile, unfold, visit

if TYPE_CHECKING:
    from sightline.backends.call import Call

# Beyond this a row's number, rounded, no longer says closely enough what its weights sum to.
COARSE = {torch.float32: 1e3, torch.float64: 1e9}
# Scores of one step over all heads: 4 MiB in float32, so that a tile stays in the cache.
_CELLS = 1 << 20


def forward(call: Call, seed: int, use_fused: bool) -> tuple[Tensor, Tensor]:
    """The output, and the one number per row that its weights need; dropout is drawn from the seed."""
    if use_fused:
        both = cpu_bands.forward(call)
        if not spoiled(call, both[0]):
            return both
    return _forward(call, seed)


def backward(
    call: Call,
    seed: int,
    use_fused: bool,
    grad: Tensor,
    out: Tensor,
    row: Tensor,
    wants_bias: bool,
    *,
    is_part: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k, v, a dense bias and the sinks, from that of the output and what the forward pass gave.

    `is_part`: the rows have other keys beside those of this call, and their numbers are of all of them.
    """
    bias, sinks = call.bias if isinstance(call.bias, Tensor) else None, call.sinks
    grad_bias = torch.zeros_like(bias, dtype=call.compute_dtype) if wants_bias and bias is not None else None
    grads, rest = None, None if is_part else _rest(call, row)
    if use_fused and grad_bias is None and rest is None and _all_finite(grad, out):
        grads = cpu_bands.backward(call, grad, out, row)
        if call.mask is not None and not _all_finite(*grads):
            grads = None  # 0 * NaN is NaN: what is hidden has reached others
    if grads is None:
        grads = _backward(call, seed, grad, out, row, grad_bias, rest)
    grad_sinks = None
    if sinks is not None:
        delta = (grad.to(row.dtype) * out.to(row.dtype)).sum(-1)
        share = (sinks[..., None].to(row.dtype) - row.masked_fill(row == -torch.inf, 0.0)).exp()
        grad_sinks = -(share * delta).sum(-1).sum_to_size(sinks.shape).to(sinks.dtype)
    grad_bias = None if grad_bias is None or bias is None else grad_bias.to(bias.dtype)
    grad_q, grad_k, grad_v = (g.to(call.q.dtype) for g in grads)
    return grad_q, grad_k, grad_v, grad_bias, grad_sinks


def loses_rows(call: Call, bias: Tensor) -> bool:
    """Whether torch's CPU kernel would get gradients of a call wrong: the lse of some rows says -1e9 and no more."""
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (call.q, call.k, call.v))
    if not learns or not bias.is_cpu or not bias.numel() or unreadable(bias):
        return False
    largest = bias.detach().amax(-1) if call.mask is None else bias.detach()
    return bool((largest.isfinite() & (largest.abs() > COARSE[call.compute_dtype])).any())


def _rest(call: Call, row: Tensor) -> Tensor | None:
    """What the number of every row lacks, where a row has one so large that rounding takes its digits; else None.

    A bias of -1e9 over a whole row leaves it uniform, and its lse says -1e9: the logarithm of how many keys there are
    is gone. The forward pass had the sum; here it is made once more.
    """
    if not call.normalizer.is_softmax or row.device.type != "cpu" or unreadable(row) or call.bias is None:
        return None
    if not bool((row.isfinite() & (row.abs() > COARSE[row.dtype])).any()):
        return None
    level = row.masked_fill(~row.isfinite(), 0.0)
    sums = torch.zeros_like(row) if call.sinks is None else (call.sinks[..., None].to(row.dtype) - level).exp()
    for rows, columns in visit(call.sizes, call.mask, *_tile_size(call)):
        q_rows = scaled_rows(call, rows)
        for column in columns:
            scores = score_tile(call, q_rows, rows, column).scores
            sums[..., rows] += (scores - level[..., rows, None]).exp().sum(-1)
    return sums.log().masked_fill(sums == 0, 0.0)


def _tile_size(call: Call) -> tuple[int, int]:
    s = call.sizes
    cells = _CELLS // max(1, s.heads * torch.Size(s.batch).numel())
    return (256, 512) if cells >= 1 << 17 else (128, 256) if cells >= 1 << 15 else (64, 64)


def _forward(call: Call, seed: int) -> tuple[Tensor, Tensor]:
    s = call.sizes
    careful = call.mask is not None and not _all_finite(call.v)
    counts = None if call.normalizer.is_softmax else row_numbers(call).expand(*s.batch, s.heads, s.queries)
    shape = (*s.batch, s.heads, s.queries)
    out = torch.empty(*shape, s.value_dim, dtype=call.q.dtype, device=call.device)
    row = torch.empty(shape, dtype=call.compute_dtype, device=call.device) if counts is None else counts.contiguous()
    for rows, columns in visit(s, call.mask, *_tile_size(call)):
        q_rows = scaled_rows(call, rows)
        state = _Running(call, rows) if counts is None else None
        total = torch.zeros(
            *s.batch, s.heads, rows.stop - rows.start, s.value_dim, dtype=call.compute_dtype, device=call.device
        )
        for column in columns:
            tile = score_tile(call, q_rows, rows, column)
            if state is not None:
                shares, shrink = state.add(tile.scores)
                total = total * shrink
            else:
                assert counts is not None
                shares = call.normalizer.weights(tile.scores, counts[..., rows, None], tile.visible)
            if call.dropout:
                shares = shares * _keep(call, seed, rows, column.span, shares.shape)
            total = total + _values(call, shares, tile, column.span, careful)
        if state is not None:
            total = total / state.sums.masked_fill(state.sums == 0, 1.0)[..., None]
            row[..., rows] = state.lse()
        out[..., rows, :] = total
    return out, row


class _Running:
    """The running maximum and sum of a band of rows. It begins with the sink, which has weight and no value."""

    def __init__(self, call: Call, rows: slice) -> None:
        s = call.sizes
        shape = (*s.batch, s.heads, rows.stop - rows.start)
        if call.sinks is None:
            self.largest = torch.full(shape, -torch.inf, dtype=call.compute_dtype, device=call.device)
            self.sums = torch.zeros_like(self.largest)
        else:
            self.largest = call.sinks[..., None].to(call.compute_dtype).expand(shape)
            self.sums = torch.ones_like(self.largest)

    def add(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The tile's shares relative to the new maximum, and the factor for what was summed before."""
        largest = torch.maximum(self.largest, scores.amax(-1))
        # While a row has seen nothing its maximum is -inf, and -inf - -inf is NaN.
        level = largest.masked_fill(largest == -torch.inf, 0.0)
        shares = (scores - level[..., None]).exp()
        shrink = (self.largest - level).exp()
        self.sums = self.sums * shrink + shares.sum(-1)
        self.largest = largest
        return shares, shrink[..., None]

    def lse(self) -> Tensor:
        return self.largest + self.sums.log().masked_fill(self.sums == 0, 0.0)


def _keep(call: Call, seed: int, rows: slice, span: slice, shape: torch.Size) -> Tensor:
    """Which weights dropout keeps, scaled; the same for a tile in the backward pass."""
    tile_seed = (seed + rows.start * (call.sizes.keys + 1) + span.start) % 2**63
    generator = torch.Generator(call.device).manual_seed(tile_seed)
    kept = torch.rand(shape, generator=generator, device=call.device) >= call.dropout
    return kept.to(call.compute_dtype) / (1 - call.dropout)


def _values(call: Call, shares: Tensor, tile: Tile, span: slice, careful: bool) -> Tensor:
    v = call.v[..., span, :].to(call.compute_dtype)
    return unfold(_product(fold(shares, call.sizes), v, _seen(call, tile, shares, careful)), call.sizes)


def _seen(call: Call, tile: Tile, cells: Tensor, careful: bool) -> Tensor | None:
    """Which cells of a tile are visible, folded as the cells are; None if that need not be known."""
    return fold(tile.visible.expand(cells.shape), call.sizes) if careful and tile.visible is not None else None


def _product(cells: Tensor, x: Tensor, seen: Tensor | None) -> Tensor:
    """cells @ x, where a hidden cell takes nothing: 0 * NaN is NaN, so what is not finite is added cell by cell."""
    if seen is None:
        return cells @ x
    bad = ~x.isfinite()
    total = cells @ x.masked_fill(bad, 0.0)
    for j in (bad.any(-1) & seen.any(-2)).flatten(0, -2).any(0).nonzero().flatten().tolist():
        one = x[..., j : j + 1, :]
        part = torch.where(one.isfinite(), 0.0, cells[..., j : j + 1] * one)
        total = total + torch.where(seen[..., j : j + 1], part, 0.0)
    return total


def _backward(
    call: Call,
    seed: int,
    grad: Tensor,
    out: Tensor,
    row: Tensor,
    grad_bias: Tensor | None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    s, dtype = call.sizes, call.compute_dtype
    careful = call.mask is not None and not _all_finite(call.q, call.k, call.v, grad, out)
    grad_q = torch.empty_like(call.q)
    grad_k, grad_v = torch.zeros_like(call.k, dtype=dtype), torch.zeros_like(call.v, dtype=dtype)
    delta = (grad.to(dtype) * out.to(dtype)).sum(-1, keepdim=True)
    for rows, columns in visit(s, call.mask, *_tile_size(call)):
        q_rows, grad_rows = scaled_rows(call, rows), fold(grad[..., rows, :].to(dtype), s)
        number = row[..., rows, None]
        total = torch.zeros_like(q_rows)
        for column in columns:
            tile, span = score_tile(call, q_rows, rows, column), column.span
            if rest is None:
                weights = call.normalizer.weights(tile.scores, number, tile.visible)
            else:  # two subtractions: beside a number of -1e9 the rest would be lost
                near = tile.scores - number.masked_fill(number == -torch.inf, 0.0)
                weights = call.normalizer.weights(near, rest[..., rows, None], tile.visible)
            if careful and tile.visible is not None:
                weights = weights.masked_fill(~tile.visible, 0.0)
            seen = _seen(call, tile, weights, careful)
            seen_by = None if seen is None else seen.mT
            grad_weights = unfold(grad_rows @ call.v[..., span, :].to(dtype).mT, s)
            kept = weights
            if call.dropout:
                keep = _keep(call, seed, rows, span, weights.shape)
                kept, grad_weights = weights * keep, grad_weights * keep
            grad_v[..., span, :] += _product(fold(kept, s).mT, grad_rows, seen_by)
            if call.normalizer.is_softmax:
                # Every score moves the row's sum, and so every weight of the row.
                grad_weights = grad_weights - delta[..., rows, :]
            slope = call.normalizer.slope(weights, tile.scores, number, tile.visible)
            if slope is None:
                continue
            grad_scores = grad_weights * slope
            if tile.visible is not None:
                grad_scores = grad_scores.masked_fill(~tile.visible, 0.0)
            if grad_bias is not None:
                part = grad_bias[bias_index(grad_bias, rows, span)]
                part += grad_scores.sum_to_size(part.shape)
            if tile.capped is not None:
                assert call.softcap is not None
                steepness = 1 - (tile.capped / call.softcap) ** 2
                if tile.visible is not None:
                    steepness = steepness.masked_fill(~tile.visible, 0.0)
                grad_scores = grad_scores * steepness
            folded = fold(grad_scores, s)
            total = total + _product(folded, call.k[..., span, :].to(dtype), seen)
            grad_k[..., span, :] += _product(folded.mT, q_rows, seen_by)
        grad_q[..., rows, :] = unfold(total * call.scale, s)
    return grad_q, grad_k, grad_v


def _all_finite(*tensors: Tensor) -> bool:
    """Whether all is finite, as far as that can be told."""
    return unreadable(tensors[0]) or finite(*tensors)
