"""How a pass over the map is laid out: its rows and columns, their pixels, and which tiles see which columns.

Columns are taken as they are, block by block; each knows its pixel. Rows of a picture are counted in slots: every pixel
has the same number of them, a multiple of what a tile takes of a pixel at a time, and the last ones may be empty. For a
picture queries are copied into the order in which tiles take their slots, a band of rows at a time: then one kernel
does every size, a tile lies in one piece, and what is found of its rows goes to one piece of memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from sightline import caches
from sightline.kernels.launch import kernel, launch
from sightline.kernels.map_tile import FOLDED

# Rows of a pixel that a tile takes at a time.
TAKEN = 2
# Bytes of queries that are copied at once; where there are more, a band takes a sixteenth of them, or so many.
_COPIED, _BAND = 64 << 20, 16 << 20


class Rows(NamedTuple):
    """The rows of a pass, and the pixels they belong to, if it makes a picture."""

    start: int
    length: int
    total: int  # slots, in whole chunks
    bins: int = 0  # pixels
    slots: int = 1  # of each pixel
    edges: Tensor | None = None  # where pixels begin and end, [bins + 1]
    order: Tensor | None = None  # the row of every place of every tile, -1 where there is none; None: rows as they are
    places: Tensor | None = None  # the place of every row

    def chunk(self, height: int) -> tuple[int, int]:
        """Slots of a chunk of rows, and its tiles: of a picture all rows of the pixels that a tile has rows of."""
        if self.edges is None:
            return height, 1
        tiles = self.slots // TAKEN
        return tiles * height, tiles

    def slot(self, row: Tensor) -> Tensor:
        """The slot of a row, pixel after pixel, cut to these rows."""
        inner = (row - self.start).clamp(0, self.length)
        if self.edges is None:
            return inner
        pixel = torch.searchsorted(self.edges[1:].long(), inner + self.start, right=True)
        beyond = pixel >= self.bins
        pixel = pixel.clamp_max(self.bins - 1)
        return torch.where(beyond, self.bins * self.slots, pixel * self.slots + inner + self.start - self.edges[pixel])


class Columns(NamedTuple):
    """The columns of a pass, and the pixel of each, if it makes a picture."""

    start: int
    length: int
    bins: int = 0
    pixels: Tensor | None = None  # [length]


class Tiling(NamedTuple):
    """Rows of a tile, columns of each of the two blocks of a program, and how the compiler lays out the work."""

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None  # at most, so that more programs fit on a multiprocessor


def plain_rows(start: int, length: int, height: int) -> Rows:
    """Rows without pixels, for tiles of some height."""
    return Rows(start, length, -(-length // height) * height)


def rows_of(edges: np.ndarray, queries: int, height: int, device: torch.device) -> Rows:
    """Rows out of so many queries with pixels between these edges, for tiles of some height."""
    sizes, apart = np.diff(edges), height // TAKEN
    bins, slots = len(sizes), -(-int(sizes.max()) // TAKEN) * TAKEN
    start, length = int(edges[0]), int(edges[-1] - edges[0])
    inner = np.arange(slots)
    real = np.where(inner < sizes[:, None], edges[:-1, None] + inner, -1).reshape(-1)
    order = np.append(real, np.full(-bins % apart * slots, -1))
    # From [chunks, eights of pixels, eight pixels, turns, rows of a turn]: a tile has the first rows of eight pixels,
    # then their second rows, and so on; then the next eight pixels.
    order = order.reshape(-1, apart // 8, 8, slots // TAKEN, TAKEN).transpose(0, 3, 1, 4, 2).reshape(-1)
    places = np.full(queries, 0, np.int32)
    places[order[order >= 0]] = np.flatnonzero(order >= 0)

    def put(x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(device, torch.int32)

    return Rows(start, length, len(order), bins, slots, put(edges), put(order), put(places))


def columns_of(edges: np.ndarray, device: torch.device) -> Columns:
    """Columns with pixels between these edges."""
    pixels = np.repeat(np.arange(len(edges) - 1), np.diff(edges)).astype(np.int32)
    return Columns(int(edges[0]), int(edges[-1] - edges[0]), len(edges) - 1, torch.from_numpy(pixels).to(device))


def tiles_seen(
    intervals: tuple[Tensor, Tensor] | None,
    rows: Rows,
    columns: Columns,
    tiling: Tiling,
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
    chunk, per_chunk = rows.chunk(tiling.rows)
    programs = -(-columns.length // width)
    cells = columns.start + (torch.arange(programs + 1, device=device) * width).clamp_max(columns.length)
    low, high = cells[:-1], cells[1:]
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
    if columns.length % width:
        # What is behind the last column hides part of the last block from everyone.
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


def aligned(x: Tensor) -> Tensor:
    """Queries or keys `[batch, heads, time, dim]` that can be read in pieces of 16 bytes: as they are, or a copy."""
    wide = x.shape[-1]
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and not any(step % 8 for step in x.stride()[:-1]):
        return x
    if wide % 8 == 0:
        # Not `contiguous`: that leaves memory that begins anywhere, and steps of axes of one, as they are.
        return x.clone(memory_format=torch.contiguous_format)
    return F.pad(x, (0, -wide % 8))[..., :wide]


def one_axis(q: Tensor) -> Tensor:
    """Aligned queries with one axis for batch and heads, `[maps, time, dim]`."""
    batch, heads, length, dim = q.shape
    if any(step == 0 and size > 1 for size, step in zip(q.shape[:3], q.stride(), strict=False)):
        # Queries that are one and the same: nothing says that the copy engine takes a step of 0.
        q = aligned(q.clone(memory_format=torch.contiguous_format))
    by_map = q.stride(1) if heads > 1 else q.stride(0)
    if batch == 1 or heads == 1 or q.stride(0) == heads * by_map:
        return q.as_strided((batch * heads, length, dim), (by_map, q.stride(2), 1))
    return aligned(q.contiguous()).flatten(0, 1)


class Band(NamedTuple):
    """Some places of the rows of a pass, one after the other, in whole chunks."""

    first: int
    slots: int


def bands(q: Tensor, rows: Rows, tiling: Tiling) -> list[Band]:
    """The bands that a pass over queries `[maps, time, dim]` makes: of a picture no more than is copied at a time."""
    row = q.shape[0] * _bytes_of_row(q)
    if rows.order is None or row * rows.total <= _COPIED:
        return [Band(0, rows.total)]
    return bands_of(max(_BAND, row * rows.total // 16) // row, rows, tiling)


def bands_of(most: int, rows: Rows, tiling: Tiling) -> list[Band]:
    """All places of some rows, in bands of at most so many, but of one chunk at least."""
    chunk = rows.chunk(tiling.rows)[0]
    step = max(1, most // chunk) * chunk
    return [Band(first, min(step, rows.total - first)) for first in range(0, rows.total, step)]


def at_once(q: Tensor, rows: Rows) -> int:
    """How many maps of queries `[maps, time, dim]` are brought into the order of the tiles at a time."""
    if rows.order is None:
        return q.shape[0]
    return max(1, _COPIED // max(rows.total * _bytes_of_row(q), 1))


def _bytes_of_row(q: Tensor) -> int:
    return -(-q.shape[2] // 8) * 8 * q.element_size()  # of the copy, wherever queries lie


@kernel()
def _pick(
    FROM, ORDER, TO, from_map: tl.int64, from_row: tl.int64, to_row: tl.int64, slots: tl.int32,
    D: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of one map, in another order."""
    map_id = tl.program_id(1).to(tl.int64)
    slot, dims = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, DIM)
    row = tl.load(ORDER + slot, mask=slot < slots, other=-1)
    at = FROM + map_id * (from_map * 8) + row.to(tl.int64)[:, None] * (from_row * 8) + dims[None, :]
    x = tl.load(at, mask=(row >= 0)[:, None] & (dims < D)[None, :], other=0.0)
    to = TO + (map_id * slots + slot)[:, None] * (to_row * 8) + dims[None, :]
    tl.store(to, x, mask=(slot < slots)[:, None] & (dims < D)[None, :])


def in_order(q: Tensor, rows: Rows, band: Band) -> Tensor:
    """Queries `[maps, time, dim]` of a band, in the order of the tiles: as they lie, or a copy.

    A place without a row holds zeros: what weighs nothing must be finite too.
    """
    if rows.order is None:
        return q if rows.length == q.shape[1] else q[:, rows.start : rows.start + rows.length]
    maps, _, dim = q.shape
    wide = -(-dim // 8) * 8
    found = torch.empty(maps, band.slots, wide, dtype=q.dtype, device=q.device)
    launch(
        _pick,
        (triton.cdiv(band.slots, 64), maps),
        {
            "FROM": q, "ORDER": rows.order[band.first :], "TO": found, "from_map": q.stride(0) // 8,
            "from_row": q.stride(1) // 8, "to_row": wide // 8, "slots": band.slots,
        },
        {"D": dim, "DIM": max(16, triton.next_power_of_2(dim)), "BLOCK": 64},
    )  # fmt: skip
    return found[..., :dim]


@caches.memo("kernels.copy_engines", 128)
def _has_copy_engine(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


def descriptor(q: Tensor, rows: Rows, height: int, by_registers: bool = False) -> Any:
    """A descriptor by which the copy engine of Hopper and later fetches tiles of a piece of queries; else None.

    A tile of two axes is multiplied where the engine puts it, and the next one needs room beside it. `by_registers`
    gives it a third axis: a kernel that folds it up has its tiles in registers, and the next ones take their room.
    """
    if not q.is_cuda or not _has_copy_engine(q.device):
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    maps, length, dim = q.shape
    by_map, by_row, _ = q.stride()
    wide = max(16, triton.next_power_of_2(dim))
    if rows.order is None:
        return TensorDescriptor(q, [maps, length, dim], [by_map, by_row, 1], [1, height, wide])
    if by_registers:
        folded = FOLDED.value  # no tile is less high
        shape, steps = [maps * length // folded, folded, dim], [folded * by_row, by_row, 1]
        return TensorDescriptor(q, shape, steps, [height // folded, folded, wide])
    return TensorDescriptor(q, [maps * length, dim], [by_row, 1], [height, wide])


def default_tiling(dim: int, dtype: torch.dtype) -> Tiling:
    """The tile that was fastest on an H200; benchmarks/NOTES.md says what else was tried."""
    if dtype == torch.float32:
        return Tiling(32, 32, 4, 2)
    if dim > 128:
        return Tiling(64, 64, 4, 2)
    return Tiling(64, 128, 4, 3)


def finer(edges: np.ndarray, parts: int) -> np.ndarray:
    """Edges of pixels that are cut into so many parts, as equal as whole cells allow."""
    inner = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) // parts
    return np.append(inner.reshape(-1), edges[-1])


def joined(grid: Tensor, down: int, across: int, largest: bool) -> Tensor:
    """A grid of finer pixels as one of pixels: each has so many parts down and across."""
    if down == across == 1:
        return grid
    parts = grid.unflatten(-1, (-1, across)).unflatten(-3, (-1, down))
    return parts.amax((-1, -3)) if largest else parts.sum((-1, -3))
