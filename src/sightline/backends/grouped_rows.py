"""Queries in the shape in which torch's CPU kernel is quickest, where no mask tells them apart."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.backends import cpu_kernel

HALF = (torch.float16, torch.bfloat16)
_AVX2 = torch.backends.cpu.get_cpu_capability() == "AVX2"


def packed(q: Tensor, kv_heads: int) -> Tensor:
    """Queries `[batch, heads, queries, dim]` that all see the same keys, as the CPU's kernel is quickest with them.

    It reads the keys once for every head: heads that share keys are put below each other as more queries of one. A row
    or a few are not worth it in float32, where products with one row are quick. In half precision they are slow: asked
    twice, a lone query takes half the time. The kernels for processors with AVX-512 are others, and are left alone.
    """
    batch, heads, queries, dim = q.shape
    if heads == kv_heads:
        slow = queries == 1 and q.dtype == torch.bfloat16 and _AVX2
        return q.expand(-1, -1, 2, -1).contiguous() if slow else q
    rows = heads // kv_heads * queries
    return q.reshape(batch, kv_heads, rows, dim) if rows >= 4 or q.dtype in HALF or not cpu_kernel.KNOWS_GROUPS else q


def unpacked(out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The output for queries of some shape, from that for packed ones."""
    return out[:, :, : shape[2]].contiguous() if out.shape[1] == shape[1] else out.reshape(*shape[:3], -1)
