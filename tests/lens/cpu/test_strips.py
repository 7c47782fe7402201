"""The pixels of strips, whatever stretch of columns a band of rows sees."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import SEEDS, generator
from lens_cases import gap
from sightline.lens.cpu.bands import RowPool
from sightline.lens.cpu.strips import ColumnPool, Strip
from sightline.lens.geometry import axis


@settings(max_examples=200)
@given(st.integers(1, 120), st.integers(1, 130), st.booleans(), st.booleans(), SEEDS, st.data())
def test_pixels_of_stretches(
    length: int, number: int, by_cell: bool, largest: bool, seed: int, data: st.DataObject
) -> None:
    """Two bands one after the other in the same strip: nothing of the first is seen in the second."""
    random, place = generator(seed), st.integers(0, length)
    start = data.draw(st.integers(0, length - 1))
    span = slice(start, data.draw(st.integers(start + 1, length)))
    lying = axis(span, None if by_cell else number, number if by_cell else None)
    columns = ColumnPool(lying, largest, torch.float64)
    memory = torch.zeros(3 * columns.width, dtype=torch.float64)
    grid, exact = (torch.zeros(3, lying.bins, dtype=torch.float64) for _ in range(2))
    total, summed = (torch.zeros(length, dtype=torch.float64) for _ in range(2))
    for _ in range(2):
        left, right = sorted((data.draw(place), data.draw(place)))
        middle = data.draw(st.integers(left, right))
        weights = torch.rand(3, length, generator=random, dtype=torch.float64)
        if columns.touches(left, right):
            cuts = [(left, middle), (middle, right)]
            strip = Strip(columns, RowPool(2, 3, 1, None, None, None), memory, cuts)
            for n, (a, b) in enumerate(cuts):
                for step in strip.steps(n, a, weights[:, a:b].contiguous()):
                    step()
            strip.finish(grid.numpy(), 2)
            strip.add_rows(total.numpy())
        column = torch.arange(length)
        weights *= (column >= left) & (column < right)
        for i in range(lying.bins):
            cells = weights[:, lying.edges[i] : lying.edges[i + 1]]
            exact[:, i] = torch.maximum(exact[:, i], cells.amax(-1)) if largest else exact[:, i] + cells.sum(-1)
        summed[span] += weights.sum(0)[span]
    assert gap(grid, exact) <= 1e-13
    assert gap(total, summed) <= 1e-13
