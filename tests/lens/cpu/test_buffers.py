"""Memory is kept for the next who needs as much."""

from __future__ import annotations

import os

import pytest
import torch

from sightline.lens.cpu import buffers
from sightline.lens.cpu.buffers import Block, together, zeros


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_kept", [])
    monkeypatch.setattr(buffers, "_kept_results", [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 1000, 1 << 20])
def test_as_many_numbers_as_asked_for(count: int, dtype: torch.dtype) -> None:
    numbers = Block(count, dtype).numbers
    assert numbers.shape == (count,)
    assert numbers.dtype == dtype
    assert numbers.fill_(3.0).sum() == 3 * count


def test_memory_is_used_again_by_one_at_a_time() -> None:
    first, second = Block(10, torch.float32), Block(10, torch.float32)
    places = {block.numbers.data_ptr() for block in (first, second)}
    assert len(places) == 2
    first.free()
    second.free()
    again = [Block(7, torch.float64) for _ in range(3)]
    assert len({block.numbers.data_ptr() for block in again}) == 3
    assert places < {block.numbers.data_ptr() for block in again}


def test_what_is_too_small_is_not_used() -> None:
    Block(10, torch.float32).free()
    large = Block(1 << 20, torch.float32)
    assert large.numbers.fill_(1.0).sum() == 1 << 20


def test_not_much_is_kept() -> None:
    for block in [Block(1, torch.float32) for _ in range(2 * buffers._MOST)]:
        block.free()
    assert len(buffers._kept) == buffers._MOST
    buffers._kept.clear()
    Block(buffers._LARGEST, torch.float32).free()
    assert not buffers._kept


@pytest.mark.parametrize("large_pages", [True, False])
def test_systems_without_large_pages(large_pages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not large_pages:
        monkeypatch.delattr(buffers.mmap, "MADV_HUGEPAGE", raising=False)
    assert Block(5, torch.float32).numbers.zero_().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (3, 512, 512)], ids=str)
def test_zeros_are_zeros_that_can_be_written_to(shape, dtype):
    found = zeros(*shape, dtype=dtype)
    assert found.shape == shape
    assert found.dtype == dtype
    assert not found.any()
    found += 1
    assert not zeros(*shape, dtype=dtype).any()


def test_memory_of_results_that_are_gone_is_used_again():
    first = zeros(3, 512, 512, dtype=torch.float32)
    place, view = first.data_ptr(), first[1, 2:]
    first += 1
    del first
    assert not buffers._kept_results, "a view is still there"
    assert view.sum() == view.numel()
    del view
    assert len(buffers._kept_results) == 1
    assert zeros(100, 100, dtype=torch.float32).data_ptr() != place, "so little has no memory of its own"
    assert zeros(2, 512, 512, dtype=torch.float32).data_ptr() != place, "it is much larger"
    again = zeros(2, 3, 512, 256, dtype=torch.float32)
    assert again.data_ptr() == place
    assert not again.any()
    again += 1
    del again
    buffers.trim()
    assert not buffers._kept_results


def test_results_do_not_take_the_memory_that_is_worked_in():
    block = Block(1 << 20, torch.float32)
    place = block.numbers.data_ptr()
    block.free()
    result = zeros(1 << 20, dtype=torch.float32)
    assert result.data_ptr() != place
    assert Block(1 << 20, torch.float32).numbers.data_ptr() == place


def test_results_that_stay_keep_their_values():
    tensors = {
        "small": torch.randn(3, 5),
        "turned": torch.randn(7, 9).T,
        "whole numbers": torch.arange(4),
        "booleans": torch.tensor([True, False]),
        "half": torch.randn(3, dtype=torch.bfloat16),
        "one": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "large": torch.randn(600, 600),
    }
    found = together(tensors)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert found["large"] is tensors["large"], "what is large enough is not copied"
    assert together({}) == {}


def test_a_fork_does_not_write_into_results():
    """Memory of its own is of this process alone, as any other."""
    large = zeros(600, 600, dtype=torch.float32)
    small = together({"x": torch.ones(3)})["x"]
    child = os.fork()
    if not child:
        large.numpy()[:] = 7
        small.numpy()[:] = 7
        os._exit(0)
    os.waitpid(child, 0)
    assert not large.any()
    assert small.tolist() == [1, 1, 1]
