"""What would not fit is refused with its size, before it is made."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from cases import inputs
from sightline import memory
from sightline.backends.call import make_call
from sightline.errors import InputError, TooLargeError


@pytest.fixture(scope="module")
def long() -> sl.Sight:
    """100,000 tokens, by a window so narrow that the lse is quick."""
    q = torch.randn(1, 100_000, 8)
    return sl.look(q, q, mask=sl.window(3))


@pytest.fixture
def a_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 1 << 30)


@pytest.fixture
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that begins to compute."""
    monkeypatch.setattr("sightline.lens.plan.walk", lambda *_, **__: pytest.fail("walked"))
    monkeypatch.setattr("sightline.lens.sight.see", lambda *_, **__: pytest.fail("made a tile"))
    monkeypatch.setattr("sightline.lens.plan.gathers", lambda *_, **__: pytest.fail("allocated"))
    monkeypatch.setattr("sightline.lens.plan.Pixels", lambda *_, **__: pytest.fail("allocated"))


@pytest.mark.usefixtures("nothing_made")
def test_a_tile_as_large_as_the_map_is_refused(long: sl.Sight) -> None:
    assert memory.available(torch.device("cpu")) < 100 << 30
    with pytest.raises(TooLargeError, match=r"this tile would need 186.3 GiB") as caught:
        long.tile(slice(None), slice(None))
    assert "expected: at most " in str(caught.value)
    assert "most of what is free on cpu" in str(caught.value)
    assert "try: a smaller rectangle, or picture() for an overview" in str(caught.value)


@pytest.mark.usefixtures("nothing_made")
def test_the_strongest_hundred_thousand_are_refused(long: sl.Sight) -> None:
    with pytest.raises(TooLargeError, match=r"top\(100000\) would need [\d.]+ (GiB|TiB)") as caught:
        long.top(100_000)
    assert "try: fewer keys per query" in str(caught.value)
    with pytest.raises(TooLargeError, match=r"top\(100000\)"):
        long.prepare("entropy", sl.Top(100_000))
    assert long.kept == {}


@pytest.mark.usefixtures("nothing_made")
def test_a_gigantic_picture_is_refused(long: sl.Sight) -> None:
    with pytest.raises(TooLargeError, match=r"this picture would need [\d.]+ (GiB|TiB)") as caught:
        long.picture(size=(200_000, 200_000))
    assert "try: a smaller size, or larger cells" in str(caught.value)
    with pytest.raises(TooLargeError, match="this picture"):
        long.picture(cell=(1, 1))


@pytest.mark.usefixtures("a_gigabyte", "nothing_made")
def test_the_size_counts_batch_and_heads_and_what_is_free() -> None:
    q, k, _ = inputs(4, heads=8, queries=2000, keys=2000, dtype=torch.float32)
    call = make_call(q, k, k)
    sight = sl.Sight(call, torch.zeros(4, 8, 2000))
    with pytest.raises(TooLargeError, match=r"would need 2\.4 GiB") as caught:  # 5 x 4 x 8 x 2000 x 2000 x 4 bytes
        sight.tile(slice(None), slice(None))
    assert "at most 819.2 MiB" in str(caught.value)
    with pytest.raises(TooLargeError, match=r"top\(2000\)"):
        sight.top(2000)
    with pytest.raises(TooLargeError, match="this picture"):
        sight.picture(size=(2048, 2048))


@pytest.mark.usefixtures("a_gigabyte")
def test_what_fits_is_made() -> None:
    q, k, _ = inputs(4, heads=8, queries=200, keys=200, dtype=torch.float32)
    sight = sl.look(q, k)
    assert sight.tile(slice(None), slice(None)).shape == (4, 8, 200, 200)
    assert sight.top(200).keys.shape == (4, 8, 200, 200)
    assert sight.picture(size=(200, 200)).shape == (4, 8, 200, 200)


def test_a_part_of_a_long_map_is_made(long: sl.Sight) -> None:
    tile = long.tile(slice(99_990, 100_000), slice(99_980, 100_000))
    assert torch.allclose(tile.sum(-1), torch.ones(1, 10))
    assert long.picture(slice(50_000, 50_512), slice(49_800, 50_600), size=(64, 64)).shape == (1, 64, 64)


def test_too_large_is_an_input_error() -> None:
    assert issubclass(TooLargeError, InputError)
    with pytest.raises(InputError):
        memory.require("this", 1 << 60, torch.device("cpu"), "less")
    memory.require("this", 1 << 10, torch.device("cpu"), "less")


def test_free_memory_is_a_plausible_number() -> None:
    assert 1 << 26 < memory.available(torch.device("cpu")) < 1 << 50


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert memory.readable(size) == text
