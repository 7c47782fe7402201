"""Readings of every cell on a GPU, summed up by key and by pixel, in one pass over the map by `reading_program`.

What a column has is added up by its program alone, in the order of the rows. What a pixel has comes from few programs:
it is the sum of two numbers at most, or added as whole numbers of 64 bits (fixed point), or a maximum: the same bits in
any order. The same pass leaves the largest cell of every row in each of many stretches of columns, some maps at a time,
for `reading_edges`.

Limits: as `look`; heads and values of up to 128 (`lens/gpu/readings.py` says why), values of the dtype of g; all
numbers finite. On each machine it is tried before it is used (`lens/gpu/reading_trial.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from sightline.kernels.launch import launch, on_its_device
from sightline.kernels.layout import (
    TAKEN,
    Band,
    Columns,
    Rows,
    Tiling,
    at_once,
    bands_of,
    descriptor,
    in_order,
    joined,
    one_axis,
    tiles_seen,
)
from sightline.kernels.reading_program import program
from sightline.kernels.readings import Reading
from sightline.kernels.row_stats import prepare

# Stretches of columns whose largest cells are kept, at most; and programs that fill a GPU about twice.
BINS, _PROGRAMS = 128, 512
# Rows of a picture whose queries and gradients are copied at a time, of as many maps as are done at once.
_ROWS = 1 << 15
# Bytes of what is kept of the stretches of one map; more where its queries have more.
_KEPT = 16 << 20


class Layout(NamedTuple):
    """How the rows and columns of a pass lie, with the pixels of a picture if it makes one."""

    rows: Rows
    columns: Columns
    tiling: Tiling  # of half a program's columns, as `layout` counts them
    parts: tuple[int, int] = (1, 1)  # of a pixel, down and across
    as_floats: bool = True  # no pixel is wider than two programs' columns
    seen: Tensor | None = None


class Bins(NamedTuple):
    """Stretches of columns, so many and so wide, and what is done with their largest cells, `[maps, bins, slots]`."""

    number: int
    width: int
    take: Callable[[int, Tensor], None]  # the first map, and the bits of the sizes: they order like these


def bins_for(n: int, queries: int, keys: int, bytes_of_row: int, tiling: Tiling) -> tuple[int, int]:
    """How many stretches of columns there are for the n strongest, and how wide: the more, the less is done again."""
    programs, most = triton.cdiv(keys, 2 * tiling.columns), BINS
    while most > max(16, 2 * n) and 4 * most * queries > max(_KEPT, bytes_of_row * queries):
        most //= 2
    parts = triton.cdiv(programs, most)
    return triton.cdiv(programs, parts), parts * 2 * tiling.columns


@on_its_device
def columns(
    q: Tensor,
    reading: Reading,
    want: frozenset[str],
    layout: Layout,
    weights: Tensor | None = None,
    largest: bool = False,
    bins: Bins | None = None,
) -> dict[str, Tensor]:
    """What keys have of a reading (`sum`, `magnitude`, `max`, as wanted), and the picture of its layout, `grid`.

    `weights` `[batch, heads, queries]` multiply each row. `largest`: the picture is of maxima. A picture of a part of
    the map goes alone.
    """
    batch, heads, queries, _ = q.shape
    rows, across, tiling = layout.rows, layout.columns, layout.tiling
    keys, device, maps = reading.rules.given["keys"], q.device, batch * heads
    width, pictured = 2 * tiling.columns, rows.edges is not None
    programs = triton.cdiv(across.length, width)
    seen = layout.seen
    if seen is None:
        seen = tiles_seen(reading.intervals, rows, across, tiling, keys - queries, False, device)
    pixel_sums, pixel_largest = pictured and not largest, pictured and largest
    signed = reading.signed or weights is not None

    def zeros(*size: int, wanted: bool, dtype: torch.dtype) -> Tensor | None:
        return torch.zeros(batch, heads, *size, dtype=dtype, device=device) if wanted else None

    sums, magnitudes = (zeros(keys, wanted=name in want, dtype=torch.float32) for name in ("sum", "magnitude"))
    above, below = (zeros(keys, wanted="max" in want and wanted, dtype=torch.int32) for wanted in (True, signed))
    of_sums = torch.float32 if layout.as_floats else torch.int64
    pixels = zeros(rows.bins, across.bins, wanted=pictured, dtype=of_sums if pixel_sums else torch.int32)
    pixels_below = zeros(rows.bins, across.bins, wanted=pixel_largest and signed, dtype=torch.int32)
    factors = _times(reading.factors, weights)
    given = reading.given | {
        "FACTORS": factors, "SEEN": seen, "COLUMN_PIXELS": across.pixels,
        "SUMS": sums, "MAGNITUDES": magnitudes, "ABOVE": above, "BELOW": below,
        "PIXELS": pixels, "PIXELS_BELOW": pixels_below, "seen_batch": 0 if seen.shape[0] == 1 else seen.stride(0),
        "bins": 1 if bins is None else bins.number,
        "bin_parts": 1 if bins is None else bins.width // width,
        "all_slots": rows.total, "row_start": rows.start, "row_length": rows.length,
        "row_bins": rows.bins, "tiles_per_chunk": rows.chunk(tiling.rows)[1],
        "column_start": across.start, "column_length": across.length, "column_bins": across.bins,
    }  # fmt: skip
    constants = {
        "BM": tiling.rows, "BN": width, "TAKEN": TAKEN, "FACTORED": factors is not None,
        "WANT_SUMS": sums is not None, "WANT_MAGNITUDES": magnitudes is not None, "WANT_LARGEST": above is not None,
        "WANT_BINS": bins is not None, "PIXEL_SUMS": pixel_sums, "PIXEL_LARGEST": pixel_largest,
        "SIGNED": signed, "AS_FLOATS": layout.as_floats, "PARTS": reading.parts,
    }  # fmt: skip
    flat = [one_axis(x) for x in (q, reading.grad) if x is not None]
    at_a_time = min(maps, max(1, min(at_once(x, rows) for x in flat) // len(flat)))
    strongest = None
    if bins is not None:
        at_a_time = min(at_a_time, triton.cdiv(_PROGRAMS, programs))
        strongest = torch.empty(min(at_a_time, maps), bins.number, rows.total, dtype=torch.int32, device=device)
    for first in range(0, maps, at_a_time):
        some = min(at_a_time, maps - first)
        if bins is not None and strongest is not None and bins.width > width:
            strongest.zero_()  # of a stretch of one program all that is read is written
        lse = reading.lse.view(1, maps, queries)[:, first : first + some]
        for band in [Band(0, rows.total)] if rows.order is None else bands_of(_ROWS, rows, tiling):
            parts = [in_order(x[first : first + some], rows, band) for x in flat]
            fetches = [descriptor(x, rows, tiling.rows, by_registers=True) for x in parts]
            every = given | {
                "L": prepare(lse, rows, band, 0, None)[0], "STRONGEST": strongest, "first_map": first,
                "ORDER": None if rows.order is None else rows.order[band.first :], "slots": band.slots,
                "first_slot": band.first, "Q": parts[0], "Q_TMA": fetches[0], "G": parts[-1], "G_TMA": fetches[-1],
                **_of_maps("q", parts[0]), **_of_maps("g", parts[-1]),
            }  # fmt: skip
            constants["TMA"] = fetches[0] is not None
            # The numbers of the call are asked for here, and first waited for: all else of the launch is there.
            launch(
                program,
                (some, programs),
                every | {"fixed": _fixed(reading, rows)},
                reading.constants | constants,
                num_warps=tiling.warps,
                num_stages=tiling.stages,
            )
            del every, parts, fetches  # before more is made
        if bins is not None and strongest is not None:
            bins.take(first, strongest[:some])
    found = {name: x for name, x in (("sum", sums), ("magnitude", magnitudes)) if x is not None}
    if above is not None:
        found["max"] = _larger(above, below)
    if pixels is not None:
        if largest:
            grid = _larger(pixels, pixels_below)
        else:
            # By a number of its own the dtype would be torch's default one, which may be a half.
            unit = torch.tensor(1 / _fixed(reading, rows), dtype=torch.float32, device="cpu")
            grid = pixels if layout.as_floats else pixels * unit
        found["grid"] = _joined(grid, layout.parts, largest)
    return found


def _larger(above: Tensor, below: Tensor | None) -> Tensor:
    """The larger one by magnitude, with its sign, from bits."""
    high = above.view(torch.float32)
    if below is None:
        return high
    low = below.view(torch.float32)
    return torch.where(high >= low, high, -low)


def _joined(grid: Tensor, parts: tuple[int, int], largest: bool) -> Tensor:
    """Pixels out of their parts; of parts with signs the largest by magnitude."""
    if parts == (1, 1):
        return grid
    if not largest:
        return joined(grid, *parts, largest=False)
    high, low = joined(grid, *parts, largest=True), joined(-grid, *parts, largest=True)
    return torch.where(high >= low, high, -low)


def _of_maps(name: str, x: Tensor) -> dict[str, int]:
    return {f"{name}_map": x.stride(0) // 8, f"{name}_row": x.stride(1) // 8}


def _times(factors: Tensor | None, weights: Tensor | None) -> Tensor | None:
    if factors is None or weights is None:
        return factors if weights is None else weights.float().contiguous()
    return (factors * weights.float()).contiguous()


def _fixed(reading: Reading, rows: Rows) -> float:
    """What a pixel's 1 is as a whole number: 62 bits hold the largest sum there can be."""
    above = int(np.frexp(max(reading.bound, 1e-30))[1])  # the power of 2 that is above the bound
    return 2.0 ** min(61 - max(rows.slots, 2).bit_length() - above, 120)
