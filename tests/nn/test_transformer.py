"""Encoder and decoder together (S1.7, S2.2)."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline import nn as slnn

SCHEMES = {
    "none": lambda: None,
    "sinusoidal": lambda: sl.positions.Sinusoidal(16),
    "learned": lambda: sl.positions.Learned(16, length=9),
    "rotary": lambda: sl.positions.Rotary(4),
    "alibi": lambda: sl.alibi(4),
}


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_step_by_step_equals_the_full_pass(scheme, kv_heads):
    model = slnn.Transformer(16, 4, 1, 2, positions=SCHEMES[scheme](), kv_heads=kv_heads)
    source, target, real = torch.randn(2, 9, 16), torch.randn(2, 6, 16), sl.padding([9, 5])
    full = model(source, target, source_mask=real, memory_mask=real).detach()
    for chunks in ([1] * 6, [3, 1, 2]):
        with torch.no_grad():
            memory, cache = model.encoder(source, mask=real), model.decoder.new_cache()
            out, start = [], 0
            for n in chunks:
                out.append(model.decoder(target[:, start : start + n], memory, memory_mask=real, cache=cache))
                start += n
        torch.testing.assert_close(torch.cat(out, 1), full, atol=1e-5, rtol=1e-4)


def test_the_memory_is_projected_once():
    model = slnn.Transformer(16, 4, 1, 2)
    calls = []
    for layer in model.decoder.layers:
        layer.cross_attention.key.register_forward_hook(lambda *_: calls.append(1))
    memory, cache = torch.randn(2, 9, 16), model.decoder.new_cache()
    with torch.no_grad():
        for _ in range(5):
            model.decoder(torch.randn(2, 1, 16), memory, cache=cache)
    assert len(calls) == 2


def test_padding_of_the_source_does_not_reach_the_target():
    model = slnn.Transformer(16, 4, 2, 2, positions=sl.positions.Sinusoidal(16))
    source, target, real = torch.randn(2, 9, 16), torch.randn(2, 6, 16), sl.padding([9, 5])
    out = model(source, target, source_mask=real, memory_mask=real)
    torch.testing.assert_close(out[1], model(source[1, :5], target[1]))


def test_gradients_reach_every_parameter():
    model = slnn.Transformer(16, 4, 1, 1, sinks=True, positions=sl.positions.Learned(16, length=7))
    model(torch.randn(2, 7, 16), torch.randn(2, 7, 16)).pow(3).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]


def test_two_sides_may_have_widths_and_positions_of_their_own():
    encoder = slnn.Encoder(8, 2, 1, positions=sl.positions.LatLon(8))
    decoder = slnn.Decoder(16, 4, 1, cross=True, memory_width=8, positions=sl.positions.Rotary(4))
    model = slnn.Transformer.of(encoder, decoder)
    places = torch.tensor([[0.0, 0.0], [50.0, 10.0], [-20.0, 130.0]])
    source, target = torch.randn(2, 3, 8), torch.randn(2, 5, 16)
    out = model(source, target, source_at=places)
    torch.testing.assert_close(out, decoder(target, encoder(source, at=places)))
    assert not torch.allclose(out, model(source, target, source_at=places.flip(0)))


def test_state_dict_round_trip():
    one, other = (slnn.Transformer(16, 4, 1, 1, norm="rms", gated=True) for _ in range(2))
    other.load_state_dict(one.state_dict())
    source, target = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
    assert torch.equal(one(source, target), other(source, target))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: slnn.Transformer(10, 4), "the width cannot be split into equal heads"),
        (
            lambda: slnn.Transformer(8, 2, 1, 1)(torch.zeros(2, 3, 9), torch.zeros(2, 3, 8)),
            "x does not fit this Encoder",
        ),
        (
            lambda: slnn.Transformer(8, 2, 1, 1)(torch.zeros(2, 3, 8), torch.zeros(2, 3, 9)),
            "x does not fit this Decoder",
        ),
        (lambda: slnn.Transformer.from_torch(torch.nn.Linear(2, 2)), "expected: torch.nn.Transformer\n  got: Linear"),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()
