"""The cache of a cross-attention never holds another memory; and caches work in all of torch's modes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline import nn as slnn

WIDTH = 16
MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": nullcontext}


def decoder_of(layers: int = 2, **options: Any) -> slnn.Decoder:
    torch.manual_seed(0)
    return slnn.Decoder(WIDTH, heads=4, layers=layers, cross=True, **options)


def counted(module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that keys and values of a memory are made."""
    calls: list[int] = []
    for part in module.modules():
        if isinstance(part, slnn.MultiHeadAttention):
            make = part._project
            monkeypatch.setattr(part, "_project", lambda *pair, make=make: calls.append(1) or make(*pair))
    return calls


def changed_in_place(memory: Tensor) -> Tensor:
    return memory.mul_(-2)


def changed_by_a_view(memory: Tensor) -> Tensor:
    memory[0].zero_()
    return memory


def another(memory: Tensor) -> Tensor:
    return memory + 1


def one_number(memory: Tensor) -> Tensor:
    memory = memory.clone()
    memory[-1, -1, -1] += 1
    return memory


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [changed_in_place, changed_by_a_view, another, one_number])
def test_another_memory_is_noticed(change: Callable[[Tensor], Tensor], mode: str) -> None:
    decoder, cross = decoder_of(), slnn.MultiHeadAttention(WIDTH, heads=4)
    cache, own = decoder.new_cache(), slnn.KVCache()
    with MODES[mode]():
        memory, x = torch.randn(2, 5, WIDTH), torch.randn(2, 1, WIDTH)
        decoder(x, memory, cache=cache)
        first = cross(x, memory, cache=own)
        memory = change(memory)
        expected = cross(x, memory)
        assert not torch.allclose(first, expected, atol=1e-3)
        torch.testing.assert_close(cross(x, memory, cache=own), expected)
        step = decoder(x, memory, cache=cache)
        fresh = decoder.new_cache()  # the same past, and nothing known of a memory
        for layer, known in zip(fresh.layers, cache.layers, strict=True):
            layer.attention.append(known.attention.keys[..., :1, :], known.attention.values[..., :1, :])
        assert torch.equal(step, decoder(x, memory, cache=fresh))


def test_a_memory_changed_outside_of_inference_mode_is_noticed_inside() -> None:
    cross, own = slnn.MultiHeadAttention(WIDTH, heads=4), slnn.KVCache()
    memory, x = torch.randn(2, 5, WIDTH), torch.randn(2, 1, WIDTH)
    with torch.inference_mode():
        cross(x, memory, cache=own)
    memory.mul_(-2)
    with torch.inference_mode():
        torch.testing.assert_close(cross(x, memory, cache=own), cross(x, memory))


def test_what_torch_does_not_count_is_not_noticed() -> None:
    """As documented: there is no way to know."""
    cross, own = slnn.MultiHeadAttention(WIDTH, heads=4), slnn.KVCache()
    numbers = np.ones((2, 5, WIDTH), dtype=np.float32)
    memory, x = torch.from_numpy(numbers), torch.randn(2, 1, WIDTH)
    with torch.no_grad():
        first = cross(x, memory, cache=own)
        numbers *= -2
        assert torch.equal(cross(x, memory, cache=own), first)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("again", [lambda m: m, lambda m: m[:], lambda m: m.clone()])
def test_the_same_memory_is_read_once(
    again: Callable[[Tensor], Tensor], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of()
    calls = counted(decoder, monkeypatch)
    cache = decoder.new_cache()
    with MODES[mode]():
        memory = torch.randn(2, 5, WIDTH)
        for x in torch.randn(3, 2, 1, WIDTH):
            decoder(x, again(memory), cache=cache)
    cross = sum(own._source is not None for own in cache)
    assert cross == 2
    # With gradients, self-attention makes its keys and values in the same place.
    assert len(calls) == 2 + (3 * 2 if mode == "grad" else 0)


def test_all_layers_hold_one_copy_of_a_memory_made_in_inference_mode() -> None:
    decoder = decoder_of(layers=3)
    cache = decoder.new_cache()
    with torch.inference_mode():
        memory = torch.randn(2, 5, WIDTH)
        for x in torch.randn(3, 2, 1, WIDTH):
            decoder(x, memory, cache=cache)
        held = [own._source.tensors for own in cache if own._source is not None]
    assert len({id(t) for pair in held for t in pair}) == 1
    assert len(held) == 3


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_beams_and_their_memory(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of()
    cache, kept = decoder.new_cache(), [1, 1, 0]
    calls = counted(decoder, monkeypatch)
    with MODES[mode]():
        memory, x, y = torch.randn(2, 5, WIDTH), torch.randn(2, 2, WIDTH), torch.randn(3, 1, WIDTH)
        decoder(x, memory, cache=cache)
        cache.reorder(kept)
        step = decoder(y, memory[kept], cache=cache)
        assert len(calls) == 2  # the chosen memory is the one that was read
        expected = decoder(torch.cat((x[kept], y), 1), memory[kept])[:, -1:]
        torch.testing.assert_close(step, expected, atol=1e-5, rtol=1e-4)
        cache.reorder([2, 1, 0])
        other = decoder(y, memory[kept], cache=cache)  # not chosen anew: the memory that is given counts
        turned = torch.cat((x[kept], y), 1)[[2, 1, 0]]
        memories = torch.stack((memory[kept], memory[kept][[2, 1, 0]]))
        past = [decoder(turned, m)[:, -1:] for m in memories]  # a past that has read the turned memory
        assert not torch.allclose(past[0], past[1], atol=1e-3)
        fresh = decoder.new_cache()
        for layer, known in zip(fresh.layers, cache.layers, strict=True):
            layer.attention.append(known.attention.keys[..., :3, :], known.attention.values[..., :3, :])
        torch.testing.assert_close(other, decoder(y, memory[kept], cache=fresh))


def test_a_memory_that_was_changed_is_not_chosen() -> None:
    cross, own = slnn.MultiHeadAttention(WIDTH, heads=4), slnn.KVCache()
    memory, x = torch.randn(2, 5, WIDTH), torch.randn(2, 1, WIDTH)
    with torch.no_grad():
        cross(x, memory, cache=own)
        memory.mul_(-2)
        own.reorder([1, 0])
        torch.testing.assert_close(cross(x, memory[[1, 0]], cache=own), cross(x, memory[[1, 0]]))


def test_keys_and_values_of_two_memories() -> None:
    cross, own = slnn.MultiHeadAttention(WIDTH, heads=4, memory_width=(8, 6)), slnn.KVCache()
    keys, values, x = torch.randn(2, 5, 8), torch.randn(2, 5, 6), torch.randn(2, 1, WIDTH)
    with torch.no_grad():
        for _ in range(2):
            cross(x, (keys, values), cache=own)
        values.add_(1)
        torch.testing.assert_close(cross(x, (keys, values), cache=own), cross(x, (keys, values)))
        with pytest.raises(ValueError, match="the cache holds another memory"):
            cross(x, (keys, values[:, :4]), cache=own)


def test_a_copy_of_a_cache_is_one_of_its_own() -> None:
    decoder = decoder_of()
    memory, x = torch.randn(2, 5, WIDTH), torch.randn(2, 1, WIDTH)
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(x, memory.requires_grad_() * 1, cache=cache)
        branch = copy.deepcopy(cache)
        assert torch.equal(decoder(x, memory, cache=branch), decoder(x, memory, cache=cache))


# torch's modes


def gradients(decoder: slnn.Decoder, loss: Tensor) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(decoder.parameters()), allow_unused=True))


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_a_cache_filled_without_gradients_is_used_with_them(mode: str) -> None:
    """The past gives no gradient; all else does, the memory included, as in a call without a cache."""
    decoder = decoder_of().double()
    memory, prompt = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 3, WIDTH).double()
    cache, plain = decoder.new_cache(), decoder.new_cache()
    with MODES[mode]():
        decoder(prompt, memory, cache=cache)
    with torch.no_grad():
        decoder(prompt, memory.clone(), cache=plain)
    for own in plain:
        own._source = None  # makes all anew
    wanted = memory.clone().requires_grad_()
    given = memory.requires_grad_()
    steps = torch.randn(2, 2, 1, WIDTH).double()
    mine = sum(decoder(x, given, cache=cache).square().sum() for x in steps)
    theirs = sum(decoder(x, wanted, cache=plain).square().sum() for x in steps)
    assert torch.equal(mine, theirs)
    got = torch.autograd.grad(mine, [*decoder.parameters(), given])
    torch.testing.assert_close(got, torch.autograd.grad(theirs, [*decoder.parameters(), wanted]))
    assert all(g.abs().sum() > 0 for g in got)


def test_gradients_reach_the_memory_that_was_given() -> None:
    """Another tensor with the same numbers is the same memory, unless it wants a gradient of its own."""
    cross, own = slnn.MultiHeadAttention(WIDTH, heads=4), slnn.KVCache()
    first, x = torch.randn(2, 5, WIDTH, requires_grad=True), torch.randn(2, 1, WIDTH)
    second = first.detach().clone().requires_grad_()
    third = second.detach().requires_grad_()  # in the same place
    for memory in (first, second, third):
        cross(x, memory, cache=own).sum().backward()
    assert torch.equal(first.grad, second.grad)
    assert torch.equal(first.grad, third.grad)
    assert first.grad.abs().sum() > 0


@pytest.mark.parametrize("learned", ["query", "value", "output"])
@pytest.mark.parametrize("mode", ["no_grad", "inference", "grad"])
def test_a_part_is_learned_over_several_steps(learned: str, mode: str) -> None:
    """What has no gradient is written in place, and autograd may have kept it."""
    attention = slnn.MultiHeadAttention(WIDTH, heads=4).double().requires_grad_(False)
    prompt, steps = torch.randn(2, 3, WIDTH).double(), torch.randn(2, 4, WIDTH).double()
    cache = slnn.KVCache(capacity=8)
    with MODES[mode]():
        attention(prompt, cache=cache)
    getattr(attention, learned).requires_grad_(True)
    parameters = [p for p in attention.parameters() if p.requires_grad]
    loss = sum(attention(x, cache=cache).square().sum() for x in steps.split(1, 1))
    got = torch.autograd.grad(loss, parameters)

    with torch.no_grad():
        keys, values = attention._project(prompt, prompt)
    expected = []
    for n in range(1, 5):
        q, k, v = attention._project_all(steps[:, :n])
        z = attention._attend(q[..., -1:, :], torch.cat((keys, k), -2), torch.cat((values, v), -2), None, None)
        expected.append(attention.output(z.transpose(-3, -2).flatten(-2)).square().sum())
    torch.testing.assert_close(got, torch.autograd.grad(sum(expected), parameters))


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("third", MODES)
def test_modes_in_any_order(first: str, second: str, third: str) -> None:
    decoder = decoder_of()
    cache, x, memory = decoder.new_cache(), torch.randn(2, 6, WIDTH), torch.randn(2, 5, WIDTH)
    out = []
    for mode, span in zip((first, second, third), (slice(0, 3), slice(3, 4), slice(4, 6)), strict=True):
        with MODES[mode]():
            out.append(decoder(x[:, span], memory, cache=cache))
            if mode == "grad":
                out[-1].sum().backward(retain_graph=True)
    whole = decoder(x, memory)
    torch.testing.assert_close(torch.cat([part.detach() for part in out], 1), whole, atol=1e-5, rtol=1e-4)
    scale = torch.ones(1, requires_grad=True)
    sum((own.keys * own.values * scale).sum() for own in cache).backward()  # what is read outside can be saved
    assert scale.grad is not None
