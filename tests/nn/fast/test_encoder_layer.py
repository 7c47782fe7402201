from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import sightline as sl
from sightline.nn import EncoderLayer
from sightline.nn.fast.encoder_layer import Lean


def made(**options):
    torch.manual_seed(3)
    layer = EncoderLayer(16, heads=4, **options).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return layer


def encode(layer, x, mask):
    return layer._lean.encode(layer, x, mask)


def by_modules(monkeypatch, layer, x, **options):
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(Lean, "encode", lambda *_: None)
        return layer(x, **options)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"kv_heads": 2}, {"gated": True, "activation": "silu"}, {"activation": "relu"}, {"bias": False},
     {"softcap": 2.0},
     {"sinks": True}, {"head_dim": 5}, {"mask": sl.window(2)}, {"normalizer": "relu"}],
    ids=str,
)  # fmt: skip
def test_it_gives_the_bits_of_the_modules(monkeypatch, options, norm_first):
    layer, x = made(norm_first=norm_first, **options), torch.randn(2, 7, 16)
    for mask in (None, sl.causal(), sl.padding([3, 7])):
        with torch.no_grad():
            assert layer._lean.encode(layer, x, layer._masked(mask)) is not None
            assert torch.equal(layer(x, mask=mask), by_modules(monkeypatch, layer, x, mask=mask))


def test_a_sequence_without_a_batch(monkeypatch):
    layer, x = made(), torch.randn(7, 16)
    with torch.no_grad():
        assert torch.equal(layer(x), by_modules(monkeypatch, layer, x))


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_inside_are_called(hook):
    layer, x = made(), torch.randn(2, 7, 16)
    names = [name for name, part in layer.named_modules() if name and not isinstance(part, nn.Dropout)]
    assert len(names) == 10
    for name in names:
        seen = []
        handle = getattr(layer.get_submodule(name), hook)(lambda *_, seen=seen: seen.append(1))
        with torch.no_grad():
            layer(x)
        handle.remove()
        assert seen, name


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("hook", ["register_module_forward_hook", "register_module_forward_pre_hook"])
def test_hooks_for_all_modules_are_called(monkeypatch, hook, older):
    if older:
        monkeypatch.delattr(nn.modules.module, "_has_any_global_hook", raising=False)
    layer, seen = made(), []
    handle = getattr(nn.modules.module, hook)(lambda module, *_: seen.append(module))
    with torch.no_grad():
        layer(torch.randn(2, 7, 16))
    handle.remove()
    assert layer.feed_forward.down in seen


def test_what_is_more_than_the_arithmetic_is_left_to_the_modules():
    x = torch.randn(2, 7, 16)
    assert encode(made(), x, None) is None, "gradients"
    with torch.no_grad():
        assert encode(made().train(), x, None) is None
        assert encode(made(norm_output=True), x, None) is None
        assert encode(made(norm="rms"), x, None) is None
        assert encode(made(positions=sl.alibi(4)), x, None) is None
        for name in ("attention.query", "attention.output", "feed_forward.down", "feed_forward"):
            layer = made()
            owner, _, own = name.rpartition(".")
            setattr(layer.get_submodule(owner), own, nn.Sequential(layer.get_submodule(name)))
            assert encode(layer, x, None) is None, name


def test_what_changes_after_the_first_call_is_seen(monkeypatch):
    x, changes = torch.randn(2, 7, 16), {
        "a parametrized weight": lambda layer: nn.utils.parametrizations.orthogonal(layer.attention.output),
        "positions": lambda layer: setattr(layer.attention, "positions", sl.positions.Rotary(4)),
        "a table of positions": lambda layer: setattr(layer.attention, "positions", sl.alibi(4)),
        "another projection": lambda layer: setattr(layer.attention, "key", nn.Linear(16, 16)),
        "another layer": lambda layer: setattr(layer, "feed_forward", nn.Identity()),
        "weights in place": lambda layer: layer.attention.value.weight.data.mul_(2),
        "a soft-cap": lambda layer: setattr(layer.attention, "softcap", 1.0),
    }  # fmt: skip
    for name, change in changes.items():
        layer = made()
        with torch.no_grad():
            before = layer(x)
            change(layer)
            after = layer(x)
        assert not torch.equal(before, after), name
        assert torch.equal(after, by_modules(monkeypatch, layer, x)), name


def test_copies_start_anew():
    layer, x = made(), torch.randn(2, 7, 16)
    with torch.no_grad():
        expected = layer(x)
        other = copy.deepcopy(layer)
        torch.testing.assert_close(other(x), expected)
        layer.attention.query.weight.zero_()
        torch.testing.assert_close(other(x), expected)


def test_what_is_observed_and_watched_is_the_same():
    layer, x = made(), torch.randn(2, 7, 16)
    with torch.no_grad():
        expected = layer(x, mask=sl.causal())
        out, sights = layer.observe(x, mask=sl.causal(), stats="entropy")
        assert torch.equal(out, expected)
        assert list(sights) == ["attention"]
        with sl.watch(layer) as seen:
            assert torch.equal(layer(x, mask=sl.causal()), expected)
    assert list(seen.layers) == ["attention"]
