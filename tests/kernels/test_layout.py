"""Which tiles of rows see which columns, against the mask written out; and pixels in slots."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.kernels import layout
from sightline.kernels.layout import (
    TAKEN,
    Band,
    Columns,
    Tiling,
    aligned,
    at_once,
    bands,
    columns_of,
    finer,
    in_order,
    joined,
    one_axis,
    plain_rows,
    rows_of,
    tiles_seen,
)
from sightline.lens import geometry

CPU = torch.device("cpu")
MASKS = [sl.causal(), sl.causal(align="start"), sl.window(9, 4), sl.prefix(20), sl.documents(torch.arange(70) // 19)]


@pytest.mark.parametrize("mask", [None, *MASKS], ids=str)
@pytest.mark.parametrize("queries", [70, 33])
@pytest.mark.parametrize("sides", [False, True])
def test_tiles_hold_every_row_that_sees_the_columns(mask, queries, sides):
    keys, tiling, width = 70, Tiling(16, 4, 4, 1), 8
    rows, columns = plain_rows(0, queries, 16), Columns(0, keys)
    intervals, table = None, torch.ones(queries, keys, dtype=torch.bool)
    if mask is not None:
        intervals = tuple(x.reshape(1, -1).int() for x in mask.intervals(queries, keys, CPU))
        table = mask.to_dense(queries, keys).reshape(queries, keys)
    seen = tiles_seen(intervals, rows, columns, tiling, keys - queries, sides, CPU)
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


@pytest.mark.parametrize("size", [7, 10, 64, 93])
def test_slots_of_pixels_of_unequal_size(size):
    axis = geometry.axis(slice(5, 98), size, None)
    rows = rows_of(axis.edges, 100, 32, CPU)
    chunk, turns = rows.chunk(32)
    assert rows.slots % TAKEN == 0
    assert rows.total % chunk == 0
    cells = torch.arange(5, 99)
    for cell, slot in zip(cells.tolist(), rows.slot(cells).tolist(), strict=True):
        if cell == 98:
            assert slot == rows.bins * rows.slots
            continue
        pixel, offset = divmod(slot, rows.slots)
        assert int(axis.edges[pixel]) + offset == cell < axis.edges[pixel + 1]
        place = int(rows.places[cell])
        assert rows.order[place] == cell
        # A tile takes two rows of each of sixteen pixels: eight first rows, their second rows, and eight pixels more.
        tile, row = divmod(place, 32)
        assert tile // turns == pixel // 16
        assert (row // 16 * 8 + row % 8, tile % turns * TAKEN + row // 8 % TAKEN) == (pixel % 16, offset)
    assert (rows.order >= 0).sum() == 93


@pytest.mark.parametrize("dim", [16, 20])
def test_queries_in_the_order_of_the_tiles(dim):
    q = one_axis(aligned(torch.randn(1, 3, 40, dim)))
    rows = rows_of(geometry.axis(slice(4, 40), 5, None).edges, 40, 32, CPU)
    for band in (Band(0, rows.total), Band(32, rows.total - 64)):
        found, order = in_order(q, rows, band), rows.order[band.first :][: band.slots]
        assert found.shape == (3, band.slots, dim)
        assert torch.equal(found[:, order >= 0], q[:, order[order >= 0].long()])
        assert not found[:, order < 0].any()
    plain = plain_rows(0, 40, 32)
    assert in_order(q, plain, Band(0, plain.total)) is q


def test_bands_are_whole_chunks_and_all_of_the_rows(monkeypatch):
    tiling = Tiling(32, 32, 4, 1)
    rows, q = rows_of(geometry.axis(slice(0, 600), 150, None).edges, 600, 32, CPU), torch.zeros(3, 600, 16)
    assert bands(q, rows, tiling) == [Band(0, rows.total)]
    assert bands(q, plain_rows(0, 600, 32), tiling) == [Band(0, 608)]
    monkeypatch.setattr(layout, "_COPIED", 1024)
    monkeypatch.setattr(layout, "_BAND", 1024)
    some = bands(q, rows, tiling)
    assert len(some) > 3
    assert all(band.slots % rows.chunk(32)[0] == 0 for band in some)
    assert [band.first for band in some] == [sum(band.slots for band in some[:i]) for i in range(len(some))]
    assert sum(band.slots for band in some) == rows.total


def test_every_column_knows_its_pixel():
    edges = geometry.axis(slice(3, 50), 9, None).edges
    columns = columns_of(edges, CPU)
    assert (columns.start, columns.length, columns.bins) == (3, 47, 9)
    for column, pixel in enumerate(columns.pixels.tolist(), start=3):
        assert edges[pixel] <= column < edges[pixel + 1]


@pytest.mark.parametrize("parts", [(1, 1), (3, 2), (7, 1)])
def test_pixels_in_parts_and_together_again(parts):
    edges = geometry.axis(slice(2, 100), 9, None).edges
    down, across = (finer(edges, n) for n in parts)
    cells = torch.rand(100, 100)
    sums = torch.stack([torch.stack([cells[a:b, c:d].sum() for c, d in pairs(across)]) for a, b in pairs(down)])
    peaks = torch.stack([torch.stack([_largest(cells[a:b, c:d]) for c, d in pairs(across)]) for a, b in pairs(down)])
    want = torch.stack([torch.stack([cells[a:b, c:d].sum() for c, d in pairs(edges)]) for a, b in pairs(edges)])
    torch.testing.assert_close(joined(sums, *parts, largest=False), want)
    want = torch.stack([torch.stack([cells[a:b, c:d].max() for c, d in pairs(edges)]) for a, b in pairs(edges)])
    assert torch.equal(joined(peaks, *parts, largest=True), want)


def pairs(edges):
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _largest(cells):
    return cells.max() if cells.numel() else torch.zeros(())


ROOM = torch.randn(2, 3, 9, 40)


@pytest.mark.parametrize(
    "x",
    [
        ROOM[..., :16], ROOM[..., 8:24], ROOM[..., 1:17], ROOM[..., :20], ROOM[:, :, ::2, :24], ROOM[..., 0:32:2],
        ROOM.transpose(1, 2)[..., :8], ROOM.transpose(0, 1)[..., :32], ROOM[:1, :1, :, :16].expand(2, 3, 9, 16),
    ],
    ids=range(9),
)  # fmt: skip
def test_memory_that_can_be_read_in_whole_pieces(x):
    found = aligned(x)
    assert torch.equal(found, x)
    assert found.data_ptr() % 16 == 0
    assert found.stride(-1) == 1
    assert all(step % 8 == 0 for step in found.stride()[:-1])
    flat = one_axis(found)
    assert torch.equal(flat, x.flatten(0, 1))
    assert flat.stride(1) % 8 == flat.stride(0) % 8 == 0


@pytest.mark.parametrize("dim", [16, 20])
def test_memory_that_begins_anywhere_is_copied(dim):
    """It is contiguous, and still cannot be read in whole pieces."""
    x = torch.randn(1 + 2 * 3 * 5 * dim)[1:].view(2, 3, 5, dim)
    found = aligned(x)
    assert found.data_ptr() % 16 == 0
    assert not any(step % 8 for step in found.stride()[:-1])
    assert torch.equal(found, x)


def test_steps_of_axes_of_one_are_whole_pieces_too():
    x = torch.randn(100).as_strided((1, 1, 1, 16), (7, 7, 3, 1))
    assert not any(step % 8 for step in aligned(x).stride()[:-1])


@pytest.mark.parametrize("shape", [(1, 3, 5, 16), (2, 1, 5, 16), (2, 3, 1, 16), (1, 1, 5, 16)], ids=str)
def test_queries_that_are_one_and_the_same_are_written_out(shape):
    q = torch.randn(shape).expand(2, 3, 5, 16)
    for some in (q, q[:1], q[:, :1]):
        flat = one_axis(aligned(some))
        assert all(step > 0 for step in flat.stride())
        assert torch.equal(flat, some.flatten(0, 1))


def test_as_many_maps_are_copied_at_once_as_there_is_room_for_wherever_they_lie():
    """Heads that lie next to each other are the usual case, and their rows far apart."""
    rows = rows_of(geometry.axis(slice(0, 60), 7, None).edges, 60, 32, CPU)
    apart, dense = torch.zeros(60, 4, 16).transpose(0, 1), torch.zeros(4, 60, 16)
    assert at_once(apart, rows) == at_once(dense, rows) == at_once(dense[:, :1].expand(4, 60, 16), rows)
