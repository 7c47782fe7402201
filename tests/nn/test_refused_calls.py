"""A call that fails leaves no trace: all caches are as before it, and the next step has the bits it would have had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import sightline as sl
from sightline import nn as slnn

WIDTH = 16


class Stop(Exception):
    """What a user's own code raises."""


class Failing(torch.nn.Module):
    fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise Stop
        return x


def raises(error: type[BaseException]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        raise error

    return hook


def decoder_of(**options: Any) -> slnn.Decoder:
    torch.manual_seed(0)
    return slnn.Decoder(WIDTH, heads=4, layers=3, kv_heads=2, **options).eval()


def contents(cache: slnn.DecoderCache) -> list[Any]:
    return [(c.length, c.capacity, *((c.keys.clone(), c.values.clone()) if c.length else ())) for c in cache]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(len(x) == len(y) and x[:2] == y[:2] and all(map(torch.equal, x[2:], y[2:])) for x, y in zip(a, b))


X = torch.randn(2, 1, WIDTH, generator=torch.Generator().manual_seed(1))
NAN = torch.full((2, 1, WIDTH), torch.nan)  # what is refused must not be left behind
BAD_CALLS: dict[str, dict[str, Any]] = {
    "a mask of other keys": {"mask": torch.ones(1, 99, dtype=torch.bool)},
    "no mask at all": {"mask": "causal"},
    "a bias of other keys": {"bias": torch.zeros(1, 99)},
    "a memory mask of other keys": {"memory_mask": sl.padding([99, 99])},
    "too many tokens": {"x": NAN.expand(2, 4, WIDTH)},
    "positions of other tokens": {"at": torch.arange(7)},
    "another batch": {"x": NAN.expand(2, 1, WIDTH).repeat(2, 1, 1)},
    "another precision": {"x": NAN.double()},
    "another device": {"x": NAN.to("meta")},
    "another width": {"x": NAN[..., :-1]},
    "ids": {"x": torch.zeros(2, 1, WIDTH, dtype=torch.long)},
    "a memory of another batch": {"memory": torch.zeros(3, 5, WIDTH)},
    "a memory of another length": {"memory": torch.zeros(2, 6, WIDTH)},
    "a memory of another width": {"memory": torch.zeros(2, 5, 8)},
    "a memory of another precision": {"memory": torch.zeros(2, 5, WIDTH, dtype=torch.float64)},
    "no memory": {"memory": None},
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_refused_call_leaves_no_trace(what: str, mode: Any) -> None:
    decoder = decoder_of(cross=True, positions=sl.positions.Rotary(4))
    tried, plain = decoder.new_cache(capacity=6), decoder.new_cache(capacity=6)
    with mode():
        memory, prompt = torch.randn(2, 5, WIDTH), torch.randn(2, 3, WIDTH)
        for cache in (tried, plain):
            decoder(prompt, memory, cache=cache)
        before = contents(tried)
        call = {"x": NAN, "memory": memory, **BAD_CALLS[what]}
        with pytest.raises((sl.errors.SightlineError, RuntimeError)):
            decoder(call.pop("x"), call.pop("memory"), cache=tried, **call)
        assert same(contents(tried), before)
        for x in (X, X + 1):
            assert torch.equal(decoder(x, memory, cache=tried), decoder(x, memory, cache=plain))
        assert same(contents(tried), contents(plain))


def test_a_position_that_was_never_learned_is_refused_without_a_trace() -> None:
    decoder = decoder_of(positions=sl.positions.Learned(WIDTH, length=4))
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(torch.randn(2, 3, WIDTH), cache=cache)
        with pytest.raises(sl.errors.SightlineError):
            decoder(torch.randn(2, 2, WIDTH), cache=cache)
        assert [own.length for own in cache] == [3] * 3


@pytest.mark.parametrize("error", [Stop, torch.OutOfMemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "place",
    [
        "",
        "norm",
        "layers.0",
        "layers.1.attention",
        "layers.1.attention.output",
        "layers.2.cross_attention",
        "layers.2.feed_forward.down",
    ],
)
@pytest.mark.parametrize("capacity", [None, 3, 8])  # memory that grows, is replaced after the prompt, has room
def test_an_error_in_the_middle_leaves_no_trace(place: str, error: type[BaseException], capacity: int | None) -> None:
    decoder = decoder_of(cross=True)
    memory, prompt = torch.randn(2, 5, WIDTH), torch.randn(2, 2, WIDTH)
    tried, plain = decoder.new_cache(capacity), decoder.new_cache(capacity)
    with torch.no_grad():
        hook = decoder.get_submodule(place).register_forward_hook(raises(error))
        with pytest.raises(error):  # the first call of all
            decoder(prompt, memory, cache=tried)
        assert [own.length for own in tried] == [0] * 6
        hook.remove()
        for cache in (tried, plain):
            decoder(prompt, memory, cache=cache)
        before = contents(tried)
        hook = decoder.get_submodule(place).register_forward_hook(raises(error))
        with pytest.raises(error):
            decoder(NAN, memory + 1, cache=tried)
        hook.remove()
        assert same(contents(tried), before)
        assert torch.equal(decoder(X, memory, cache=tried), decoder(X, memory, cache=plain))


def test_a_step_with_gradients_that_failed_leaves_no_gradient() -> None:
    decoder, other = decoder_of(), decoder_of()
    for model, fails in ((decoder, True), (other, False)):
        cache = model.new_cache()
        model(torch.ones(2, 2, WIDTH), cache=cache)
        if fails:
            hook = model.layers[2].register_forward_hook(raises(Stop))
            with pytest.raises(Stop):
                model(NAN, cache=cache)
            hook.remove()
        model(X, cache=cache).square().sum().backward()
    for mine, expected in zip(decoder.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, expected.grad)


def test_a_layer_and_an_attention_leave_no_trace_either() -> None:
    layer = decoder_of(cross=True).layers[0]
    memory, wrong = torch.randn(2, 5, WIDTH), torch.ones(1, 99, dtype=torch.bool)
    cache = layer.new_cache()
    with torch.no_grad():
        with pytest.raises(sl.errors.SightlineError):
            layer(X, memory, memory_mask=wrong, cache=cache)
        assert [own.length for own in cache] == [0, 0]
        own = slnn.KVCache()
        with pytest.raises(sl.errors.SightlineError):
            layer.attention(X, mask=wrong, cache=own)
        hook = layer.attention.register_forward_hook(raises(Stop))  # of the module that was called itself
        with pytest.raises(Stop):
            layer.attention(X, cache=own)
        hook.remove()
        assert (own.length, own.capacity) == (0, 0)


def test_a_compiled_decoder_leaves_no_trace() -> None:
    decoder = slnn.Decoder(WIDTH, heads=4, layers=2, cross=True).eval()
    decoder.norm = Failing()
    memory, prompt = torch.randn(2, 5, WIDTH), torch.randn(2, 3, WIDTH)
    tried, plain = decoder.new_cache(capacity=8), decoder.new_cache(capacity=8)
    with torch.no_grad():
        in_one_graph = torch.compile(decoder, backend="eager", fullgraph=True)
        torch.testing.assert_close(in_one_graph(prompt, memory, cache=tried), decoder(prompt, memory, cache=plain))
        compiled = torch.compile(decoder, backend="eager")
        decoder.norm.fails = True
        with pytest.raises(Stop):
            compiled(NAN, memory, cache=tried)
        decoder.norm.fails = False
        assert [own.length for own in tried] == [3, 5] * 2
        torch.testing.assert_close(compiled(X, memory, cache=tried), decoder(X, memory, cache=plain))


def test_beams_are_chosen_in_all_layers_or_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of()
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(torch.randn(2, 3, WIDTH), cache=cache)
    before = contents(cache)
    monkeypatch.setattr(cache.layers[1].attention, "_reorder", raises(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        cache.reorder([1, 0])
    assert same(contents(cache), before)


def test_a_cache_that_refuses_keeps_its_memory() -> None:
    cache = slnn.KVCache(capacity=4)
    cache.append(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
    cache.reset()
    with pytest.raises(sl.errors.InputError, match="the cache is full"):
        cache.append(torch.zeros(3, 1, 5, 4), torch.zeros(3, 1, 5, 4))
    assert cache.capacity == 4
