"""Whole maps by the compiled kernel against the float64 definition, of lengths as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.kernels.native import tile as native_tile
from sightline.lens.cpu import whole_maps

ROWS = ("entropy", "distance", "max_score", "received")
pytestmark = pytest.mark.cpu_kernels


@contextlib.contextmanager
def counted(on: bool = True) -> Iterator[list[int]]:
    """Every call, however small, by whole maps, or none; gives how many keys each had."""
    seen: list[int] = []
    run, patch = whole_maps.run, pytest.MonkeyPatch()

    def counting(levels, job, stretches):  # type: ignore[no-untyped-def]
        seen.append(levels.call.sizes.keys)
        return run(levels, job, stretches)

    patch.setattr(whole_maps, "run", counting)
    patch.setattr(whole_maps, "_CELLS", 1)
    patch.setattr(whole_maps, "_KEYS", 1 << 20 if on else 0)
    try:
        yield seen
    finally:
        patch.undo()


def error(found: sl.Sight, exact: sl.Sight, picture: sl.Picture) -> float:
    pairs = [(getattr(found, name), getattr(exact, name)) for name in ROWS[:3]]
    pairs += [(found.received(), exact.received()), (found.value(picture), exact.value(picture))]
    worst = 0.0
    for got, want in pairs:
        there = want != -torch.inf
        assert torch.equal(got != -torch.inf, there)
        worst = max(worst, float(((got.double() - want)[there] / (1 + want[there].abs())).abs().max()))
    return worst


MASKS = {
    "all": lambda keys: None,
    "causal": lambda keys: sl.causal(),
    "window": lambda keys: sl.window(9, 2),
    "padded right": lambda keys: sl.padding(torch.tensor([keys - 5, keys // 2])),
    "padded left": lambda keys: sl.causal() & sl.padding(torch.arange(keys) >= torch.tensor([[7], [0]])),
}


@pytest.mark.parametrize("size", [1.0, 6.0], ids=["small scores", "rows that are measured"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("queries, keys", [(63, 63), (65, 65), (10, 49), (40, 17), (200, 200)])
def test_against_the_definition(queries: int, keys: int, mask: str, size: float) -> None:
    """The error is at most twice that of torch's operations in the same precision."""
    if native_tile.maps() is None:
        return
    draw = torch.Generator().manual_seed(queries)
    q = torch.randn(2, 6, queries, 24, generator=draw) * size
    k = torch.randn(2, 2, keys, 24, generator=draw) * size
    rule = MASKS[mask](keys)
    for picture in (sl.Picture(cell=(1, 1), reduce="sum"), sl.Picture(cell=(4, 4), reduce="sum"), sl.Picture(7, 9)):
        stats = (*ROWS, picture)
        with counted() as seen:
            found = sl.look(q, k, mask=rule, stats=stats)
        assert seen == [keys]
        with counted(on=False) as seen:
            plain = sl.look(q, k, mask=rule, stats=stats)
            exact = sl.look(q.double(), k.double(), mask=rule, stats=stats)
        assert not seen
        assert error(found, exact, picture) <= 2 * error(plain, exact, picture) + 2e-6


def test_numbers_of_rows_that_lie_in_another_order() -> None:
    """A fused kernel's lse may have its heads last."""
    if native_tile.maps() is None:
        return
    q, k, v = torch.randn(3, 2, 4, 33, 16).unbind()
    with counted() as seen:
        _, sight = sl.observe(q, k, v, mask=sl.causal(), stats=ROWS)
    assert seen == [33]
    torch.testing.assert_close(sight.received().sum(-1), torch.full((2, 4), 33.0))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_with_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_maps, "_ALONE", 0)
    q, k = torch.randn(2, 6, 50, 16), torch.randn(2, 3, 50, 16)
    before = torch.get_num_threads()

    def of(count: int) -> list[Tensor]:
        torch.set_num_threads(count)
        with counted():
            sight = sl.look(q, k, mask=sl.causal(), stats=(*ROWS, sl.Picture(8, 8)))
        return list(sight.kept.values())

    try:
        assert all(torch.equal(a, b) for a, b in zip(of(1), of(threads), strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (5000, 7)], ids=str)
def test_many_queries_and_few_keys(shape: tuple[int, int]) -> None:
    """Equal weights are rounded the same way in each of a hundred thousand sums: float32 alone loses them."""
    queries, keys = 200_000, 7
    q, k = torch.zeros(1, queries, 4), torch.zeros(1, keys, 4)
    picture = sl.Picture(*shape, reduce="sum")
    sight = sl.look(q, k, stats=("received", picture))
    torch.testing.assert_close(sight.received(), torch.full((1, keys), queries / keys), rtol=1e-6, atol=0.0)
    exact = sl.look(q.double(), k.double()).value(picture)
    torch.testing.assert_close(sight.value(picture).double(), exact, rtol=1e-6, atol=0.0)


def test_products_that_float32_does_not_hold() -> None:
    """Of finite q and k: what is said is what torch's operations say, and not that a row sees nothing."""
    q, k = torch.full((2, 4, 260, 8), 3e19).unbind()
    q[:, ::2] = 0.5e-19
    for keys in (0, 2048):  # by the sweep, and by whole maps
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(whole_maps, "_KEYS", keys)
            sight = sl.look(q, k, stats=ROWS)
        assert sight.max_score[:, 1::2].isnan().all()
        assert sight.max_score[:, ::2].isfinite().all()
        assert sight.received().isnan().all()


def test_what_it_leaves_to_others() -> None:
    q, k = torch.randn(2, 1, 2, 40, 8).unbind()
    holes = torch.ones(1, 40, dtype=torch.bool)
    holes[0, 20] = False
    k_inf = k.clone()
    k_inf[0, 0, 3, 2] = torch.inf
    with counted() as seen:
        sl.look(q, k, mask=sl.padding(holes), stats="entropy")
        sl.look(q, k, softcap=3.0, stats="entropy")
        sl.look(q, k, stats=("entropy", sl.Top(2)))
        sl.look(q, k, stats=("entropy", sl.Picture(4, 4, reduce="max")))
        sl.look(q.double(), k.double(), stats="entropy")
        sl.look(q, k_inf, stats="entropy")
    assert not seen
