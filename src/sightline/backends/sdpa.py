"""The backend of torch's own scaled_dot_product_attention: the fastest there is, for what it can express.

It can express softmax attention without mask, with torch's causal mask, or with a table that is already there
(a dense mask or bias, or padding, which is one row per sequence). A rule such as a window would have to be
written out as queries x keys first, which this backend does only on a GPU and only for short sequences, where calling
FlexAttention takes longer than attention itself. The one query of a decoding step gets the keys of its window alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline import caches
from sightline.backends import streaming
from sightline.backends.cpu_kernel import for_every_head, in_rows
from sightline.backends.derivatives import beyond_torchs_kernels, once
from sightline.backends.empty_rows import blind_rows, find
from sightline.backends.grouped_rows import HALF, packed, unpacked
from sightline.backends.mask_cache import MOST, Kept
from sightline.backends.nonfinite import nan_of_infinity, spoiled
from sightline.backends.passes import loses_rows
from sightline.backends.plans import attend, is_new
from sightline.masks import Band, Dense, Mask, Padding
from sightline.masks.changes import may_keep

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call


# Cells of a table that is written out from a rule.
_SHORT = 1 << 23


def refuses(call: Call) -> str | None:
    """Why torch's SDPA cannot do a call, or None if it can."""
    bias = call.bias if isinstance(call.bias, Tensor) else None
    # With dropout, or a bias that learns, torch takes plain operations, which have every derivative.
    plain = call.dropout or (bias is not None and bias.requires_grad)
    if not plain and beyond_torchs_kernels(call.q, call.k, call.v, bias):
        return 'SDPA has only a first derivative, backwards; backend="reference" has all'
    if not call.is_plain:
        if call.softcap is not None:
            return "SDPA has no soft-cap"
        if call.sinks is not None:
            return "SDPA has no sinks"
        return f"SDPA has only softmax, not {call.normalizer.name}"
    if call.bias is not None and not isinstance(call.bias, Tensor):
        return "SDPA would need this bias written out as queries x keys"
    mask = call.mask
    if not plain and bias is not None and loses_rows(call, bias):
        return "SDPA's backward pass rounds the sum of rows that a bias moves by large numbers as a whole"
    if mask is None or isinstance(mask, (Dense, Padding)) or stretch(mask, call.sizes.queries, call.sizes.keys):
        return None
    if is_causal(call) and call.bias is None:
        return None
    if call.device.type == "cuda" and math.prod(call.sizes.batch) * call.sizes.queries * call.sizes.keys <= _SHORT:
        return None
    if is_causal(call):
        return "SDPA takes its causal flag or a bias, not both"
    return f"SDPA would need the mask {mask} written out as queries x keys"


def stretch(mask: Any, queries: int, keys: int) -> tuple[int, int] | None:
    """Where the keys begin and end that the one query of a decoding step sees under a band: no others are needed.

    None if there are more queries, another mask, or nothing to see.
    """
    if queries != 1 or not isinstance(mask, Band):
        return None
    at = mask.offset(queries, keys)
    first = 0 if mask.left is None else max(at - mask.left, 0)
    stop = keys if mask.right is None else min(at + mask.right + 1, keys)
    return (first, stop) if first < stop else None


def is_causal(call: Call) -> bool:
    """Whether the mask is the one torch means by `is_causal`: aligned at the start."""
    mask = call.mask
    if not isinstance(mask, Band) or mask.right != 0:
        return False
    s = call.sizes
    unlimited = mask.left is None or mask.left >= max(s.queries, s.keys) - 1
    return unlimited and (mask.align == "start" or s.queries == s.keys)


def shortcut(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor | None:
    """What is plain, causal, padded, tabled or a decoding step without the detour over a Call; None if not that simple.

    The detour costs some 20 microseconds, which show at 16 tokens, and on a GPU at 2,048. Of what is asked here only
    that counts which SDPA would take and mean something else by it; what it refuses is explained on the detour.
    """
    kind = type(mask)
    causal = kind is Band and mask.right == 0 and mask.left is None
    try:
        shape, keys = q.shape, k.shape
        if keys != v.shape or len(shape) != 4 or not q.numel():
            return None
        grouped = False
        if shape != keys:
            if not _fit(shape, keys):
                return None
            grouped = _settled(shape[1] != keys[1])
            if grouped and not (q.is_cpu or q.dtype in HALF):
                return None
        if kind is Band and shape[2] == 1:
            # Of a decoding step the one query, at the end, sees all keys, or the last of them.
            if not (causal and mask.align == "end"):
                seen = stretch(mask, 1, keys[2])
                if seen is None:
                    return None
                k, v = _cut(k, seen), _cut(v, seen)
            causal, mask = False, None
        elif mask is not None and shape[2] != keys[2]:
            return None
        keep = may_keep()
        if not keep and not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        if mask is None and (grouped or shape[2] == 1) and q.is_cpu:
            rows = packed(q, keys[1])
            if rows is not q:
                out = F.scaled_dot_product_attention(rows, k, v)
                return unpacked(once(out) if out.requires_grad else out, shape)
        if grouped and q.is_cpu:
            k, v = for_every_head(k, v, shape[1])
        if mask is None or causal:
            out = attend(q, k, v, causal, grouped)
            return once(out) if out.requires_grad else out
        table = _table_of(mask, shape, q, keep)
        if table is None:
            return None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=table, enable_gqa=grouped)
        out = once(out) if out.requires_grad else out
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
    return out if q.is_cpu else _nothing_to_blind(out, blind_rows(table, keep))


def _cut(x: Tensor, seen: tuple[int, int]) -> Tensor:
    first, stop = seen
    return x[..., first:stop, :] if first > 0 or stop < x.shape[-2] else x


def _settled(condition: bool) -> bool:
    """A plain boolean: in a compiled graph sizes may be symbols, and a comparison of them is one too."""
    return True if condition else False  # noqa: SIM210


def _fit(shape: torch.Size, keys: torch.Size) -> bool:
    """Whether queries differ from keys in their number, and in a multiple of the heads, alone."""
    same = len(keys) == 4 and shape[0] == keys[0] and shape[3] == keys[3]
    return same and keys[1] > 0 and shape[1] % keys[1] == 0 and keys[2] > 0


def _table_of(mask: Any, shape: torch.Size, q: Tensor, keep: bool) -> Tensor | None:
    """The table of a mask that surely fits queries and keys of this shape."""
    length = shape[2]
    if isinstance(mask, Tensor):
        fits = mask.dtype == torch.bool and mask.shape == (length, length)
        return None if not fits else in_rows(mask) if q.is_cpu else mask
    if isinstance(mask, Padding):
        if (mask.longest or 0) > length or (mask.real is not None and mask.real.shape[-1] != length):
            return None
        row = mask.row(length, q.device, keep)
        return row if row.dim() == 4 and row.shape[0] in (1, shape[0]) else None
    if isinstance(mask, Band) and q.is_cuda and shape[0] * length * length <= _SHORT:
        return _written(mask, length, length, q.device)
    return None


def _nothing_to_blind(out: Tensor, rows: Tensor | None) -> Tensor:
    """Some CUDA kernels average all values for a row that sees none."""
    return out if rows is None else out.masked_fill(rows.expand(out.shape[:-1])[..., None], 0.0)


def run(call: Call) -> Float[Tensor, "*batch heads queries value_dim"]:
    """Attention by torch's SDPA."""
    ready = _prepare(call)
    if ready.table is None and not call.dropout:
        out = attend(ready.q, ready.k, ready.v, ready.causal, ready.grouped, call.scale)
    else:
        out = F.scaled_dot_product_attention(
            ready.q,
            ready.k,
            ready.v,
            attn_mask=ready.table,
            dropout_p=call.dropout,
            is_causal=ready.causal,
            scale=call.scale,
            enable_gqa=ready.grouped,
        )
    out = once(out) if out.requires_grad else out
    if ready.unpacked is not None:
        out = unpacked(out, ready.unpacked)
    if ready.table is not None and call.device.type == "cuda":
        out = _nothing_to_blind(out, _blind(call, ready))
    return _finish(call, out)


def kernel(call: Call) -> str:
    """What torch takes for a call on a GPU whose shape cuDNN may have no plan for; nothing for others."""
    if call.device.type != "cuda" or call.dropout or min(call.sizes.queries, call.sizes.keys) == 0:
        return ""
    ready = _prepare(call)
    if ready.table is None and is_new(ready.q, ready.k, ready.v, ready.causal, ready.grouped, count=False):
        return "by flash, which needs no plan: to cuDNN this shape is new"
    return ""


def run_with_lse(call: Call) -> tuple[Tensor, Float[Tensor, "*batch heads queries"]] | None:
    """The same output and the lse (natural logarithm), or None if the kernel SDPA would take does not give it."""
    s = call.sizes
    # The operators beneath SDPA differentiate no bias, and take no bias finer than q on a GPU.
    finer = call.device.type == "cuda" and isinstance(call.bias, Tensor) and call.bias.dtype != call.q.dtype
    bias_stays = finer or (isinstance(call.bias, Tensor) and call.bias.requires_grad)
    if bias_stays or min(s.heads, s.queries, s.keys, s.dim, s.value_dim, *s.batch) == 0:
        return None
    ready = _prepare(call)
    kernel = _kernel(ready)
    if kernel is None or any(t.stride(-1) != 1 for t in (ready.q, ready.k, ready.v)):
        return None
    out, lse = kernel(ready, call.scale)
    out = once(out) if out.requires_grad else out
    if ready.unpacked is not None:
        out, lse = unpacked(out, ready.unpacked), unpacked(lse[..., None], ready.unpacked)[..., 0]
    hidden = None if ready.table is None else _blind(call, ready)
    if hidden is not None:
        # Of such rows the kernels give an lse, and on CUDA an output, as they please.
        hidden = hidden.expand(lse.shape)
        lse, out = lse.masked_fill(hidden, -torch.inf), out.masked_fill(hidden[..., None], 0.0)
    out, lse = _finish(call, out), lse.reshape(*s.batch, s.heads, s.queries)
    return streaming.run_with_rows(call, careful=True) if spoiled(call, out) else (out, lse)


class _Ready(NamedTuple):
    """The tensors as SDPA takes them: one batch axis, values as wide as keys on the CPU, the mask as a table."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor | None
    causal: bool
    grouped: bool
    unpacked: torch.Size | None = None  # the shape of q, if it is packed


def _prepare(call: Call) -> _Ready:
    s = call.sizes
    q, k, v = call.q, call.k, call.v
    mask, bias = call.mask, call.bias
    seen = stretch(mask, s.queries, s.keys)
    if seen is not None:
        k, v, mask = _cut(k, seen), _cut(v, seen), None
        if isinstance(bias, Tensor) and bias.dim() and bias.shape[-1] != 1:
            bias = bias[..., seen[0] : seen[1]]
    causal = _settled(mask is not None and is_causal(call))
    table = None
    if mask is not None and not causal:
        table = _table(mask, call)
    if bias is not None:
        assert isinstance(bias, Tensor)
        bias = bias.to(_table_dtype(call))
        table = bias if table is None else torch.where(table, bias, -torch.inf)
    if len(s.batch) != 1:
        # The fused kernels take exactly one batch axis.
        q, k, v = (t.reshape(math.prod(s.batch), *t.shape[-3:]) for t in (q, k, v))
    if table is not None:
        table = _two_or_four_axes(table, s.batch)
    if s.heads != s.kv_heads and call.device.type == "cuda" and call.q.dtype not in HALF:
        # Only the half-precision CUDA kernels know grouped heads; the others would fall back to the whole map.
        k, v = k.repeat_interleave(s.groups, -3), v.repeat_interleave(s.groups, -3)
    if s.dim != s.value_dim and call.device.type == "cpu":
        # The fused CPU kernel wants values as wide as keys; zeros at the end change nothing.
        wide = max(s.dim, s.value_dim)
        q, k, v = (F.pad(t, (0, wide - t.shape[-1])) for t in (q, k, v))
    shape = q.shape
    if call.device.type == "cpu" and table is None and not causal and not call.dropout and q.numel():
        q = packed(q, s.kv_heads)
    if call.device.type == "cpu":
        table = None if table is None else in_rows(table)
        k, v = for_every_head(k, v, q.shape[1])
    grouped = _settled(q.shape[1] != k.shape[1])
    return _Ready(q, k, v, table, causal, grouped, None if q.shape == shape else shape)


def _blind(call: Call, ready: _Ready) -> Tensor | None:
    """Rows of a call that see no key, broadcastable to [batch, heads, queries]; None if there are none."""
    assert ready.table is not None
    s, mask = call.sizes, call.mask
    if mask is None or call.bias is not None:
        return find(ready.table)
    rows = blind_rows(_table(mask, call))
    if rows is None or len(s.batch) == 1:
        return rows
    return rows.expand(*s.batch, s.heads, -1).reshape(math.prod(s.batch), s.heads, -1)


def _table(mask: Mask, call: Call) -> Tensor:
    """A mask as a table: the same one for the same mask, so that what is found out about it is known next time."""
    s = call.sizes
    if isinstance(mask, Dense):
        return mask.table
    if isinstance(mask, Padding):
        return mask.row(s.keys, call.device)
    return _written(mask, s.queries, s.keys, call.device)


_written: Kept[Tensor] = caches.held(
    "backends.tables", Kept(lambda mask, q, k, device: mask.tile(slice(0, q), slice(0, k), q, k, device)), MOST
)


def _table_dtype(call: Call) -> torch.dtype:
    """On the CPU a bias for half-precision q may stay in float32."""
    half = call.q.dtype in HALF
    fine = isinstance(call.bias, Tensor) and call.bias.dtype in (torch.float32, torch.float64)
    return torch.float32 if half and fine and call.device.type == "cpu" else call.q.dtype


def _finish(call: Call, out: Tensor) -> Tensor:
    s = call.sizes
    if out.shape[-1] != s.value_dim:
        out = out[..., : s.value_dim]
    return out if len(s.batch) == 1 else out.reshape(*s.batch, *out.shape[-3:])


def _two_or_four_axes(table: Tensor, batch: tuple[int, ...]) -> Tensor:
    """A table for one batch axis and heads, or for neither: what the fused kernels take."""
    if table.dim() < 2:
        return table.reshape(1, -1)
    if table.dim() == 2 or (table.dim() == 4 and len(batch) == 1):
        return table
    if table.dim() == 3 or all(size == 1 for size in table.shape[:-3]):
        return table.reshape(1, *table.shape[-3:])
    return table.expand(*batch, *table.shape[-3:]).reshape(math.prod(batch), *table.shape[-3:])


def _kernel(ready: _Ready) -> Callable[[_Ready, float], tuple[Tensor, Tensor]] | None:
    if ready.q.device.type == "cpu":
        return _cpu_flash
    if ready.q.device.type != "cuda":
        return None
    params = torch.backends.cuda.SDPAParams(ready.q, ready.k, ready.v, ready.table, 0.0, ready.causal, ready.grouped)
    if ready.table is None and torch.backends.cuda.can_use_cudnn_attention(params):
        new = is_new(ready.q, ready.k, ready.v, ready.causal, ready.grouped)
        return _cuda_flash if new else _cuda_cudnn
    if torch.backends.cuda.can_use_flash_attention(params):
        return _cuda_flash
    if torch.backends.cuda.can_use_efficient_attention(params):
        return _cuda_efficient
    return None


def _additive(ready: _Ready) -> Tensor | None:
    """A table of booleans as what is added to the scores."""
    if ready.table is None or ready.table.dtype != torch.bool:
        return ready.table
    zero = torch.zeros((), dtype=ready.q.dtype, device=ready.q.device)
    return torch.where(ready.table, zero, -torch.inf)


def _cpu_flash(ready: _Ready, scale: float) -> tuple[Tensor, Tensor]:
    table = _additive(ready)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        ready.q, ready.k, ready.v, 0.0, ready.causal, attn_mask=table, scale=scale
    )
    return out, nan_of_infinity(lse)


def _cuda_cudnn(ready: _Ready, scale: float) -> tuple[Tensor, Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, lse, *_ = kernel(ready.q, ready.k, ready.v, None, True, 0.0, ready.causal, False, scale=scale)
    return out, lse.squeeze(-1) if lse.dim() == 4 else lse


def _cuda_flash(ready: _Ready, scale: float) -> tuple[Tensor, Tensor]:
    width = ready.q.shape[-1]  # in multiples of 8, as SDPA itself gives it; a pad by nothing would be a copy
    q, k, v = (F.pad(t, (0, -width % 8)) if width % 8 else t for t in (ready.q, ready.k, ready.v))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, ready.causal, False, scale=scale)
    return out[..., :width], lse


def _cuda_efficient(ready: _Ready, scale: float) -> tuple[Tensor, Tensor]:
    table = _additive(ready)
    if table is not None:
        table = table.expand(*ready.q.shape[:-1], ready.k.shape[-2])
        if (s := table.shape[-1]) % 16:  # the kernel reads rows of the table in steps of 16 bytes
            table = F.pad(table, (0, -s % 16))[..., :s]
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        ready.q, ready.k, ready.v, table, True, 0.0, ready.causal, scale=scale
    )
    return out, lse[..., : ready.q.shape[-2]]
