"""Readings of every cell on a GPU, summed up by key and by pixel: a pass with two products a tile, q.k and g.v.

A program owns a block of columns, whose keys and values it holds, and walks over the rows that see them, a band after
the other. Of a picture, a band is one line of pixels, or, where these are lower than a tile, a tile of several. What a
column has is added up by its program alone, in the order of the rows. What a pixel has comes from several programs: it
is added as whole numbers of 64 bits (fixed point), or is a maximum: the same bits in any order.

Limits: as `look`; heads and values of up to 128 (`lens/gpu/readings.py` says why), values of the dtype of g; all
numbers finite. On each machine it is tried before it is used (`lens/gpu/reading_trial.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch, on_its_device
from sightline.kernels.map_tile import as_bfloat16, fold, fold_peaks, keys_of_block, rounded, upper
from sightline.kernels.reading_tile import cells, rows_of_tile, values_of_block
from sightline.kernels.readings import Reading, Tile

# Pixels across that are made at once.
_AT_ONCE = 16


@kernel(unaligned=("LSE", "REST", "ALONG", "SIZES", "FACTORS", "SLOPES", "TABLE_PTR", "BIAS_PTR"))
def _columns(
    Q, K, G, V, LSE, REST, ALONG, SIZES, FACTORS, FIRST, STOP, SLOPES, TABLE_PTR, BIAS_PTR,
    SEEN, BANDS, ROW_PIXELS, COLUMN_PIXELS, SUMS, MAGNITUDES, ABOVE, BELOW, PIXELS, PIXELS_BELOW,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    g_batch: tl.int64, g_head: tl.int64, g_row: tl.int64, v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    interval_batch: tl.int64, seen_batch: tl.int64,
    table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64, table_column: tl.int64,
    bias_batch: tl.int64, bias_head: tl.int64, bias_row: tl.int64, bias_column: tl.int64,
    heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32, scale2: tl.float32, cap2: tl.float32,
    row_start: tl.int32, column_start: tl.int32, column_stop: tl.int32, row_bins: tl.int32, column_bins: tl.int32,
    fixed: tl.float32,
    D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, VDIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    OF: tl.constexpr, FACTORED: tl.constexpr, STARTS: tl.constexpr, INTERVALS: tl.constexpr, TABLE: tl.constexpr,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    V_PRECISION: tl.constexpr, WANT_SUMS: tl.constexpr, WANT_MAGNITUDES: tl.constexpr, WANT_LARGEST: tl.constexpr,
    PIXEL_SUMS: tl.constexpr, PIXEL_LARGEST: tl.constexpr, SIGNED: tl.constexpr, TALL: tl.constexpr,
    PARTS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BM // 2
    pictured: tl.constexpr = PIXEL_SUMS or PIXEL_LARGEST
    # All maps' first columns come first: under a causal mask they are the longest work.
    map_id, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = map_id // heads, map_id % heads
    begin = column_start + block * BN
    column = begin + tl.arange(0, BN)
    column_ok = column < column_stop
    k = keys_of_block(K + b * (k_batch * 8) + (h // groups) * (k_head * 8), column, column_ok, k_row, D, DIM)
    values = V + b * (v_batch * 8) + (h // groups) * (v_head * 8)
    v, size = values_of_block(values, SIZES, map_id, column, column_ok, v_row, keys, DV, VDIM, OF)
    slope = 0.0
    if ALIBI:
        slope = tl.load(SLOPES + h) * 1.4426950408889634
    table = TABLE_PTR + b * table_batch + h * table_head
    bias = BIAS_PTR + b * bias_batch + h * bias_head
    seen = SEEN + b * seen_batch + block * 4
    first_row, last_row, first_band, last_band = tl.load(seen), tl.load(seen + 1), tl.load(seen + 2), tl.load(seen + 3)
    first_pixel, last_pixel, pixel = 0, 0, column
    if pictured:
        pixel = tl.load(COLUMN_PIXELS + (column - column_start), mask=column_ok, other=-1)
        first_pixel = tl.load(COLUMN_PIXELS + block * BN)
        last_pixel = tl.load(COLUMN_PIXELS + tl.minimum((block + 1) * BN, column_stop - column_start) - 1) + 1
    of_map = map_id * row_bins * column_bins
    sums, magnitudes = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
    above, below = tl.zeros([HALF, BN], tl.float32), tl.zeros([HALF, BN], tl.float32)
    r = tl.arange(0, BM)
    for band in tl.range(first_band, last_band):
        start = tl.maximum(tl.load(BANDS + band), first_row)
        stop = tl.minimum(tl.load(BANDS + band + 1), last_row)
        high, low = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
        for tile in tl.range(start, stop, BM):
            row = tile + r
            q, g, lse2, rest, along, factor, first, limit = rows_of_tile(
                Q, G, LSE, REST, ALONG, FACTORS, FIRST, STOP, b, h, map_id, row, stop, column_stop,
                q_batch, q_head, q_row, g_batch, g_head, g_row, interval_batch, queries,
                D, DIM, DV, VDIM, OF, FACTORED, STARTS, INTERVALS)  # fmt: skip
            x, _ = cells(q, k, g, v, lse2, rest, along, factor, size, row, begin, column, column_ok, first, limit,
                         slope, table, bias, scale2, cap2, table_row, table_column, bias_row, bias_column,
                         queries, keys, OF, FACTORED, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION,
                         V_PRECISION)  # fmt: skip
            if WANT_SUMS:
                sums += fold(x, BM, BN)
            if WANT_MAGNITUDES:
                magnitudes += fold(tl.abs(x), BM, BN)
            if WANT_LARGEST:
                above = tl.maximum(above, fold_peaks(x, BM, BN))
                below = tl.maximum(below, fold_peaks(-x, BM, BN))
            if PIXEL_SUMS:
                high += x
            if PIXEL_LARGEST:
                high = tl.maximum(high, x)
                if SIGNED:
                    low = tl.maximum(low, -x)
        if pictured and start < stop:
            # Of a low line of pixels the tile has one row in each of its own rows; of a high one all are of one pixel.
            row_pixel = tl.load(ROW_PIXELS + (start - row_start) + r, mask=start + r < stop, other=-1)
            first_line = tl.load(ROW_PIXELS + (start - row_start))
            last_line = tl.load(ROW_PIXELS + (stop - row_start) - 1) + 1
            if PIXEL_SUMS:
                for part in tl.range(first_pixel, last_pixel, AT_ONCE):
                    beside = part + tl.arange(0, AT_ONCE)
                    found = _across(high, pixel, beside, PARTS)
                    for line in tl.range(first_line, last_line):
                        mine = r >= 0 if TALL else row_pixel == line
                        z = tl.sum(tl.where(mine[:, None], found, 0.0), 0)
                        to = PIXELS + of_map + line * column_bins + beside
                        ok = (beside < last_pixel) & (z != 0)
                        tl.atomic_add(to, (z * fixed).to(tl.int64), mask=ok, sem="relaxed")
            if PIXEL_LARGEST:
                for part in tl.range(first_pixel, last_pixel):
                    inside = (pixel == part)[None, :]
                    most = tl.max(tl.where(inside, high, 0.0), 1)
                    least = most
                    if SIGNED:
                        least = tl.max(tl.where(inside, low, 0.0), 1)
                    for line in tl.range(first_line, last_line):
                        mine = r >= 0 if TALL else row_pixel == line
                        to = of_map + line * column_bins + part + tl.arange(0, 1)
                        _raise(PIXELS + to, most, mine)
                        if SIGNED:
                            _raise(PIXELS_BELOW + to, least, mine)
    to = map_id * keys + column
    if WANT_SUMS:
        tl.store(SUMS + to, tl.sum(sums, 0), mask=column_ok)
    if WANT_MAGNITUDES:
        tl.store(MAGNITUDES + to, tl.sum(magnitudes, 0), mask=column_ok)
    if WANT_LARGEST:
        tl.store(ABOVE + to, tl.max(above, 0), mask=column_ok)
        tl.store(BELOW + to, tl.max(below, 0), mask=column_ok)


@triton.jit
def _across(x, pixel, beside, PARTS: tl.constexpr):
    """Sums over the columns of some pixels: a product with ones where a column is of a pixel; see `map_tile.pooled`."""
    ones = pixel[:, None] == beside[None, :]
    if PARTS == 0:
        return tl.dot(x, ones.to(tl.float32), input_precision="ieee")
    else:
        ones = ones.to(tl.bfloat16)
        high = upper(x)
        found = tl.dot(as_bfloat16(high), ones)
        rest = x - high
        if PARTS == 3:
            high = upper(rest)
            found = tl.dot(as_bfloat16(high), ones, acc=found)
            rest = rest - high
        return tl.dot(as_bfloat16(rounded(rest)), ones, acc=found)


@triton.jit
def _raise(to, x, mine):
    """Raise a pixel to the largest of some numbers that are at least 0: these order like their bits."""
    most = tl.max(tl.where(mine, x, 0.0), 0, keep_dims=True)
    bits = most.to(tl.int32, bitcast=True)
    tl.atomic_max(to, bits, mask=bits > 0, sem="relaxed")


class Grid(NamedTuple):
    """A picture: where its pixels begin and end, down and across; of maxima or of sums."""

    down: np.ndarray
    across: np.ndarray
    largest: bool


class Bands(NamedTuple):
    """The rows of a pass in the stretches that a program takes one after the other."""

    edges: np.ndarray
    tall: bool  # whether each is one line of pixels


@on_its_device
def columns(
    q: Tensor,
    reading: Reading,
    want: frozenset[str],
    weights: Tensor | None = None,
    grid: Grid | None = None,
    bound: float = 1.0,
) -> dict[str, Tensor]:
    """What keys have of a reading (`sum`, `magnitude`, `max`, as wanted), and the sums or maxima of pixels, `grid`.

    `weights` `[batch, heads, queries]` multiply each row. `bound` is what the cells of one row sum up to at most, all
    taken without their signs. A picture of a part of the map goes alone.
    """
    batch, heads, queries, _ = q.shape
    keys, tile, device = reading.rules.given["keys"], reading.tile, q.device
    rows, across = (0, queries), (0, keys)
    if grid is not None:
        rows, across = (int(grid.down[0]), int(grid.down[-1])), (int(grid.across[0]), int(grid.across[-1]))
    bands = _bands(grid, rows, tile)
    seen = _seen(reading.intervals, bands, rows, across, tile, device)
    found: dict[str, Tensor] = {}

    def zeros(dtype: torch.dtype = torch.float32) -> Tensor:
        assert grid is not None
        return torch.zeros(batch, heads, len(grid.down) - 1, len(grid.across) - 1, dtype=dtype, device=device)

    def empty(name: str) -> Tensor | None:
        return torch.empty(batch, heads, keys, dtype=torch.float32, device=device) if name in want else None

    sums, magnitudes, above, below = empty("sum"), empty("magnitude"), empty("max"), empty("max")
    pixels = pixels_below = None
    if grid is not None:
        pixels = zeros(torch.int32 if grid.largest else torch.int64)
        pixels_below = zeros(torch.int32) if grid.largest and reading.signed else None
    # As many bits behind the point as 62 leave for the largest sum there can be.
    highest = 1 if grid is None else int(np.diff(grid.down).max())
    power = min(61 - max(highest, 2).bit_length() - _exponent(bound), 120)
    factors = _times(reading.factors, weights)
    given = reading.given | {
        "FACTORS": factors, "SEEN": seen, "BANDS": _put(bands.edges, device),
        "ROW_PIXELS": None if grid is None else _put(_pixels(grid.down), device),
        "COLUMN_PIXELS": None if grid is None else _put(_pixels(grid.across), device),
        "SUMS": sums, "MAGNITUDES": magnitudes, "ABOVE": above, "BELOW": below,
        "PIXELS": pixels, "PIXELS_BELOW": pixels_below, "seen_batch": 0 if seen.shape[0] == 1 else seen.stride(0),
        "row_start": rows[0], "column_start": across[0], "column_stop": across[1],
        "row_bins": 0 if grid is None else len(grid.down) - 1,
        "column_bins": 0 if grid is None else len(grid.across) - 1, "fixed": 2.0**power,
    }  # fmt: skip
    constants = reading.constants | {
        "FACTORED": factors is not None, "WANT_SUMS": "sum" in want, "WANT_MAGNITUDES": "magnitude" in want,
        "WANT_LARGEST": "max" in want, "PIXEL_SUMS": grid is not None and not grid.largest,
        "PIXEL_LARGEST": grid is not None and grid.largest, "SIGNED": reading.signed, "TALL": bands.tall,
        "PARTS": reading.parts, "AT_ONCE": _AT_ONCE,
    }  # fmt: skip
    programs = triton.cdiv(across[1] - across[0], tile.columns)
    launch(_columns, (batch * heads, programs), given, constants, num_warps=tile.warps, num_stages=tile.stages)
    found |= {name: x for name, x in (("sum", sums), ("magnitude", magnitudes)) if x is not None}
    if above is not None and below is not None:
        found["max"] = torch.where(above >= below, above, -below)
    if pixels is not None and grid is not None:
        if not grid.largest:
            unit = torch.tensor(2.0**-power, dtype=torch.float32, device="cpu")
            found["grid"] = pixels * unit
        else:
            most = pixels.view(torch.float32)
            least = None if pixels_below is None else pixels_below.view(torch.float32)
            found["grid"] = most if least is None else torch.where(most >= least, most, -least)
    return found


def _bands(grid: Grid | None, rows: tuple[int, int], tile: Tile) -> Bands:
    """All rows at once; of a picture its lines of pixels, or tiles where these are lower."""
    if grid is None:
        return Bands(np.array(rows), False)
    if int(np.diff(grid.down).min()) >= tile.rows:
        return Bands(grid.down, True)
    return Bands(np.append(np.arange(rows[0], rows[1], tile.rows), rows[1]), False)


def _seen(
    intervals: tuple[Tensor, Tensor] | None,
    bands: Bands,
    rows: tuple[int, int],
    across: tuple[int, int],
    tile: Tile,
    device: torch.device,
) -> Tensor:
    """For each block of columns the rows that see any of it, and the bands these lie in: first and end."""
    low = torch.arange(across[0], across[1], tile.columns, device=device)
    high = (low + tile.columns).clamp_max(across[1])
    if intervals is None:
        both = torch.tensor(rows, device=device).repeat(1, len(low), 1)
    else:
        first, stop = (x.long() for x in intervals)
        lows, highs = (x.expand(first.shape[0], -1).contiguous() for x in (low, high))
        both = torch.stack([torch.searchsorted(stop, lows, right=True), torch.searchsorted(first, highs)], -1)
    both = both.clamp(*rows)
    edges = torch.from_numpy(bands.edges).to(device, torch.int64)
    begin = torch.searchsorted(edges, both[..., 0].contiguous(), right=True) - 1
    end = torch.searchsorted(edges, both[..., 1].contiguous())
    # Where nobody sees anything the end lies before the beginning.
    begin, end = begin.clamp(0, len(bands.edges) - 1), end.clamp(0, len(bands.edges) - 1)
    return torch.stack([both[..., 0], both[..., 1], begin, end], -1).to(torch.int32).contiguous()


def _pixels(edges: np.ndarray) -> np.ndarray:
    """The pixel of every cell."""
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges))


def _put(x: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device, torch.int32)


def _times(factors: Tensor | None, weights: Tensor | None) -> Tensor | None:
    if factors is None or weights is None:
        return factors if weights is None else weights.float().contiguous()
    return (factors * weights.float()).contiguous()


def _exponent(bound: float) -> int:
    """The power of 2 that is above a number."""
    return int(np.frexp(max(bound, 1e-30))[1])
