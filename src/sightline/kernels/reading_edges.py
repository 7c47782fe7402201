"""The strongest cells of every row by a reading on a GPU: a pass with two products a tile, q.k and g.v.

A program owns some rows and walks over the columns these see, tile by tile, with a list of the best so far. A tile in
which no cell is larger than the least of its row's list costs no more than to see that. Of equal sizes the lower key
comes first, and nothing leaves a program but its own rows: the same bits every time.

Limits: as `reading_columns`, without a bias that is a tensor; at most 32 keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch, on_its_device
from sightline.kernels.map_tile import keys_of_block
from sightline.kernels.reading_tile import ABSENT, cells, rows_of_tile, values_of_block
from sightline.kernels.readings import Reading
from sightline.kernels.top_candidates import NO_KEY, NOTHING_LEFT, pack, unpack

# The most keys per row that the kernel can find.
MOST = 32


@kernel(unaligned=("LSE", "REST", "ALONG", "SIZES", "FACTORS", "SLOPES", "TABLE_PTR"))
def _edges(
    Q, K, G, V, LSE, REST, ALONG, SIZES, FACTORS, FIRST, STOP, SLOPES, TABLE_PTR, TOP_KEYS, TOP_CELLS,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    g_batch: tl.int64, g_head: tl.int64, g_row: tl.int64, v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    interval_batch: tl.int64,
    table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64, table_column: tl.int64,
    heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, scale2: tl.float32, cap2: tl.float32,
    n: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, VDIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    N: tl.constexpr, OF: tl.constexpr, FACTORED: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr,
    TABLE: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    V_PRECISION: tl.constexpr,
):  # fmt: skip
    map_id = tl.program_id(0).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    # The last rows first: under a causal mask they are the longest work.
    row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BM + tl.arange(0, BM)
    q, g, lse2, rest, along, factor, first, limit = rows_of_tile(
        Q, G, LSE, REST, ALONG, FACTORS, FIRST, STOP, b, h, map_id, row, queries, keys,
        q_batch, q_head, q_row, g_batch, g_head, g_row, interval_batch, queries,
        D, DIM, DV, VDIM, OF, FACTORED, STARTS, INTERVALS)  # fmt: skip
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
    values = V + b * (v_batch * 8) + (h // groups) * (v_head * 8)
    # A list begins with sizes that any cell is above, and codes that are all different.
    best = tl.zeros([BM, N], tl.float32) - 1.0
    best_code = tl.full([BM, N], NO_KEY, tl.int32) - tl.arange(0, N)[None, :]
    end = tl.max(limit, 0)
    for begin in tl.range(tl.min(tl.where(limit > 0, first, keys), 0), end, BN):
        column = begin + tl.arange(0, BN)
        column_ok = column < end
        k = keys_of_block(keys_of, column, column_ok, k_row, D, DIM)
        v, size = values_of_block(values, SIZES, map_id, column, column_ok, v_row, keys, DV, VDIM, OF)
        x, seen = cells(q, k, g, v, lse2, rest, along, factor, size, row, begin, column, column_ok, first, limit,
                        slope, table, table, scale2, cap2, table_row, table_column, 0, 0, queries, keys,
                        OF, FACTORED, STARTS, TABLE, False, ALIBI, SOFTCAP, PRECISION, V_PRECISION)  # fmt: skip
        # A code is a key and whether its cell is below 0.
        best, best_code = _insert(
            best, best_code, tl.where(seen, tl.abs(x), ABSENT), column[None, :] * 2 + (x < 0).to(tl.int32)
        )
    packed = pack(best, best_code)
    to = (map_id * queries + row) * n
    for j in tl.range(0, n):
        strongest = tl.max(packed, 1)
        packed = tl.where(packed == strongest[:, None], NOTHING_LEFT, packed)
        size, code = unpack(strongest)
        there = size >= 0
        tl.store(TOP_KEYS + to + j, tl.where(there, code >> 1, -1), mask=row < queries)
        cell = tl.where((code & 1) == 1, -size, size)
        tl.store(TOP_CELLS + to + j, tl.where(there, cell, 0.0), mask=row < queries)


@triton.jit
def _insert(best, best_code, size, code):
    """The best so far, and those of a tile that are larger."""
    top = tl.max(size, 1)
    least = tl.min(best, 1)
    while tl.max((top > least).to(tl.int32), 0) > 0:
        one = tl.min(tl.where(size == top[:, None], code, NO_KEY), 1)
        size = tl.where(code == one[:, None], ABSENT, size)
        # It takes the place of the weakest; of several weakest, of the one with the highest key.
        worst = tl.max(tl.where(best == least[:, None], best_code, -1), 1)
        goes = (best_code == worst[:, None]) & (top > least)[:, None]
        best = tl.where(goes, top[:, None], best)
        best_code = tl.where(goes, one[:, None], best_code)
        top = tl.max(size, 1)
        least = tl.min(best, 1)
    return best, best_code


@on_its_device
def edges(q: Tensor, reading: Reading, n: int) -> tuple[Tensor, Tensor]:
    """The n strongest keys of every row by a reading, -1 where a row has fewer, and their cells, `[…, queries, n]`.

    Of a signed reading these are the largest by magnitude, with their sign.
    """
    batch, heads, queries, _ = q.shape
    found = torch.empty(batch, heads, queries, n, dtype=torch.int64, device=q.device)
    cells_of = torch.empty(batch, heads, queries, n, dtype=torch.float32, device=q.device)
    tile = reading.tile
    launch(
        _edges,
        (batch * heads, triton.cdiv(queries, tile.rows)),
        reading.given | {"TOP_KEYS": found, "TOP_CELLS": cells_of, "n": n},
        reading.constants | {"N": max(4, triton.next_power_of_2(n))},
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return found, cells_of
