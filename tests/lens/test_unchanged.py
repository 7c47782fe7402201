"""A sight is a photograph: what is changed afterwards never changes it without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sightline as sl
from cases import inputs

CHANGES: dict[str, Callable[[dict], object]] = {
    "q": lambda given: given["q"].mul_(2),
    "k": lambda given: given["k"][..., 3:, :].zero_(),
    "bias": lambda given: given["bias"].add_(1),
    "sinks": lambda given: given["sinks"].sub_(1),
    "the mask": lambda given: given["mask"].logical_not_(),
}


def made() -> dict:
    q, k, v = inputs(1, queries=9, keys=11, dtype=torch.float32)
    mask = torch.rand(9, 11) < 0.8
    return {"q": q, "k": k, "v": v, "mask": mask, "bias": torch.randn(9, 11), "sinks": torch.randn(2)}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("function", [sl.observe, sl.look])
def test_a_change_is_noticed(what: str, function: Callable, tmp_path: Path) -> None:
    given = made()
    tensors = [given[name] for name in (("q", "k", "v") if function is sl.observe else ("q", "k"))]
    options = {name: given[name] for name in ("mask", "bias", "sinks")}
    found = function(*tensors, **options, stats=("received",))
    sight = found[1] if function is sl.observe else found
    received = sight.received().clone()
    CHANGES[what](given)
    for ask in (
        lambda: sight.entropy,
        lambda: sight.tile(slice(0, 2), slice(0, 2)),
        lambda: sight.received(torch.ones(1, 2, 9)),
        lambda: sight.save(tmp_path / "sight.safetensors"),
    ):
        with pytest.raises(sl.errors.InputError, match=f"{what} was changed after the call"):
            ask()
    assert torch.equal(sight.received(), received), "what was computed stays"
    assert not list(tmp_path.iterdir())


def test_what_a_sight_hands_out_is_not_what_it_reads() -> None:
    q, k, _ = inputs(1)
    sight = sl.look(q, k)
    before = sight.tile(slice(0, 3), slice(0, 3))
    sight.lse.mul_(3)
    assert torch.equal(sight.tile(slice(0, 3), slice(0, 3)), before)


def test_tensors_without_a_count_are_copied() -> None:
    with torch.inference_mode():
        q, k, v = inputs(1, queries=9, keys=11, dtype=torch.float32)
        mask, bias = torch.rand(9, 11) < 0.8, torch.randn(9, 11)
        sight = sl.observe(q, k, v, mask=mask, bias=bias)[1]
        before = sight.tile(slice(None), slice(None)).clone()
        for tensor in (q, k, bias):
            tensor.mul_(2)
        mask.logical_not_()
        assert torch.equal(sight.tile(slice(None), slice(None)), before)


def test_nothing_is_copied_that_counts() -> None:
    q, k, v = inputs(1)
    sight = sl.observe(q, k, v)[1]
    assert sight.call.q.data_ptr() == q.data_ptr()
    assert sight.call.k.data_ptr() == k.data_ptr()


def test_other_parts_of_the_same_memory_count_too() -> None:
    """Views share their count: a cache that is written beyond a view's end counts as a change, so it must be copied."""
    memory = torch.randn(1, 2, 20, 8)
    sight = sl.look(torch.randn(1, 2, 5, 8), memory[..., :10, :])
    memory[..., 10:, :] = 0
    with pytest.raises(sl.errors.InputError, match="k was changed"):
        _ = sight.entropy
