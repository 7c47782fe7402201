"""Softmax attention with any mask, bias and sinks on the CPU: torch's fused kernel, one band of rows at a time.

The fused kernel takes a mask only as a table. A band of rows needs only a band of the table, and only the
columns it may see, so memory stays linear in the context and empty tiles cost nothing. Sinks need no kernel of
their own: they only change the row's log-sum-exp, by which the output is scaled.

Limits: CPU, softmax, no soft-cap, no dropout, no gradient for the bias. Tested with torch 2.6 and 2.13 in float64,
float32, float16 and bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.backends.cpu_kernel import for_every_head, in_rows, of_each_group
from sightline.backends.nonfinite import nan_of_infinity
from sightline.backends.tiles import Columns, bias_tile, visit

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call

_HEIGHT, _WIDTH = 256, 128
# Bytes of one band of the table.
_BAND = 32 << 20


def can(call: Call) -> bool:
    """Whether the fused kernel can do this call band by band."""
    s = call.sizes
    learned_bias = isinstance(call.bias, Tensor) and call.bias.requires_grad
    return (
        call.device.type == "cpu"
        and call.normalizer.is_softmax
        and call.softcap is None
        and not call.dropout
        and not learned_bias
        and min(s.heads, s.queries, s.keys, s.dim, s.value_dim, *s.batch) > 0
    )


def forward(
    call: Call,
) -> tuple[Float[Tensor, "*batch heads queries value_dim"], Float[Tensor, "*batch heads queries"]]:
    """The output and the log-sum-exp of every row, sinks included."""
    s = call.sizes
    q, k, v = _four_axes(call)
    out = torch.empty(*q.shape[:-1], s.value_dim, dtype=q.dtype, device="cpu")
    lse = torch.full(q.shape[:-1], -torch.inf, dtype=call.compute_dtype, device="cpu")
    for rows, columns in visit(s, call.mask, _height(call), _WIDTH):
        if not columns:
            out[:, :, rows] = 0
            continue
        table = _table(call, rows, columns)
        part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[:, :, rows], _take(k, columns), _take(v, columns), 0.0, False, attn_mask=table, scale=call.scale
        )
        if table is not None:
            # The kernel gives a row without any visible key an lse of 0.
            part_lse = part_lse.masked_fill(table.amax(-1).expand(part_lse.shape) == -torch.inf, -torch.inf)
        out[:, :, rows] = part[..., : s.value_dim]
        lse[:, :, rows] = nan_of_infinity(part_lse)
    out, lse = out.view(*s.batch, *out.shape[1:]), lse.view(*s.batch, *lse.shape[1:])
    if call.sinks is not None:
        out, lse = with_sinks(call.sinks, out, lse)
    return out, lse


def with_sinks(sinks: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the lse once the sinks have taken their share."""
    taken = torch.logaddexp(lse, sinks[..., None].to(lse.dtype))
    # Where neither a key nor the sink is visible, -inf - -inf would be NaN.
    share = (lse - taken).masked_fill(lse == -torch.inf, -torch.inf).exp()
    return out * share[..., None].to(out.dtype), taken


def backward(call: Call, grad: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, in compute precision for k and v."""
    s = call.sizes
    q, k, v = _four_axes(call)
    # With sinks the weights are exp(score - lse) of the lse that holds the sink: the kernel's formula as it is.
    lse = lse.reshape(q.shape[:-1]).masked_fill(lse.reshape(q.shape[:-1]) == -torch.inf, 0.0)
    grad, out = (_widen(t.reshape(*q.shape[:-1], s.value_dim), v.shape[-1]) for t in (grad, out))
    grad_q = torch.zeros(q.shape, dtype=q.dtype, device="cpu")
    grad_k, grad_v = (torch.zeros(t.shape, dtype=call.compute_dtype, device="cpu") for t in (k, v))
    for rows, columns in visit(s, call.mask, _height(call), _WIDTH):
        if not columns:
            continue
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad[:, :, rows],
            q[:, :, rows],
            _take(k, columns),
            _take(v, columns),
            out[:, :, rows],
            lse[:, :, rows],
            0.0,
            False,
            attn_mask=_table(call, rows, columns),
            scale=call.scale,
        )
        grad_q[:, :, rows] = parts[0]
        start = 0
        for run in _runs(columns):
            stop = start + run.stop - run.start
            grad_k[:, :, run] += parts[1][:, :, start:stop]
            grad_v[:, :, run] += parts[2][:, :, start:stop]
            start = stop
    return (
        grad_q[..., : s.dim].reshape(call.q.shape),
        of_each_group(grad_k, s.kv_heads)[..., : s.dim].reshape(call.k.shape),
        of_each_group(grad_v, s.kv_heads)[..., : s.value_dim].reshape(call.v.shape),
    )


def _four_axes(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, heads, time, dim] with one batch axis, and values as wide as keys: what the kernel takes."""
    wide = max(call.sizes.dim, call.sizes.value_dim)
    q, k, v = (_widen(t.reshape(-1, *t.shape[-3:]), wide) for t in (call.q, call.k, call.v))
    return q, *for_every_head(k, v, q.shape[1])


def _widen(x: Tensor, dim: int) -> Tensor:
    # Zeros at the end of q and k add nothing to the scores; zeros at the end of v are cut off again.
    return x if x.shape[-1] == dim and x.stride(-1) == 1 else F.pad(x, (0, dim - x.shape[-1])).contiguous()


def _height(call: Call) -> int:
    """Rows of a band, so that its table stays within bounds also when every head or sequence has its own."""
    s = call.sizes
    per_row = s.keys * call.q.element_size() * (s.heads if call.bias is not None else 1)
    for size in s.batch:
        per_row *= size if call.mask is not None or call.bias is not None else 1
    return max(16, min(_HEIGHT, _BAND // max(per_row, 1)))


def _table(call: Call, rows: slice, columns: list[Columns]) -> Tensor | None:
    """The bias and the mask of a band as one additive table of two or four axes, or None if there is neither."""
    if call.bias is None and not any(c.mixed for c in columns):
        return None
    s = call.sizes
    pieces = []
    for span, mixed in _joined(columns):
        piece = torch.zeros(rows.stop - rows.start, span.stop - span.start, dtype=call.compute_dtype, device="cpu")
        if call.bias is not None:
            piece = piece + bias_tile(call, rows, span)
        if mixed:
            assert call.mask is not None
            piece = piece.masked_fill(~call.mask.tile(rows, span, s.queries, s.keys, call.device), -torch.inf)
        pieces.append(piece)
    leading = torch.broadcast_shapes(*(piece.shape[:-2] for piece in pieces))
    table = torch.cat([piece.expand(*leading, *piece.shape[-2:]) for piece in pieces], -1)
    if table.dim() > 2:
        heads = table.shape[-3]
        one_for_all = all(size == 1 for size in table.shape[:-3])
        batch = () if one_for_all else s.batch
        table = table.reshape(table.shape[-3:]) if one_for_all else table
        table = table.expand(*batch, heads, *table.shape[-2:]).reshape(-1, heads, *table.shape[-2:])
    return in_rows(table)


def _joined(columns: list[Columns]) -> list[Columns]:
    """Neighbouring tiles of one kind joined, so that a band's table has few pieces."""
    joined: list[Columns] = []
    for column in columns:
        last = joined[-1] if joined else None
        if last is not None and last.span.stop == column.span.start and last.mixed == column.mixed:
            joined[-1] = Columns(slice(last.span.start, column.span.stop), column.mixed)
        else:
            joined.append(column)
    return joined


def _runs(columns: list[Columns]) -> list[slice]:
    """The stretches of keys that a band sees."""
    return [run.span for run in _joined([Columns(span, False) for span, _ in columns])]


def _take(x: Tensor, columns: list[Columns]) -> Tensor:
    parts = [x[:, :, run] for run in _runs(columns)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
