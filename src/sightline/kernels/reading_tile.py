"""The readings of one tile of the map on a GPU: its weights, times what each cell carries or what it matters."""

from __future__ import annotations

import triton
import triton.language as tl

from sightline.kernels.map_tile import HIDDEN, logs

# Which reading a kernel is compiled for.
NUMBER = {"weights": 0, "norms": 1, "influence": 2, "pull": 3}


@triton.jit
def rows_of_tile(
    Q, G, LSE, REST, ALONG, FACTORS, FIRST, STOP, b, h, map_id, row, ok, column_stop,
    q_batch, q_head, q_row, g_batch, g_head, g_row, interval_batch, queries,
    D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, VDIM: tl.constexpr, OF: tl.constexpr,
    FACTORED: tl.constexpr, RESTED: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr,
):  # fmt: skip
    """All that is read of some rows: q, g, lse (base 2), its rest, g.o, a factor, the first column seen and the end."""
    dims = tl.arange(0, DIM)
    # Steps of memory come in eights: whole pieces of 16 bytes.
    at = Q + b * (q_batch * 8) + h * (q_head * 8) + row.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :]
    q = tl.load(at, mask=ok[:, None] & (dims[None, :] < D), other=0.0)
    g = q
    if OF >= 2:
        wide = tl.arange(0, VDIM)
        at = G + b * (g_batch * 8) + h * (g_head * 8) + row.to(tl.int64)[:, None] * (g_row * 8) + wide[None, :]
        g = tl.load(at, mask=ok[:, None] & (wide[None, :] < DV), other=0.0)
    at_row = map_id * queries + row
    lse = tl.load(LSE + at_row, mask=ok, other=0.0).to(tl.float32)
    lse2 = tl.where(lse == -float("inf"), 0.0, lse * 1.4426950408889634)
    rest, along, factor = lse2, lse2, lse2
    if RESTED:
        rest = tl.load(REST + at_row, mask=ok, other=0.0)
    if OF == 3:
        along = tl.load(ALONG + at_row, mask=ok, other=0.0)
    if FACTORED:
        factor = tl.load(FACTORS + at_row, mask=ok, other=0.0)
    first, stop = row * 0, row * 0 + column_stop
    if STARTS:
        first = tl.load(FIRST + b * interval_batch + row, mask=ok, other=0)
    if INTERVALS:
        stop = tl.minimum(tl.load(STOP + b * interval_batch + row, mask=ok, other=0), column_stop)
    return q, g, lse2, rest, along, factor, first, tl.where(ok, stop, 0)


@triton.jit
def values_of_block(V, SIZES, map_id, column, column_ok, v_row, keys, DV: tl.constexpr, VDIM: tl.constexpr,
                    OF: tl.constexpr):  # fmt: skip
    """Values as [value_dim, columns], and the size of what each column carries; of what is not asked for anything."""
    size = column.to(tl.float32)
    if OF == 1:
        size = tl.load(SIZES + map_id * keys + column, mask=column_ok, other=0.0)
    wide = tl.arange(0, VDIM)
    at = column.to(tl.int64)[:, None] * (v_row * 8) + wide[None, :]
    inside = column_ok[:, None] & (wide[None, :] < DV)
    return tl.trans(tl.load(V + at, mask=inside & (OF >= 2), other=0.0)), size


@triton.jit
def cells(
    q, k, g, v, lse2, rest, along, factor, size, row, place, begin, column, column_ok, first, limit, slope, table, bias,
    scale2, cap2, table_row, table_column, bias_row, bias_column,
    CAREFUL: tl.constexpr, OF: tl.constexpr, FACTORED: tl.constexpr, RESTED: tl.constexpr, STARTS: tl.constexpr,
    TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    V_PRECISION: tl.constexpr,
):  # fmt: skip
    """A reading of every cell of a tile, and their logarithms (base 2).

    What is hidden weighs exactly nothing, and all that it is multiplied by is finite: it is 0 without being asked for.
    """
    t = logs(q, k, lse2, row, place, begin, column, column_ok, first, limit, slope, table, bias, scale2, cap2,
             table_row, table_column, bias_row, bias_column,
             CAREFUL, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
    if RESTED:
        t = tl.where(t > HIDDEN / 2, t - rest[:, None], HIDDEN)
    x = tl.exp2(t)
    if OF == 1:
        x = x * size[None, :]
    if OF >= 2:
        carried = tl.dot(g, v, input_precision=V_PRECISION)
        if OF == 3:
            carried = carried - along[:, None]
        x = x * carried
    if FACTORED:
        x = x * factor[:, None]
    return x, t
