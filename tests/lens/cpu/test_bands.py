"""Bands hold every row once, and make the rows of any picture."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import generator
from lens_cases import gap
from sightline.lens.cpu.bands import bands
from sightline.lens.geometry import Axis, axis


@st.composite
def axes(draw: st.DrawFn, length: int) -> Axis:
    """The rows of a picture of some of the rows, by size or by cells."""
    start = draw(st.integers(0, length - 1))
    stop = draw(st.integers(start + 1, length))
    number = draw(st.integers(1, 12) | st.integers(1, length))
    by_cell = draw(st.booleans())
    return axis(slice(start, stop), None if by_cell else number, number if by_cell else None)


@settings(max_examples=150)
@given(st.integers(1, 90), st.sampled_from((1, 7, 16, 64)), st.data())
def test_bands_make_the_rows_of_pictures(length: int, height: int, data: st.DataObject) -> None:
    pictures = data.draw(st.lists(axes(length), max_size=3))
    start = min((a.start for a in pictures), default=0) if data.draw(st.booleans()) else 0
    found = bands(slice(start, length), height, pictures, torch.float64)
    assert found[0].start == start
    assert found[-1].stop == length
    weights = torch.rand(length, 5, generator=generator(length), dtype=torch.float64)
    sums = [torch.zeros(a.bins, 5, dtype=torch.float64) for a in pictures]
    maxima = [x.clone() for x in sums]
    place = start
    for band in found:
        assert band.start == place
        assert 0 < band.stop - band.start <= height
        assert sorted(band.order.tolist()) == list(range(band.start, band.stop))
        if band.in_order:
            assert band.order.tolist() == list(range(band.start, band.stop))
        place = band.stop
        for i, pool in enumerate(band.pools):
            if pool is not None:
                rows = slice(pool.top, pool.top + pool.count)
                part = torch.empty(pool.count, 5, dtype=torch.float64)
                pool.sums(weights[band.order], part)
                sums[i][rows] += part
                pool.maxima(weights[band.order], part)
                maxima[i][rows] = torch.maximum(maxima[i][rows], part)
    for a, total, largest in zip(pictures, sums, maxima, strict=True):
        cells = [weights[a.edges[i] : a.edges[i + 1]] for i in range(a.bins)]
        assert gap(total, torch.stack([x.sum(0) for x in cells])) <= 1e-13
        assert torch.equal(largest, torch.stack([x.amax(0) for x in cells]))


@pytest.mark.parametrize("length", [4096, 5000, 777, 1000])
def test_a_band_holds_whole_pixels_of_equally_many_rows(length: int) -> None:
    lead = axis(slice(0, length), 512, None)
    found = bands(slice(0, length), 512, [lead], torch.float32)
    assert len(found) <= length // 480 + 1
    for band in found:
        (pool,) = band.pools
        assert pool is not None
        assert pool.each == length // 512
        assert {band.start, band.stop} <= set(lead.edges.tolist())
    assert all(band.in_order for band in found) == (length % 512 == 0)


def test_a_pixel_taller_than_a_band_is_cut() -> None:
    found = bands(slice(0, 100), 16, [axis(slice(0, 100), 3, None)], torch.float32)
    assert max(band.stop - band.start for band in found) <= 16
    assert len(found) == 9  # 33, 33 and 34 rows: three bands each
    assert all(band.in_order for band in found)


def test_the_same_pixels_share_an_order() -> None:
    one, two = axis(slice(0, 1000), 300, None), axis(slice(0, 1000), 300, None)
    for band in bands(slice(0, 1000), 128, [one, two], torch.float32):
        assert band.pools[0] is band.pools[1]
        assert band.pools[0] is not None
        assert band.pools[0].each
