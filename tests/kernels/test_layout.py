"""Which tiles of rows see which columns, against the mask written out; and pixels in slots."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.kernels.layout import Slots, Tiling, chunks, tiles_seen
from sightline.lens import geometry, on_gpu

CPU = torch.device("cpu")
MASKS = [sl.causal(), sl.causal(align="start"), sl.window(9, 4), sl.prefix(20), sl.documents(torch.arange(70) // 19)]


@pytest.mark.parametrize("mask", [None, *MASKS], ids=str)
@pytest.mark.parametrize("queries", [70, 33])
@pytest.mark.parametrize("sides", [False, True])
def test_tiles_hold_every_row_that_sees_the_columns(mask, queries, sides):
    keys, tiling, width = 70, Tiling(16, 4, 4, 1), 8
    rows, columns = Slots(0, queries, 1, queries), Slots(0, keys, 1, keys)
    intervals, table = None, torch.ones(queries, keys, dtype=torch.bool)
    if mask is not None:
        intervals = tuple(x.reshape(1, -1).int() for x in mask.intervals(queries, keys, CPU))
        table = mask.to_dense(queries, keys).reshape(queries, keys)
    seen = tiles_seen(intervals, rows, columns, tiling, 16, 1, keys - queries, sides, CPU)
    for block, six in enumerate(seen[0].tolist()):
        assert six == sorted(six)
        begin, full_begin, across_begin, across_end, full_end, end = six
        part = table[:, block * width : (block + 1) * width]
        visible = part.any(1).nonzero().flatten()
        if len(visible):
            assert begin == visible.min() // 16
            assert end == visible.max() // 16 + 1
        inside = part[full_begin * 16 : full_end * 16]
        assert inside.all()
        assert not len(inside) or part.shape[1] == width
        for tile in [*range(full_begin, across_begin), *range(across_end, full_end)]:
            place = torch.arange(tile * 16, tile * 16 + 16)[:, None] + keys - queries
            column = torch.arange(block * width, (block + 1) * width)
            if sides:
                assert (place >= column).all() or (place <= column).all()
        assert sides or across_begin == across_end


@pytest.mark.parametrize("size", [7, 10, 64])
def test_slots_of_pixels_of_unequal_size(size):
    axis = geometry.axis(slice(5, 98), size, None)
    for slots in (on_gpu._rows(axis, CPU, 32), on_gpu._columns(axis, CPU)):
        assert slots.edges is not None
        cells = torch.arange(5, 99)
        for cell, slot in zip(cells.tolist(), slots.slot(cells).tolist(), strict=True):
            if cell == 98:
                assert slot == slots.slots
                continue
            pixel, offset = divmod(slot, slots.pixel)
            assert int(axis.edges[pixel]) + offset == cell
            assert cell < axis.edges[pixel + 1]


@pytest.mark.parametrize("length, size, apart", [(16384, 512, 16), (16384, 8, 1), (2000, 512, 16), (700, 512, 32)])
def test_a_chunk_is_whole_tiles(length, size, apart):
    """Of several pixels at once, unless the pixels are large parts of the map."""
    rows, tiling = on_gpu._rows(geometry.axis(slice(0, length), size, None), CPU, 64), Tiling(64, 128, 4, 3)
    chunk, tiles = chunks(rows, tiling, True)
    assert rows.apart == apart
    assert chunk == tiles * 64 == rows.apart * rows.pixel
    assert rows.pixel % (64 // rows.apart) == 0
