"""Scores of one chosen key for every query on a GPU: one product per query, the map is never there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import on_its_device


@triton.jit
def _at(
    Q, K, AT, OUT,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_row, k_dim, at_batch, at_row,
    heads, groups, queries, keys, offset, scale,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    row_ok = row < queries
    if CHOSEN:
        key = tl.load(AT + b * at_batch + row * at_row, mask=row_ok, other=-1).to(tl.int32)
    else:
        key = row + offset
    ok = row_ok & (key >= 0) & (key < keys)
    dims = tl.arange(0, DIM)
    inside = ok[:, None] & (dims < D)[None, :]
    q = tl.load(Q + b * q_batch + h * q_head + row.to(tl.int64)[:, None] * q_row + dims[None, :] * q_dim,
                mask=inside, other=0.0)  # fmt: skip
    k = tl.load(K + b * k_batch + (h // groups) * k_head + key.to(tl.int64)[:, None] * k_row + dims[None, :] * k_dim,
                mask=inside, other=0.0)  # fmt: skip
    score = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    tl.store(OUT + map_id * queries + row, tl.where(ok, score, 0.0), mask=row_ok)


@on_its_device
def scores_at(q: Tensor, k: Tensor, keys: Tensor | int, scale: float) -> Tensor:
    """scale * q.k of one key for every query, `[batch, heads, queries]` in float32; 0 where there is no such key.

    `keys` `[batch or 1, queries or 1]` are the keys themselves, or a number n: query i then looks at key i + n.
    """
    batch, heads, queries, dim = q.shape
    out = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    chosen = isinstance(keys, Tensor)
    at = keys.expand(batch, queries) if isinstance(keys, Tensor) else out
    _at[(triton.cdiv(queries, 32), batch * heads)](
        q, k, at, out, *q.stride(), *k.stride(), *(at.stride() if chosen else (0, 0)),
        heads, heads // k.shape[1], queries, k.shape[2], 0 if chosen else keys, scale,
        D=dim, DIM=triton.next_power_of_2(dim), BM=32, CHOSEN=chosen, num_warps=4,
    )  # fmt: skip
    return out
