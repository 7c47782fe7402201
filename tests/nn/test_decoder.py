"""Decoders: causal, with or without a memory; and step by step with a cache equals the full pass."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline import nn as slnn

TIME = 10
SCHEMES = {
    "none": lambda: None,
    "sinusoidal": lambda: sl.positions.Sinusoidal(32),
    "learned": lambda: sl.positions.Learned(32, length=TIME),
    "rotary": lambda: sl.positions.Rotary(4),
    "llama3": lambda: sl.positions.Rotary(
        4,
        scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        },
    ),
    "alibi": lambda: sl.alibi(8),
}
# The first chunk of a prefix must hold the prefix, whose tokens see each other.
RULES = {"causal": (sl.causal(), 1), "window": (sl.window(2), 1), "prefix": (sl.prefix(3), 3)}


def decode(decoder, x, chunks, memory=None, mask_at=None, **options):
    """Decode x in chunks with a cache, and put the results together."""
    cache = decoder.new_cache()
    out, start = [], 0
    with torch.no_grad():
        for n in chunks:
            if mask_at is not None:
                options["mask"] = mask_at(start + n)
            parts = () if memory is None else (memory,)
            out.append(decoder(x[..., start : start + n, :], *parts, cache=cache, **options))
            start += n
            assert cache.length == start
    return torch.cat(out, -2)


def steps(first):
    return [first] + [1] * (TIME - first)


@pytest.mark.parametrize("kv_heads", [8, 4, 1])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_step_by_step_equals_the_full_pass(scheme, rule, kv_heads):
    mask, first = RULES[rule]
    decoder = slnn.Decoder(32, heads=8, layers=2, kv_heads=kv_heads, positions=SCHEMES[scheme](), mask=mask)
    x = torch.randn(2, TIME, 32)
    full = decoder(x).detach()
    torch.testing.assert_close(decode(decoder, x, steps(first)), full, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(decode(decoder, x, [4, 3, 3]), full, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunks", [steps(1), [3, 1, 4, 2]])
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "rms", "gated": True, "activation": "silu", "bias": False, "kv_heads": 2},  # Llama
        {
            "mask": [sl.window(3), sl.causal()],
            "softcap": 5.0,
            "scale": 0.3,
            "norm": "rms",
            "norm_output": True,
        },  # Gemma-2
        {"mask": [sl.window(3), sl.causal()], "sinks": True, "kv_heads": 2},  # gpt-oss
        {"norm_first": False, "activation": "relu"},
        {"normalizer": "sigmoid"},
    ],
)
def test_step_by_step_equals_the_full_pass_for_the_options_of_real_models(options, chunks):
    decoder = slnn.Decoder(32, heads=8, layers=2, positions=sl.positions.Rotary(4), **options)
    x = torch.randn(2, TIME, 32)
    torch.testing.assert_close(decode(decoder, x, chunks), decoder(x).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunks", [steps(1), [3, 1, 4, 2]])
def test_step_by_step_with_documents(chunks):
    decoder = slnn.Decoder(32, heads=8, layers=2, kv_heads=2, positions=sl.positions.Rotary(4))
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 1, 1, 1, 1, 2]])
    x = torch.randn(2, TIME, 32)
    out = decode(decoder, x, chunks, mask_at=lambda n: sl.documents(ids[:, :n]))
    torch.testing.assert_close(out, decoder(x, mask=sl.documents(ids)).detach(), atol=1e-5, rtol=1e-4)
    alone = decoder(x[0, 4:7]).detach()  # only the distance counts for rotary positions
    torch.testing.assert_close(out[0, 4:7], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "rotary"])
def test_left_padded_prompts_decode_as_if_alone(scheme):
    decoder = slnn.Decoder(32, heads=8, layers=2, positions=SCHEMES[scheme]())
    x = torch.randn(2, TIME, 32)
    real = torch.ones(2, TIME, dtype=torch.bool)
    real[1, :3] = False
    at = torch.stack((torch.arange(TIME), (torch.arange(TIME) - 3).clamp_min(0)))
    cache = decoder.new_cache()
    out = []
    with torch.no_grad():
        for start, stop in ((0, 6), (6, 7), (7, 10)):
            span = slice(start, stop)
            out.append(decoder(x[:, span], mask=sl.padding(real[:, :stop]), at=at[:, span], cache=cache))
    out = torch.cat(out, 1)
    torch.testing.assert_close(out[0], decoder(x[0]).detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out[1, 3:], decoder(x[1, 3:]).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_step_by_step_with_other_batches(batch):
    decoder = slnn.Decoder(32, heads=8, layers=1, kv_heads=2, positions=sl.positions.Rotary(4))
    x = torch.randn(*batch, TIME, 32)
    torch.testing.assert_close(decode(decoder, x, steps(2)), decoder(x).detach(), atol=1e-5, rtol=1e-4)


def test_a_layer_and_an_attention_can_be_cached_alone():
    layer = slnn.DecoderLayer(32, heads=8, positions=sl.positions.Rotary(4))
    x = torch.randn(2, TIME, 32)
    cache, own = layer.new_cache(), slnn.KVCache(capacity=TIME)
    attention = layer.attention
    with torch.no_grad():
        parts = [layer(x[:, i : i + 1], cache=cache) for i in range(TIME)]
        heads = [attention(x[:, i : i + 1], mask=sl.causal(), cache=own) for i in range(TIME)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x).detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.cat(heads, 1), attention(x, mask=sl.causal()).detach(), atol=1e-5, rtol=1e-4)


def test_gradients_through_the_cache_equal_those_of_the_full_pass():
    decoder = slnn.Decoder(16, heads=4, layers=2, kv_heads=2, positions=sl.positions.Rotary(4)).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    decoder(x).square().sum().backward()
    full = [p.grad.clone() for p in decoder.parameters()]
    decoder.zero_grad()
    cache = decoder.new_cache()
    sum(decoder(x[:, i : i + 1], cache=cache).square().sum() for i in range(5)).backward()
    torch.testing.assert_close([p.grad for p in decoder.parameters()], full)


def test_beams_follow_their_sequence():
    decoder = slnn.Decoder(16, heads=4, layers=2)
    x, y = torch.randn(2, 4, 16), torch.randn(3, 1, 16)
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(x, cache=cache)
        cache.reorder([1, 1, 0])
        step = decoder(y, cache=cache)
    torch.testing.assert_close(step, decoder(torch.cat((x[[1, 1, 0]], y), 1)).detach()[:, -1:], atol=1e-5, rtol=1e-4)


def test_the_future_is_not_seen():
    decoder = slnn.Decoder(16, heads=4, layers=2)
    x = torch.randn(2, 6, 16)
    changed = x.clone()
    changed[:, 4:] = torch.randn(2, 2, 16)
    assert torch.equal(decoder(x)[:, :4], decoder(changed)[:, :4])
    free = slnn.Decoder(16, heads=4, layers=2, mask=None)
    assert not torch.allclose(free(x)[:, :4], free(changed)[:, :4], atol=1e-3)


def test_a_window_forgets():
    decoder = slnn.Decoder(16, heads=4, layers=1, mask=sl.window(2))
    x = torch.randn(2, 8, 16)
    changed = x.clone()
    changed[:, :3] = torch.randn(2, 3, 16)
    out, other = decoder(x), decoder(changed)
    assert torch.equal(out[:, 5:], other[:, 5:])
    assert not torch.allclose(out[:, 4], other[:, 4], atol=1e-3)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_with_a_memory_has_three_parts(norm_first):
    layer = slnn.DecoderLayer(16, heads=4, cross=True, memory_width=6, norm_first=norm_first)
    x, memory, real = torch.randn(2, 5, 16), torch.randn(2, 7, 6), sl.padding([7, 3])
    parts = [
        (layer.attention_norm, lambda t: layer.attention(t, mask=sl.causal())),
        (layer.cross_attention_norm, lambda t: layer.cross_attention(t, memory, mask=real)),
        (layer.feed_forward_norm, layer.feed_forward),
    ]
    y = x
    for norm, part in parts:
        y = y + part(norm(y)) if norm_first else norm(y + part(y))
    torch.testing.assert_close(layer(x, memory, memory_mask=real), y)


def test_gradients_reach_every_parameter():
    decoder = slnn.Decoder(16, heads=4, layers=2, cross=True, memory_width=6, sinks=True, norm_output=True)
    memory = torch.randn(2, 7, 6, requires_grad=True)
    decoder(torch.randn(2, 5, 16), memory).pow(3).sum().backward()
    assert not [name for name, p in decoder.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]
    assert memory.grad.abs().sum() > 0


def cached(batch):
    decoder = slnn.Decoder(16, heads=4, layers=2)
    cache = decoder.new_cache(capacity=4)
    with torch.no_grad():
        decoder(torch.zeros(batch, 2, 16), cache=cache)
    return decoder, cache


def crossed(memory):
    decoder = slnn.Decoder(16, heads=4, layers=1, cross=True)
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(torch.zeros(2, 1, 16), torch.zeros(2, 7, 16), cache=cache)
        decoder(torch.zeros(2, 1, 16), memory, cache=cache)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: slnn.Decoder(16, 4, 1, cross=True)(torch.zeros(2, 5, 16)), "this decoder reads a memory"),
        (lambda: slnn.Decoder(16, 4, 1)(torch.zeros(2, 5, 16), torch.zeros(2, 5, 16)), "this decoder reads no memory"),
        (
            lambda: slnn.Decoder(16, 4, 1, cross=True)(torch.zeros(2, 5, 16), torch.zeros(2, 5, 8)),
            r"memory does not fit this MultiHeadAttention\n.*time, 16\]\n  got: \(2, 5, 8\)",
        ),
        (lambda: slnn.Decoder(16, 4, 1)(torch.zeros(2, 5, 8)), "x does not fit this Decoder"),
        (lambda: slnn.DecoderLayer(16, 4)(torch.zeros(2, 5, 8)), "x does not fit this DecoderLayer"),
        (lambda: slnn.Decoder(16, 4, 1)(torch.zeros(2, 5, 16), cache=slnn.KVCache()), "not a cache of this decoder"),
        (lambda: slnn.Decoder(16, 4, 1)(torch.zeros(2, 5, 16), cache=cached(2)[1]), "DecoderCache of 1 layers"),
        (lambda: (d := cached(2))[0](torch.zeros(3, 1, 16), cache=d[1]), "do not fit what the cache holds"),
        (lambda: (d := cached(2))[0](torch.zeros(2, 3, 16), cache=d[1]), "the cache is full"),
        (lambda: crossed(torch.zeros(2, 8, 16)), "the cache holds another memory\n  expected: .* 7 tokens"),
        (lambda: crossed(torch.zeros(2, 7, 8)), "memory does not fit"),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()


def test_rotary_positions_are_worked_out_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary = sl.positions.Rotary(8)
    decoder, x = slnn.Decoder(32, heads=4, layers=3, positions=rotary), torch.randn(2, 6, 32)
    calls = []
    turns = rotary.turns
    monkeypatch.setattr(rotary, "turns", lambda *args: calls.append(1) or turns(*args))
    with torch.no_grad():
        once = decoder(x)
        assert len(calls) == 1
        expected = x
        for layer in decoder.layers:
            expected = layer(expected)
        assert torch.equal(once, decoder.norm(expected))
        assert len(calls) == 1 + 2 * 3
        # Layers with schemes of their own still use them.
        decoder.layers[1].attention.positions = sl.positions.Rotary(8, base=50.0)
        expected = decoder.norm(decoder.layers[2](decoder.layers[1](decoder.layers[0](x))))
        assert torch.equal(decoder(x), expected)
        assert not torch.allclose(expected, once)
