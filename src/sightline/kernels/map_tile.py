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
def keys_of_block(K, column, column_ok, k_row, D: tl.constexpr, DIM: tl.constexpr):
    """Keys as [dim, columns]: transposed outside the loops, so that they are put into shared memory once.

    Steps of memory are given in eights, so that the compiler knows that whole pieces of 16 bytes can be read.
    """
    dims = tl.arange(0, DIM)
    at = column.to(tl.int64)[:, None] * (k_row * 8) + dims[None, :]
    return tl.trans(tl.load(K + at, mask=column_ok[:, None] & (dims[None, :] < D), other=0.0))


@triton.jit
def logs(
    q, k, lse2, row, place, begin, column, column_ok, first, limit, slope, table, bias, scale2, cap2,
    table_row, table_column, bias_row, bias_column,
    CAREFUL: tl.constexpr, STARTS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The logarithm (base 2) of each weight of a tile.

    The columns begin at `begin`. With CAREFUL those from `limit` on are hidden from each row, and with STARTS those
    before `first`; a row that is none has an lse2 that leaves nothing of it.

    A table and a bias come in as what the product is added to: so they are brought into the layout of the product, and
    not the product into theirs, for which the sums that follow are not made (Triton 3.6 even computes some wrongly).
    """
    s = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    if BIAS:
        at = row.to(tl.int64)[:, None] * bias_row + column.to(tl.int64)[None, :] * bias_column
        s = tl.load(bias + at, mask=column_ok[None, :], other=0.0).to(tl.float32)
        s = s * (1.4426950408889634 / scale2)
    if TABLE:
        at = row.to(tl.int64)[:, None] * table_row + column.to(tl.int64)[None, :] * table_column
        s = tl.where(tl.load(table + at, mask=column_ok[None, :], other=0) != 0, s, HIDDEN)
    s = tl.dot(q, k, acc=s, input_precision=PRECISION)
    if SOFTCAP:
        t = cap2 * (1 - 2 / (1 + tl.exp2(s * (scale2 / cap2) * 2.8853900817779268))) - lse2[:, None]
    else:
        t = s * scale2 - lse2[:, None]
    if ALIBI:
        t -= slope * tl.abs((place[:, None] - column[None, :]).to(tl.float32))
    if BIAS:
        t = tl.maximum(t, HIDDEN)
    if TABLE:
        t = tl.where(s > HIDDEN / 2, t, HIDDEN)
    if CAREFUL:
        # Columns of a thread are constants to the compiler, behind where the block begins.
        inner = tl.arange(0, column.shape[0])[None, :]
        t = tl.where(inner < (limit - begin)[:, None], t, HIDDEN)
        if STARTS:
            t = tl.where(inner >= (first - begin)[:, None], t, HIDDEN)
    return t


@triton.jit
def by_thread(x, BM: tl.constexpr, BN: tl.constexpr):
    """A tile as [rows, the four threads of a row, columns of a thread]."""
    x = tl.permute(tl.reshape(x, [BM, BN // 8, 4, 2]), (0, 2, 1, 3))
    return tl.reshape(x, [BM, 4, BN // 4])


@triton.jit
def away(p, parts, place, column, first_column, AT_ONE_SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of weight * |place - column| of a tile, [BM, 4]."""
    if AT_ONE_SIDE:
        # |place - column| is a difference then. The offsets of a thread's columns are constants to the compiler.
        n = tl.arange(0, BN // 4)
        inner = tl.sum(by_thread(p, BM, BN) * (n // 2 * 8 + n % 2).to(tl.float32)[None, None, :], 2)
        near = (place - first_column).to(tl.float32)[:, None] - tl.arange(0, 4).to(tl.float32)[None, :] * 2
        return near * parts - inner
    else:
        far = tl.abs((place[:, None] - column[None, :]).to(tl.float32))
        return tl.sum(by_thread(p * far, BM, BN), 2)


@triton.jit
def fold(p, BM: tl.constexpr, BN: tl.constexpr):
    """The two halves of 16 rows lie in the same thread: adding them first halves what has to be kept."""
    return tl.sum(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(BM // 2, BN)


@triton.jit
def fold_peaks(p, BM: tl.constexpr, BN: tl.constexpr):
    return tl.max(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(BM // 2, BN)


@triton.jit
def pooled(acc_0, acc_1, pixel_0, pixel_1, first_pixel, AT_ONCE: tl.constexpr, PARTS: tl.constexpr):
    """Sums over the columns of some pixels, from `first_pixel` on: a product with ones where a column is of a pixel.

    A number is the sum of two or three that bfloat16 holds exactly, the last one rounded; so is the product. The
    interpreter has no bfloat16: there the numbers are taken as they are, with no PARTS.
    """
    pixel = (first_pixel + tl.arange(0, AT_ONCE))[None, :]
    ones_0, ones_1 = pixel_0[:, None] == pixel, pixel_1[:, None] == pixel
    if PARTS == 0:
        found = tl.dot(acc_0, ones_0.to(tl.float32), input_precision="ieee")
        return tl.dot(acc_1, ones_1.to(tl.float32), acc=found, input_precision="ieee")
    else:
        ones_0, ones_1 = ones_0.to(tl.bfloat16), ones_1.to(tl.bfloat16)
        high_0, high_1 = upper(acc_0), upper(acc_1)
        high = tl.dot(as_bfloat16(high_1), ones_1, acc=tl.dot(as_bfloat16(high_0), ones_0))
        rest_0, rest_1 = acc_0 - high_0, acc_1 - high_1
        if PARTS == 3:
            high_0, high_1 = upper(rest_0), upper(rest_1)
            high += tl.dot(as_bfloat16(high_1), ones_1, acc=tl.dot(as_bfloat16(high_0), ones_0))
            rest_0, rest_1 = rest_0 - high_0, rest_1 - high_1
        low = tl.dot(as_bfloat16(rounded(rest_0)), ones_0)
        return high + tl.dot(as_bfloat16(rounded(rest_1)), ones_1, acc=low)


@triton.jit
def upper(x):
    """The part of a number that the upper half of its bits holds."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def rounded(x):
    """A number whose upper half is the nearest one."""
    return (x.to(tl.int32, bitcast=True) + 32768).to(tl.float32, bitcast=True)


@triton.jit
def as_bfloat16(x):
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def add_up(to, found, AS_FLOATS: tl.constexpr, unit, fixed, ok):
    """Add to pixels in memory: of at most two numbers as they are, of more as whole numbers: the same in any order."""
    ok = ok & (found != 0)
    if AS_FLOATS:
        tl.atomic_add(to, found * unit, mask=ok, sem="relaxed")
    else:
        tl.atomic_add(to, (found * fixed).to(tl.int64), mask=ok, sem="relaxed")


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
