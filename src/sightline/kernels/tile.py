"""What kernels do with one tile of the map: its keys, its weights, and sums that stay inside a thread.

After a matrix product on tensor cores, a thread holds columns 2 l and 2 l + 1 of every eight, l = 0 to 3, of rows r and
r + 8 of every sixteen. Sums over those are additions inside a thread; sums over l are exchanges between four threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Stands for -inf in sums of weight * log(weight), where 0 * -inf would be NaN.
HIDDEN = tl.constexpr(-1.0e30)


@triton.jit
def cells(slot, edges, start, slots, pixel, EDGES: tl.constexpr):
    """The cell of each slot, and whether there is one."""
    if EDGES:
        inside = slot < slots
        first = tl.load(edges + slot // pixel, mask=inside, other=0)
        last = tl.load(edges + slot // pixel + 1, mask=inside, other=0)
        cell = first + slot % pixel
        return cell, inside & (cell < last)
    else:
        return start + slot, slot < slots


@triton.jit
def keys_of_block(K, column, column_ok, k_row, k_dim, D: tl.constexpr, DIM: tl.constexpr):
    """Keys as [dim, columns]: transposed outside the loops, so that they are put into shared memory once."""
    dims = tl.arange(0, DIM)
    at = column.to(tl.int64)[:, None] * k_row + dims[None, :] * k_dim
    return tl.trans(tl.load(K + at, mask=column_ok[:, None] & (dims[None, :] < D), other=0.0))


@triton.jit
def logs(
    q, k, lse2, row, row_ok, place, column, column_ok, first, stop, slope, table, bias, scale2, cap2,
    table_row, table_column, bias_row, bias_column,
    CAREFUL: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The logarithm (base 2) of each weight of a tile.

    A table and a bias come in as what the product is added to: so they are brought into the layout of the product, and
    not the product into theirs, for which the sums that follow are not made (Triton 3.6 even computes some wrongly).
    """
    s = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    if BIAS:
        at = row.to(tl.int64)[:, None] * bias_row + column.to(tl.int64)[None, :] * bias_column
        s = tl.load(bias + at, mask=row_ok[:, None] & column_ok[None, :], other=0.0).to(tl.float32)
        s = s * (1.4426950408889634 / scale2)
    if TABLE:
        at = row.to(tl.int64)[:, None] * table_row + column.to(tl.int64)[None, :] * table_column
        s = tl.where(tl.load(table + at, mask=row_ok[:, None] & column_ok[None, :], other=0) != 0, s, HIDDEN)
    s = tl.dot(q, k, acc=s, input_precision=PRECISION)
    if SOFTCAP:
        t = cap2 * (1 - 2 / (1 + tl.exp2(s * (scale2 / cap2) * 2.8853900817779268))) - lse2[:, None]
    else:
        t = s * scale2 - lse2[:, None]
    if ALIBI:
        t -= slope * tl.abs((place[:, None] - column[None, :]).to(tl.float32))
    if BIAS:
        t = tl.maximum(t, HIDDEN)
    if CAREFUL:
        ok = row_ok[:, None] & column_ok[None, :]
        if INTERVALS:
            ok = ok & (column[None, :] < stop[:, None])
        if STARTS:
            ok = ok & (column[None, :] >= first[:, None])
        if TABLE:
            ok = ok & (s > HIDDEN / 2)
        t = tl.where(ok, t, HIDDEN)
    return t


@triton.jit
def by_thread(x, BM: tl.constexpr, BN: tl.constexpr, GC: tl.constexpr):
    """A tile as [rows, groups of columns, the four threads of a row, columns of a thread]."""
    x = tl.permute(tl.reshape(x, [BM, BN // GC, GC // 8, 4, 2]), (0, 1, 3, 2, 4))
    return tl.reshape(x, [BM, BN // GC, 4, GC // 4])


@triton.jit
def away(
    p, parts, place, column, first_column, AT_ONE_SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GC: tl.constexpr,
):  # fmt: skip
    """Sums of weight * |place - column| of a tile, [BM, 4]."""
    if AT_ONE_SIDE:
        # |place - column| is a difference then. The offsets of a thread's columns are constants to the compiler.
        n = tl.arange(0, GC // 4)
        inner = tl.sum(by_thread(p, BM, BN, GC) * (n // 2 * 8 + n % 2).to(tl.float32)[None, None, None, :], 3)
        near = (place - first_column).to(tl.float32)[:, None] - tl.arange(0, 4).to(tl.float32)[None, :] * 2
        group = (tl.arange(0, BN // GC) * GC).to(tl.float32)[None, :, None]
        return near * tl.sum(parts, 1) - tl.sum(parts * group + inner, 1)
    else:
        far = tl.abs((place[:, None] - column[None, :]).to(tl.float32))
        return tl.sum(tl.sum(by_thread(p * far, BM, BN, GC), 3), 1)


@triton.jit
def fold(p, BM: tl.constexpr, BN: tl.constexpr):
    """The two halves of 16 rows lie in the same thread: adding them first halves what has to be kept."""
    return tl.sum(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(BM // 2, BN)


@triton.jit
def fold_parts(parts, BM: tl.constexpr, G: tl.constexpr):
    return tl.sum(tl.reshape(parts, [BM // 16, 2, 8, G, 4]), 1).reshape(BM // 2, G, 4)


@triton.jit
def fold_peaks(peaks, BM: tl.constexpr, G: tl.constexpr):
    return tl.max(tl.reshape(peaks, [BM // 16, 2, 8, G, 4]), 1).reshape(BM // 2, G, 4)


@triton.jit
def kept(x, factor, SINKS: tl.constexpr):
    """What sinks leave of the sums or maxima of each row, [rows, groups, threads]."""
    if SINKS:
        return x * factor[:, None, None]
    else:
        return x


@triton.jit
def tile_at(step, above, across, begin, second, third, FIRST_PHASE: tl.constexpr):
    """The tile of a step: from `begin` on, then from `second` on, then from `third` on."""
    if FIRST_PHASE:
        tile = tl.where(step < above, begin + step, second + (step - above))
        return tl.where(step < above + across, tile, third + (step - above - across))
    else:
        return tl.where(step < above, begin + step, second + (step - above))


@triton.jit
def spread(i, total, program):
    """The order of steps: every program goes through eight at a time in an order of its own.

    Else all programs of a map would add to the sums of the same rows at the same moment, and wait for each other.
    """
    start = i // 8 * 8
    return tl.where(start + 8 <= total, start + (i + program) % 8, i)


@triton.jit
def in_order(x, MIXED: tl.constexpr, BM: tl.constexpr, TAKEN: tl.constexpr):
    """What was found for each row of a tile, in the order of the rows: TAKEN rows of a pixel after one another.

    Then they fill whole sectors of memory. In a tile the first row of eight pixels comes first, then their second one.
    """
    if MIXED:
        return tl.permute(tl.reshape(x, [BM // (8 * TAKEN), TAKEN, 8]), (0, 2, 1)).reshape(BM)
    else:
        return x


@triton.jit
def in_order_2(x, MIXED: tl.constexpr, BM: tl.constexpr, TAKEN: tl.constexpr):
    """The same for two numbers of each row."""
    if MIXED:
        return tl.permute(tl.reshape(x, [BM // (8 * TAKEN), TAKEN, 8, 2]), (0, 2, 1, 3)).reshape(BM, 2)
    else:
        return x
