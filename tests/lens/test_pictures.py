"""Sums become means, pixels without a visible cell NaN, and small maps are repeated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import SEEDS, Drawn, Shape, generator, inputs, masks, shapes
from lens_cases import gap, stretches
from sightline.backends.call import make_call
from sightline.lens import geometry, pictures


@st.composite
def masked(draw: st.DrawFn) -> tuple[Shape, Drawn]:
    shape = draw(shapes().filter(lambda s: s.queries and s.keys))
    return shape, draw(masks(shape))


@settings(max_examples=80)
@given(masked(), st.data())
def test_visible_cells_are_counted(drawn: tuple[Shape, Drawn], data: st.DataObject) -> None:
    shape, (mask, table) = drawn
    q, k = (
        torch.zeros(*shape.batch, shape.heads, shape.queries, 1),
        torch.zeros(*shape.batch, shape.heads, shape.keys, 1),
    )
    call = make_call(q, k, k, mask=mask)
    pair = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    picture = sl.Picture(*pair) if data.draw(st.booleans()) else sl.Picture(cell=pair)
    vertical, horizontal = geometry.axes(picture, shape.queries, shape.keys)
    found = pictures.visible_cells(call, vertical, horizontal)
    size = (vertical.bins, horizontal.bins)
    exact = torch.zeros(*table.shape[:-2], *size, dtype=torch.int64)
    for i in range(size[0]):
        for j in range(size[1]):
            rows, columns = slice(*vertical.edges[i : i + 2].tolist()), slice(*horizontal.edges[j : j + 2].tolist())
            exact[..., i, j] = table[..., rows, columns].sum((-2, -1))
    assert torch.equal(found.expand(exact.shape), exact)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 50), st.integers(1, 50), SEEDS)
def test_the_mean_of_the_pixels_is_the_mean_of_the_map(
    queries: int, keys: int, height: int, width: int, seed: int
) -> None:
    """Weighted by their cells; with more pixels than cells every cell is repeated where floor(i n / size) says."""
    random = generator(seed)
    q, k = (torch.randn(n, 4, generator=random, dtype=torch.float64) for n in (queries, keys))
    sight = sl.look(q, k, mask=sl.causal())
    total = sight.tile(slice(None), slice(None)).sum()
    down, across = stretches(0, queries, height, None), stretches(0, keys, width, None)
    if height <= queries and width <= keys:
        cells = torch.tensor([[(b - a) * (d - c) for c, d in across] for a, b in down])
        assert torch.allclose((sight.picture(size=(height, width)) * cells).sum(), total)
        assert torch.allclose(sight.picture(size=(height, width), reduce="sum").sum(), total)
    if height >= queries and width >= keys:
        tile = sight.tile(slice(None), slice(None))
        for reduce in ("mean", "max", "sum"):
            repeated = tile[[a for a, _ in down]][:, [c for c, _ in across]]
            assert gap(sight.picture(size=(height, width), reduce=reduce), repeated) <= 1e-12


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_pixels_without_a_visible_cell_are_nan_only_if_asked_for(reduce: str) -> None:
    q, k, _ = inputs(1, queries=64, keys=64)
    sight = sl.look(q, k, mask=sl.causal())
    plain, visible = (sight.picture(size=(8, 8), reduce=reduce, visible_only=only) for only in (False, True))
    above = torch.ones(8, 8, dtype=torch.bool).triu(1)
    assert plain[..., above].eq(0).all()
    assert visible[..., above].isnan().all()
    assert visible[..., ~above].isfinite().all()
    below = torch.ones(8, 8, dtype=torch.bool).tril(-1)
    assert torch.equal(visible[..., below], plain[..., below])


def test_a_ragged_last_pixel_is_the_mean_of_what_is_left() -> None:
    q, k, _ = inputs(heads=1, queries=10, keys=7)
    sight = sl.look(q, k)
    picture = sight.picture(cell=(4, 3))
    assert picture.shape == (1, 3, 3)
    assert torch.allclose(picture[0, 2, 2], sight.tile(slice(8, 10), slice(6, 7)).mean())
    assert sight.picture(cell=(100, 100)).shape == (1, 1, 1)


def test_every_head_and_sequence_counts_its_own_visible_cells() -> None:
    q, k, _ = inputs(2, heads=3, queries=6, keys=6)
    table = torch.rand(2, 3, 6, 6) < 0.4
    sight = sl.look(q, k, mask=sl.dense(table), normalizer="uniform")
    mean = sight.picture(size=(1, 1), visible_only=True)[..., 0, 0]
    assert torch.allclose(mean, table.any(-1).sum(-1).double() / table.sum((-2, -1)))
