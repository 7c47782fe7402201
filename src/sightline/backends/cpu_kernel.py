"""What torch's fused CPU kernel takes: older versions of torch have one that takes less.

That of torch 2.8 knows no heads that share keys, and that of 2.6 also no table whose rows do not lie in one piece. SDPA
then falls back to the whole map. The operator beneath it does not: asked by itself, it reads past the end of the keys,
or other cells of the table. So what either of them gets is made such that the kernel takes it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend


def _is_taken(kv_heads: int, table: Tensor | None = None) -> bool:
    """Whether torch would give its kernel two heads of two queries and keys."""
    q = torch.empty(1, 2, 2, 1, device="cpu")
    k = q[:, :kv_heads]
    return torch._fused_sdp_choice(q, k, k, table, enable_gqa=True) == SDPBackend.FLASH_ATTENTION.value


KNOWS_GROUPS = _is_taken(kv_heads=1)
KNOWS_STRIDES = _is_taken(kv_heads=2, table=torch.empty(2, 2, device="cpu").t())


def for_every_head(k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values `[batch, kv_heads, keys, dim]` that the kernel takes: repeated, where it knows no groups."""
    if KNOWS_GROUPS or k.shape[1] == heads:
        return k, v
    groups = heads // k.shape[1]
    return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def of_each_group(grad: Tensor, kv_heads: int) -> Tensor:
    """The gradient of keys or values, from that of what `for_every_head` made of them."""
    return grad if grad.shape[1] == kv_heads else grad.unflatten(1, (kv_heads, -1)).sum(2)


def in_rows(table: Tensor) -> Tensor:
    """A table that the kernel takes: copied, where its rows do not lie in one piece and the kernel needs that."""
    return table if KNOWS_STRIDES or table.stride(-1) == 1 else table.contiguous()
