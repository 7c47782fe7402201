"""Scores of one chosen key for every query on a GPU: one product per query, the map is never there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch, on_its_device
from sightline.kernels.layout import aligned
from sightline.kernels.rules import Rules


@kernel(unaligned=("AT",))
def _at(
    Q, K, AT, OUT,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    at_batch: tl.int64, at_row: tl.int64,
    heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, offset: tl.int32, scale: tl.float32,
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
    # Steps of memory come in eights: whole pieces of 16 bytes.
    q_of, k_of = Q + b * (q_batch * 8) + h * (q_head * 8), K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
    q = tl.load(q_of + row.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :], mask=inside, other=0.0)
    k = tl.load(k_of + key.to(tl.int64)[:, None] * (k_row * 8) + dims[None, :], mask=inside, other=0.0)
    score = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    tl.store(OUT + map_id * queries + row, tl.where(ok, score, 0.0), mask=row_ok)


@on_its_device
def scores_at(q: Tensor, k: Tensor, keys: Tensor | int, scale: float) -> Tensor:
    """scale * q.k of one key for every query, `[batch, heads, queries]` in float32; 0 where there is no such key.

    `keys` `[batch or 1, queries or 1]` are the keys themselves, or a number n: query i then looks at key i + n.
    """
    batch, heads, queries, _ = q.shape
    out = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    at = keys.expand(batch, queries) if isinstance(keys, Tensor) else None
    by_batch, by_row = (0, 0) if at is None else at.stride()
    rules = Rules(aligned(q), aligned(k), scale, None, False, None, None, None, None)
    launch(
        _at,
        (triton.cdiv(queries, 32), batch * heads),
        rules.given
        | {"AT": at, "OUT": out, "at_batch": by_batch, "at_row": by_row, "scale": scale}
        | {"offset": keys if at is None else 0},
        rules.constants | {"BM": 32, "CHOSEN": at is not None},
        num_warps=4,
    )
    return out
