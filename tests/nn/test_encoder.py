"""Encoder layers and encoders (S0.2, S0.6, S2.2): (B, T, C) in, (B, T, C) out, for anything."""

from __future__ import annotations

import copy

import pytest
import torch

import sightline as sl
from sightline import nn as slnn

SCHEMES = {
    "none": lambda: None,
    "sinusoidal": lambda: sl.positions.Sinusoidal(16),
    "learned": lambda: sl.positions.Learned(16, length=12),
    "grid": lambda: sl.positions.Grid(16, rows=3, columns=4),
    "rotary": lambda: sl.positions.Rotary(4),
    "alibi": lambda: sl.alibi(4),
}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm_output", [True, False])
def test_a_layer_is_attention_and_feed_forward_each_added_to_its_input(norm_first, norm_output):
    layer = slnn.EncoderLayer(16, heads=4, norm_first=norm_first, norm_output=norm_output)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(2, 5, 16)
    one, two = layer.attention_norm, layer.feed_forward_norm
    last = (layer.attention_output_norm, layer.feed_forward_output_norm) if norm_output else (lambda t: t,) * 2
    if norm_first:
        y = x + last[0](layer.attention(one(x)))
        expected = y + last[1](layer.feed_forward(two(y)))
    else:
        y = one(x + last[0](layer.attention(x)))
        expected = two(y + last[1](layer.feed_forward(y)))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("norm_first", [True, False])
def test_shuffled_input_gives_shuffled_output_only_without_positions(name, norm_first):
    encoder = slnn.Encoder(16, heads=4, layers=2, positions=SCHEMES[name](), norm_first=norm_first).double()
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    order = torch.randperm(12)
    same = torch.allclose(encoder(x[:, order]), encoder(x)[:, order], atol=1e-9)
    assert same == (name == "none")


def test_an_image_and_a_weather_field_run_through_the_same_code():
    image = torch.rand(2, 8, 8, 3)  # RGB: three channels
    pixels = image.flatten(1, 2)
    assert slnn.Encoder(3, heads=1, layers=1)(pixels).shape == pixels.shape == (2, 64, 3)
    patches = image.unflatten(1, (4, 2)).unflatten(3, (4, 2)).transpose(2, 3).flatten(3).flatten(1, 2)
    width = patches.shape[-1]
    grid = sl.positions.Grid(width, rows=4, columns=4)
    assert slnn.Encoder(width, heads=3, layers=1, positions=grid)(patches).shape == (2, 16, 12)
    field = torch.randn(2, 6, 5)  # six stations, five variables
    stations = torch.tensor([[52.5, 13.4], [-33.9, 151.2], [0.0, 180.0], [0.0, -180.0], [90.0, 0.0], [1.0, 2.0]])
    encoder = slnn.Encoder(5, heads=5, layers=1, positions=sl.positions.LatLon(5))
    assert encoder(field, at=stations).shape == field.shape


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_any_batch_equals_its_members(batch):
    encoder = slnn.Encoder(16, heads=4, layers=2, kv_heads=2, norm="rms", positions=sl.positions.Rotary(4))
    x = torch.randn(*batch, 5, 16)
    out = encoder(x)
    assert out.shape == x.shape
    members = torch.stack([encoder(member) for member in x.reshape(-1, 5, 16)]).reshape(x.shape)
    torch.testing.assert_close(out, members)


def test_padding_does_not_reach_real_tokens():
    encoder = slnn.Encoder(16, heads=4, layers=2)
    x = torch.randn(2, 6, 16)
    out = encoder(x, mask=sl.padding([6, 4]))
    torch.testing.assert_close(out[1, :4], encoder(x[1, :4]))


def test_the_mask_of_a_layer_and_of_a_call_both_hold():
    rules = [sl.window(1, 1), None]
    encoder = slnn.Encoder(16, heads=4, layers=2, mask=rules)
    assert [layer.mask for layer in encoder.layers] == rules
    x, real = torch.randn(2, 6, 16), sl.padding([6, 4])
    y = encoder.layers[0](x, mask=real)
    free = slnn.Encoder(16, heads=4, layers=2)
    free.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(y, free.layers[0](x, mask=sl.window(1, 1) & real))
    torch.testing.assert_close(encoder(x, mask=real), free.norm(free.layers[1](y, mask=real)))


def test_bias_reaches_every_layer():
    encoder = slnn.Encoder(16, heads=4, layers=2)
    x, bias = torch.randn(2, 5, 16), torch.zeros(5, 5)
    bias[:, 3:] = -torch.inf
    torch.testing.assert_close(encoder(x, bias=bias)[:, :3], encoder(x[:, :3]))


@pytest.mark.parametrize(
    "norm_first, final_norm, there", [(True, None, 1), (False, None, 0), (True, False, 0), (False, True, 1)]
)
def test_pre_norm_stacks_end_with_a_norm(norm_first, final_norm, there):
    encoder = slnn.Encoder(16, heads=4, layers=2, norm="rms", norm_first=norm_first, final_norm=final_norm)
    assert (encoder.norm is not None) == there
    if there:
        assert isinstance(encoder.norm, torch.nn.RMSNorm)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_gradients_reach_every_parameter(norm_first, gated):
    options = {"norm_first": norm_first, "gated": gated, "sinks": True, "norm_output": True, "kv_heads": 2}
    encoder = slnn.Encoder(16, heads=4, layers=2, positions=sl.positions.Learned(16, length=6), **options)
    encoder(torch.randn(2, 6, 16)).pow(3).sum().backward()
    assert not [name for name, p in encoder.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]


@pytest.mark.parametrize("mask", [sl.window(2), sl.causal() & sl.padding([3, 5])], ids=str)
def test_compiled_as_one_graph_under_any_mask(mask):
    encoder = slnn.Encoder(16, heads=4, layers=2, kv_heads=2, sinks=True, positions=sl.positions.Rotary(4))
    x = torch.randn(2, 5, 16)
    torch.compiler.reset()
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mask=mask), encoder(x, mask=mask))
    grads = [torch.autograd.grad(f(x, mask=mask).square().sum(), encoder.parameters()) for f in (compiled, encoder)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "mask, options",
    [
        (None, {}),
        (sl.causal(), {"norm_first": False}),
        (sl.causal(), {"positions": sl.positions.Rotary(4), "norm": "rms", "gated": True}),
    ],
)
def test_compiled_as_one_graph_equals_eager(mask, options):
    encoder = slnn.Encoder(16, heads=4, layers=2, backend="sdpa", **options)
    x = torch.randn(2, 5, 16)
    torch.compiler.reset()
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, mask=mask), encoder(x, mask=mask))
    compiled(x, mask=mask).square().sum().backward()
    grads = [p.grad.clone() for p in encoder.parameters()]
    encoder.zero_grad()
    encoder(x, mask=mask).square().sum().backward()
    torch.testing.assert_close(grads, [p.grad for p in encoder.parameters()])


def test_per_sample_gradients():
    encoder = slnn.Encoder(8, heads=2, layers=1)
    x = torch.randn(3, 4, 8)

    def loss(parameters, sample):
        return torch.func.functional_call(encoder, parameters, (sample,)).square().sum()

    parameters = dict(encoder.named_parameters())
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        encoder.zero_grad()
        loss(parameters, x[i]).backward()
        for name, p in parameters.items():
            torch.testing.assert_close(each[name][i], p.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_other_precisions_and_autocast(norm, norm_first):
    encoder = slnn.Encoder(
        32, heads=4, layers=2, norm=norm, norm_first=norm_first, positions=sl.positions.Sinusoidal(32)
    )
    x = torch.randn(2, 6, 32)
    exact = copy.deepcopy(encoder).double()(x.double())
    torch.testing.assert_close(encoder(x).double(), exact, atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = encoder(x)
    torch.testing.assert_close(mixed.double(), exact, atol=0.1, rtol=0)
    half = encoder.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, atol=0.15, rtol=0)


def test_output_norms_under_autocast():
    encoder = slnn.Encoder(32, heads=4, layers=1, norm="rms", norm_output=True)
    x = torch.randn(2, 6, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = encoder(x)
    torch.testing.assert_close(mixed.float(), encoder(x), atol=0.1, rtol=0)


@pytest.mark.parametrize("name", SCHEMES)
def test_state_dict_round_trip(name, tmp_path):
    one, other = (slnn.Encoder(16, heads=4, layers=2, positions=SCHEMES[name]()) for _ in range(2))
    torch.save(one.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    x = torch.randn(2, 12, 16)
    assert torch.equal(one(x), other(x))


def test_dropout_acts_in_training_only():
    encoder = slnn.Encoder(16, heads=4, layers=1, dropout=0.3)
    x = torch.randn(2, 5, 16)
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))


@pytest.mark.parametrize("where", ["attention", "feed_forward", "residual"])
def test_dropout_acts_on_weights_on_hidden_channels_and_on_what_is_added(where):
    layer = slnn.EncoderLayer(16, heads=4, dropout=0.3)
    layer.attention.dropout = 0.3 * (where == "attention")
    layer.feed_forward.dropout.p = 0.3 * (where == "feed_forward")
    layer.dropout.p = 0.3 * (where == "residual")
    x = torch.randn(2, 5, 16)
    assert not torch.equal(layer(x), layer(x))


def test_an_encoder_of_layers_that_differ():
    layers = [slnn.EncoderLayer(16, heads=4), slnn.EncoderLayer(16, heads=2, norm="rms")]
    encoder = slnn.Encoder.of(layers, positions=sl.positions.Sinusoidal(16))
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(encoder(x), layers[1](layers[0](sl.positions.Sinusoidal(16)(x))))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: slnn.Encoder(16, 3, 1), "the width cannot be split into equal heads"),
        (lambda: slnn.Encoder(16, 4, 0), "layers is too small"),
        (lambda: slnn.Encoder.of([]), "a stack needs layers"),
        (lambda: slnn.Encoder(16, 4, 1, activation="tanh"), "unknown activation"),
        (lambda: slnn.Encoder(16, 4, 2, mask=[None]), "the masks do not fit the layers\n.*2: one for each"),
        (lambda: slnn.EncoderLayer(16, 4, mask=torch.ones(3, 3).bool()), "the mask of a layer is a rule"),
        (lambda: slnn.Encoder(16, 4, 1)(torch.zeros(2, 5, 8)), r"x does not fit this Encoder\n.*time, 16\]"),
        (lambda: slnn.EncoderLayer(16, 4)(torch.zeros(2, 5, 8)), "x does not fit this EncoderLayer"),
        (lambda: slnn.Encoder(16, 4, 1)(torch.zeros(2, 5, 16), at=3), "does not use `at`"),
        (
            lambda: slnn.Encoder.of([slnn.EncoderLayer(16, 4)], positions=sl.positions.Rotary(4)),
            "act inside the layers",
        ),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()
