"""What kernels do with one tile of the map: its keys, its weights, and sums that stay inside a thread.

After a matrix product on tensor cores, a thread holds columns 2 l and 2 l + 1 of every eight, l = 0 to 3, of rows r and
r + 8 of every sixteen. Sums over those are additions inside a thread; sums over l are exchanges between four threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Stands for -inf in sums of weight * log(weight), where 0 * -inf would be NaN.
HIDDEN = tl.constexpr(-1.0e30)
# Rows of the axis that a tile of queries has more where it goes by registers (`layout.descriptor`).
FOLDED = tl.constexpr(32)


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
def away(p, parts, place, first_column, AT_ONE_SIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of weight * |place - column| of a tile whose columns begin at `first_column`, [BM, 4]."""
    # The offsets of a thread's columns are constants to the compiler.
    n = tl.arange(0, BN // 4)
    inner = n // 2 * 8 + n % 2
    near = (place - first_column)[:, None] - tl.arange(0, 4)[None, :] * 2
    if AT_ONE_SIDE:
        # |place - column| is a difference then.
        return near.to(tl.float32) * parts - tl.sum(by_thread(p, BM, BN) * inner.to(tl.float32)[None, None, :], 2)
    else:
        far = tl.abs((near[:, :, None] - inner[None, None, :]).to(tl.float32))
        return tl.sum(by_thread(p, BM, BN) * far, 2)


@triton.jit
def fold(p, BM: tl.constexpr, BN: tl.constexpr):
    """The two halves of 16 rows lie in the same thread: adding them first halves what has to be kept."""
    return tl.sum(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(BM // 2, BN)


@triton.jit
def fold_peaks(p, BM: tl.constexpr, BN: tl.constexpr):
    return tl.max(tl.reshape(p, [BM // 16, 2, 8, BN]), 1).reshape(BM // 2, BN)


@triton.jit
def pooled(found, acc, pixel, first_pixel, AT_ONCE: tl.constexpr, PARTS: tl.constexpr):
    """Sums over the columns of some pixels, from `first_pixel` on: a product with ones where a column is of a pixel.

    A number is the sum of two or three that bfloat16 holds exactly, the last one rounded; so is the product. Two parts
    of eight rows take the places of the sixteen rows that a warp has of a tile: so they are multiplied where they are.
    The interpreter has no bfloat16: there the numbers are taken as they are, with no PARTS.
    """
    ones = pixel[:, None] == (first_pixel + tl.arange(0, AT_ONCE))[None, :]
    if PARTS == 0:
        return tl.dot(acc, ones.to(tl.float32), acc=found, input_precision="ieee")
    elif PARTS == 2:
        return tl.dot(two_parts(acc), ones.to(tl.bfloat16), acc=found)
    else:
        ones = ones.to(tl.bfloat16)
        high = upper(acc)
        found = tl.dot(as_bfloat16(high), ones, acc=found)
        rest = acc - high
        high = upper(rest)
        found = tl.dot(as_bfloat16(high), ones, acc=found)
        return tl.dot(as_bfloat16(rounded(rest - high)), ones, acc=found)


@triton.jit
def two_parts(x):
    """Of every eight rows the upper parts of their numbers, then what is left of them."""
    rows: tl.constexpr = x.shape[0]
    columns: tl.constexpr = x.shape[1]
    high = upper(x)
    both = tl.join(as_bfloat16(high), as_bfloat16(rounded(x - high)))
    both = tl.permute(tl.reshape(both, [rows // 8, 8, columns, 2]), (0, 3, 1, 2))
    return tl.reshape(both, [2 * rows, columns])


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
def add_up(to, found, AS_FLOATS: tl.constexpr, unit, fixed, ok, DIRECT: tl.constexpr = False):
    """Add to pixels in memory: of at most two numbers as they are, of more as whole numbers: the same in any order."""
    ok = ok & (found != 0)
    if AS_FLOATS:
        add_float(to, found * unit, ok, DIRECT)
    else:
        add_whole(to, (found * fixed).to(tl.int64), ok, DIRECT)


@triton.jit
def tile_at(step, above, across, begin, second, third, FIRST_PHASE: tl.constexpr):
    """The tile of a step: from `begin` on, then from `second` on, then from `third` on."""
    if FIRST_PHASE:
        tile = tl.where(step < above, begin + step, second + (step - above))
        return tl.where(step < above + across, tile, third + (step - above - across))
    else:
        return tl.where(step < above, begin + step, second + (step - above))


@triton.jit
def within(seen, first, number):
    """A tile that the memory names, counted from the first one of so many."""
    return tl.minimum(tl.maximum(tl.load(seen) - first, 0), number)


@triton.jit
def spread(i, total, program):
    """The order of steps: every program goes through eight at a time in an order of its own.

    Else all programs of a map would add to the sums of the same rows at the same moment, and wait for each other.
    """
    start = i // 8 * 8
    return tl.where(start + 8 <= total, start + (i + program) % 8, i)


@triton.jit
def halves(x, BM: tl.constexpr, BN: tl.constexpr):
    """The left and the right half of a tile."""
    return tl.split(tl.permute(tl.reshape(x, [BM, 2, BN // 2]), (0, 2, 1)))


@triton.jit
def two(a, b):
    """Two tiles as one, side by side."""
    rows: tl.constexpr = a.shape[0]
    columns: tl.constexpr = a.shape[1]
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), [rows, 2 * columns])


@triton.jit
def four(a, b, c, d):
    """Four tiles as one, side by side."""
    rows: tl.constexpr = a.shape[0]
    columns: tl.constexpr = a.shape[1]
    whole = tl.permute(tl.join(tl.join(a, b), tl.join(c, d)), (0, 3, 2, 1))
    return tl.reshape(whole, [rows, 4 * columns])


@triton.jit
def taken_in(
    t, acc, nearest, chaos, far, total, w, place, first_column,
    LARGEST: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, TOTAL: tl.constexpr,
    WEIGHTED: tl.constexpr, ADDED: tl.constexpr, MAXIMA: tl.constexpr, AT_ONE_SIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """What has been found of columns and rows so far, with a tile more, of which there are the logarithms.

    Of wide tiles one half after the other, so that not all logarithms and weights are there at the same time: there are
    no registers for both, and what is put aside into memory in between costs more than what is computed.
    """
    p = tl.exp2(t)
    if LARGEST:
        nearest = tl.maximum(nearest, tl.max(by_thread(t, BM, BN), 2))
    if ENTROPY:
        chaos += tl.sum(by_thread(p * t, BM, BN), 2)
    if DISTANCE or TOTAL:
        parts = tl.sum(by_thread(p, BM, BN), 2)
        if DISTANCE:
            far += away(p, parts, place, first_column, AT_ONE_SIDE, BM, BN)
        if TOTAL:
            total += parts
    if WEIGHTED:
        p = p * w[:, None]
    if ADDED:
        acc += fold(p, BM, BN)
    if MAXIMA:
        acc = tl.maximum(acc, fold_peaks(p, BM, BN))
    return acc, nearest, chaos, far, total


@triton.jit
def add_whole(to, x, ok, DIRECT: tl.constexpr):
    """Add whole numbers of 64 bits to memory.

    DIRECT adds from the threads that have them. By `tl.atomic_add` they first take an order of their own, by way of
    shared memory and two barriers: in a loop that costs more than all sums.
    """
    if DIRECT:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p red.relaxed.gpu.global.add.u64 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,l,r", [to.to(tl.int64), x, ok.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.atomic_add(to, x, mask=ok, sem="relaxed")


@triton.jit
def add_float(to, x, ok, DIRECT: tl.constexpr):
    """The same for numbers of 32 bits."""
    if DIRECT:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p red.relaxed.gpu.global.add.f32 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,f,r", [to.to(tl.int64), x, ok.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.atomic_add(to, x, mask=ok, sem="relaxed")


@triton.jit
def lower(to, x, ok, DIRECT: tl.constexpr):
    """Lower what is in memory to whole numbers of 32 bits."""
    if DIRECT:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p red.relaxed.gpu.global.min.s32 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,r,r", [to.to(tl.int64), x, ok.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.atomic_min(to, x, mask=ok, sem="relaxed")


@triton.jit
def put(to, x, ok, DIRECT: tl.constexpr):
    """Store whole numbers of 32 bits."""
    if DIRECT:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.b32 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,r,r", [to.to(tl.int64), x, ok.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(to, x, mask=ok)
