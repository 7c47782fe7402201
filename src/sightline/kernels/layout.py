"""How a pass over the map is laid out: its axes in slots, its tiles, and which tiles see which columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor


class AxisSlots(NamedTuple):
    """One axis of the pass: the cells it covers, and its pixels. `edges` is None where slot and cell are the same."""

    start: int
    length: int
    bins: int
    pixel: int  # slots of a pixel
    edges: Tensor | None
    group: int  # slots that are pooled at once: a power of two that divides the pixel
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
    """Rows and columns of a tile, and how the compiler lays out the work."""

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None  # at most, so that more programs fit on a multiprocessor


def chunks(rows: AxisSlots, tiling: Tiling, pictured: bool) -> tuple[int, int]:
    """The slots of a chunk of rows, and its tiles: for a picture all rows of half as many pixels as a tile has rows."""
    return (tiling.rows // 2 * rows.pixel, rows.pixel // 2) if pictured else (tiling.rows, 1)


def tiles_seen(
    intervals: tuple[Tensor, Tensor] | None,
    rows: AxisSlots,
    columns: AxisSlots,
    tiling: Tiling,
    chunk: int,
    per_chunk: int,
    device: torch.device,
) -> Tensor:
    """For each block of columns the tiles of rows that see it, in whole chunks: begin, full begin, full end, end."""
    blocks = -(-columns.slots // tiling.columns)
    ends = (torch.arange(blocks + 1, device=device) * tiling.columns).clamp_max(columns.slots)
    if columns.edges is None:
        cells = ends + columns.start
    else:
        # The cell of a slot, or the end of its pixel where the slot is empty.
        pixel = (ends // columns.pixel).clamp_max(columns.bins - 1)
        cells = torch.minimum(columns.edges[pixel] + ends - pixel * columns.pixel, columns.edges[pixel + 1])
    last = rows.start + rows.length
    if intervals is None:
        whole = torch.tensor([rows.start, rows.start, last, last], device=device).repeat(1, blocks, 1)
    else:
        first, stop = (x.long() for x in intervals)
        low, high = (x.long().expand(first.shape[0], -1).contiguous() for x in (cells[:-1], cells[1:]))
        whole = torch.stack(
            [
                torch.searchsorted(stop, low, right=True),
                torch.searchsorted(stop, high),
                torch.searchsorted(first, low, right=True),
                torch.searchsorted(first, high),
            ],
            -1,
        )
    if columns.slots % tiling.columns:
        # Slots behind the last cell hide part of the last block from everyone.
        whole[:, -1, 2] = 0
    begin, full_begin, full_end, end = rows.slot(whole).unbind(-1)
    begin, end = begin // chunk, -(-end // chunk)
    full_begin = torch.minimum(-(-full_begin // chunk), end)
    full_end = torch.maximum(full_end // chunk, full_begin)
    begin = torch.minimum(begin, full_begin)
    return (torch.stack([begin, full_begin, full_end, torch.maximum(end, full_end)], -1) * per_chunk).to(torch.int32)


def descriptor(q: Tensor, rows: AxisSlots, height: int, pictured: bool) -> Any:
    """A descriptor by which the copy engine of Hopper and later fetches tiles of q, where its layout allows that."""
    if q.device.type != "cuda" or torch.cuda.get_device_capability(q.device)[0] < 9 or rows.edges is not None:
        return None
    batch, heads, _, dim = q.shape
    part = q[:, :, rows.start : rows.start + rows.length]
    by_batch, by_head, by_row, by_dim = part.stride()
    size = q.element_size()
    aligned = by_dim == 1 and part.data_ptr() % 16 == 0 and by_head * size % 16 == 0 and by_row * size % 16 == 0
    one_axis = batch == 1 or by_batch == heads * by_head
    whole = not pictured or rows.length % (8 * rows.pixel) == 0
    if not (aligned and one_axis and whole) or dim != triton.next_power_of_2(dim) or dim * size < 32:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    maps = batch * heads
    if not pictured:
        return TensorDescriptor(
            part, [maps, 1, rows.length, 1, dim], [by_head, by_row, by_row, by_row, 1], [1, 1, height, 1, dim]
        )
    # A tile is two rows each of groups of 8 pixels, the first rows of a group before the second.
    shape = [maps, rows.length // (8 * rows.pixel), rows.pixel, 8, dim]
    strides = [by_head, 8 * rows.pixel * by_row, by_row, rows.pixel * by_row, 1]
    return TensorDescriptor(part, shape, strides, [1, height // 16, 2, 8, dim])


def default_tiling(dim: int, dtype: torch.dtype, want: frozenset[str]) -> Tiling:
    """The tile that was fastest on an H200; benchmarks/NOTES.md says what else was tried."""
    if dtype == torch.float32:
        return Tiling(32, 32, 4, 2)
    if dim > 128:
        return Tiling(64, 64, 4, 2)
    if want <= {"received", "sums", "maxima"}:
        return Tiling(64, 128, 4, 2, registers=168)
    return Tiling(64, 128, 4, 3)
