"""Which tiles of rows see which blocks of columns, against the mask written out."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.attention.call import make_call
from sightline.kernels.layout import AxisSlots, Tiling, tiles_seen
from sightline.lens import geometry, on_gpu

MASKS = [sl.causal(), sl.causal(align="start"), sl.window(9, 4), sl.prefix(20), sl.documents(torch.arange(70) // 19)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("queries", [70, 33])
def test_tiles_hold_every_row_that_sees_the_block(mask, queries):
    keys, tiling = 70, Tiling(16, 8, 4, 1)
    rows, columns = on_gpu._whole(queries), on_gpu._whole(keys)
    first, stop = (x.reshape(1, -1).int() for x in mask.intervals(queries, keys, torch.device("cpu")))
    seen = tiles_seen((first, stop), rows, columns, tiling, tiling.rows, 1, torch.device("cpu"))
    table = mask.to_dense(queries, keys).reshape(queries, keys)
    for block, (begin, full_begin, full_end, end) in enumerate(seen[0].tolist()):
        part = table[:, block * 8 : (block + 1) * 8]
        visible = part.any(1).nonzero().flatten()
        assert begin <= full_begin <= full_end <= end
        if len(visible):
            assert begin == visible.min() // 16
            assert end == visible.max() // 16 + 1
        inside = part[full_begin * 16 : full_end * 16]
        assert inside.all()
        assert not len(inside) or part.shape[1] == 8


@pytest.mark.parametrize("size", [7, 10, 64])
def test_slots_of_pixels_of_unequal_size(size):
    call = make_call(*(torch.zeros(1, 1, 100, 16) for _ in range(3)))
    axis = geometry.axis(slice(5, 98), size, None)
    slots = on_gpu._slots(axis, call, 16)
    assert isinstance(slots, AxisSlots)
    assert slots.edges is not None
    cells = torch.arange(5, 99)
    for cell, slot in zip(cells.tolist(), slots.slot(cells).tolist(), strict=True):
        if cell == 98:
            assert slot == slots.slots
            continue
        pixel, offset = divmod(slot, slots.pixel)
        assert int(axis.edges[pixel]) + offset == cell
        assert cell < axis.edges[pixel + 1]
