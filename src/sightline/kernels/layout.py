"""How a pass over the map is laid out: its rows and columns, their pixels, and which tiles see which columns."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor


class Slots(NamedTuple):
    """One axis of the pass: the cells it covers, and its pixels. `edges` is None where slot and cell are the same."""

    start: int
    length: int
    bins: int
    pixel: int  # slots of a pixel
    edges: Tensor | None = None
    group: int = 64  # columns that are pooled at once: a power of two from 8 on that divides the pixel
    apart: int = 1  # of how many pixels a tile takes rows at once
    per: int = 1
    of: int = 1  # pixel p begins at cell floor(p of / per) of the axis

    @property
    def slots(self) -> int:
        return self.length if self.edges is None else self.bins * self.pixel

    def slot(self, cell: Tensor) -> Tensor:
        """The slot of a cell, cut to this axis."""
        inner = (cell - self.start).clamp(0, self.length)
        if self.edges is None:
            return inner
        p = ((inner + 1) * self.per - 1) // self.of
        return torch.where(inner >= self.length, self.slots, p * self.pixel + inner - p * self.of // self.per)


class Tiling(NamedTuple):
    """Rows of a tile, columns of each of the two blocks of a program, and how the compiler lays out the work."""

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None  # at most, so that more programs fit on a multiprocessor


def chunks(rows: Slots, tiling: Tiling, pictured: bool) -> tuple[int, int]:
    """The slots of a chunk of rows, and its tiles: for a picture all rows of the pixels that a tile has rows of."""
    if not pictured:
        return tiling.rows, 1
    chunk = rows.apart * rows.pixel
    return chunk, chunk // tiling.rows


def cut(columns: Slots, width: int, parts: int, device: torch.device) -> Tensor:
    """Where the columns of each stretch of `width` slots begin, and where the last one ends."""
    ends = (torch.arange(parts + 1, device=device) * width).clamp_max(columns.slots)
    if columns.edges is None:
        return ends + columns.start
    # The column of a slot, or the end of its pixel where the slot is empty.
    pixel = (ends // columns.pixel).clamp_max(columns.bins - 1)
    return torch.minimum(columns.edges[pixel] + ends - pixel * columns.pixel, columns.edges[pixel + 1])


def tiles_seen(
    intervals: tuple[Tensor, Tensor] | None,
    rows: Slots,
    columns: Slots,
    tiling: Tiling,
    chunk: int,
    per_chunk: int,
    shift: int,
    sides: bool,
    device: torch.device,
) -> Tensor:
    """For each program's columns the tiles of rows that see them, in whole chunks, as six numbers that never fall.

    Tiles from the first to the last see something of the columns, tiles from the second to the fifth all of them.
    With `sides`, tiles from the third to the fourth stand across them: row i stands at column i + shift, and only
    from all other tiles do all columns lie on one side.
    """
    width = 2 * tiling.columns
    programs = -(-columns.slots // width)
    cells = cut(columns, width, programs, device)
    low, high = cells[:-1].long(), cells[1:].long()
    last = rows.start + rows.length
    if intervals is None:
        seen = torch.tensor([rows.start, rows.start, last, last], device=device).repeat(1, programs, 1)
    else:
        first, stop = (x.long() for x in intervals)
        lows, highs = (x.expand(first.shape[0], -1).contiguous() for x in (low, high))
        seen = torch.stack(
            [
                torch.searchsorted(stop, lows, right=True),
                torch.searchsorted(stop, highs),
                torch.searchsorted(first, lows, right=True),
                torch.searchsorted(first, highs),
            ],
            -1,
        )
    if columns.slots % width:
        # Slots behind the last column hide part of the last block from everyone.
        seen[:, -1, 2] = 0
    begin, full_begin, full_end, end = rows.slot(seen).unbind(-1)
    begin, end = begin // chunk, -(-end // chunk)
    full_begin = torch.minimum(-(-full_begin // chunk), end)
    full_end = torch.maximum(full_end // chunk, full_begin)
    begin, end = torch.minimum(begin, full_begin), torch.maximum(end, full_end)
    across_begin = across_end = full_end
    if sides:
        across_begin, across_end = (rows.slot(x - shift).expand_as(begin) for x in (low, high))
        across_begin = torch.minimum(torch.maximum(across_begin // chunk, full_begin), full_end)
        across_end = torch.minimum(torch.maximum(-(-across_end // chunk), across_begin), full_end)
    six = [begin, full_begin, across_begin, across_end, full_end, end]
    return (torch.stack(six, -1) * per_chunk).to(torch.int32)


@functools.lru_cache
def _has_copy_engine(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


def descriptor(q: Tensor, rows: Slots, height: int, pictured: bool) -> Any:
    """A descriptor by which the copy engine of Hopper and later fetches tiles of q, where its layout allows that."""
    if not q.is_cuda or rows.edges is not None or not _has_copy_engine(q.device):
        return None
    batch, heads, queries, dim = q.shape
    part = q if rows.length == queries else q[:, :, rows.start : rows.start + rows.length]
    by_batch, by_head, by_row, by_dim = part.stride()
    size = q.element_size()
    aligned = by_dim == 1 and part.data_ptr() % 16 == 0 and by_head * size % 16 == 0 and by_row * size % 16 == 0
    one_axis = batch == 1 or by_batch == heads * by_head
    apart = rows.apart if pictured else 1
    whole = apart == 1 or rows.length % (apart * rows.pixel) == 0
    if not (aligned and one_axis and whole) or dim != triton.next_power_of_2(dim) or dim * size < 32:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    maps, length, pixel = batch * heads, rows.length, rows.pixel
    if apart == 1:
        return TensorDescriptor(
            part, [maps, 1, length, 1, dim], [by_head, by_row, by_row, by_row, 1], [1, 1, height, 1, dim]
        )
    # A tile is the first rows of eight pixels, then their second rows, and so on; then the next eight pixels.
    strides = [by_head, 8 * pixel * by_row, by_row, pixel * by_row, 1]
    return TensorDescriptor(
        part, [maps, length // (8 * pixel), pixel, 8, dim], strides, [1, apart // 8, height // apart, 8, dim]
    )


def default_tiling(dim: int, dtype: torch.dtype, want: frozenset[str]) -> Tiling:
    """The tile that was fastest on an H200; benchmarks/NOTES.md says what else was tried."""
    if dtype == torch.float32:
        return Tiling(32, 32, 4, 2)
    if dim > 128:
        return Tiling(64, 64, 4, 2)
    return Tiling(64, 128, 4, 3)
