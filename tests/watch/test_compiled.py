"""Models that torch.compile has wrapped, and FlexAttention."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.errors import InputError
from sightline.watch import watch


class Layer(nn.Module):
    def forward(self, q, k):
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)


@pytest.mark.parametrize("way", ["wrapped", "in place", "inside"])
def test_a_compiled_model_runs_uncompiled_while_it_is_watched(way):
    calls = []

    def backend(graph, inputs):
        def run(*args):
            calls.append(way)
            return graph(*args)

        return run

    torch._dynamo.reset()
    inner = nn.Module()
    inner.attn = Layer()
    inner.forward = lambda q, k: inner.attn(q, k)
    model = inner
    if way == "wrapped":
        model = torch.compile(Layer(), backend=backend)
    elif way == "in place":
        model = Layer()
        model.compile(backend=backend)
    else:
        model = nn.Sequential()
        model.add_module("attn", torch.compile(Layer(), backend=backend))
        model.forward = lambda q, k: model.attn(q, k)
    q, k = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    with torch.no_grad():
        plain = model(q, k)
        assert calls
        calls.clear()
        with watch(model) as seen:
            out = model(q, k)
        assert not calls
        torch.testing.assert_close(out, plain)
        model(q, k)
        assert calls, "compiled again afterwards"
    assert seen.layers == (["attn"] if way == "inside" else ["Layer"])
    assert seen[0].shape == (1, 2, 6, 6)


class Flex(nn.Module):
    def __init__(self, score_mod=None, block_mask=None):
        super().__init__()
        self.score_mod, self.block_mask = score_mod, block_mask

    def forward(self, q, k):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, k, score_mod=self.score_mod, block_mask=self.block_mask, enable_gqa=True)


def block_mask(function, queries, keys, batch=None, heads=None):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(function, batch, heads, queries, keys, device="cpu", BLOCK_SIZE=16)


DOCUMENTS = torch.arange(40) // 13
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
MASKS = {
    "none": None,
    "causal": lambda b, h, i, j: i >= j,
    "documents": lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j),
    "by head": lambda b, h, i, j: (i - j).abs() <= h,
}
SCORES = {
    "none": (None, lambda s: s),
    "alibi": (lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(), None),
    "capped": (lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0), None),
    "capped and shifted": (lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0) + 0.1 * (i - j), None),
}


@pytest.fixture
def silent():
    """Uncompiled FlexAttention warns once that it is slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("scored", SCORES)
def test_flex_attention(silent, masked, scored):
    q, k = torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8)
    function, mod = MASKS[masked], SCORES[scored][0]
    model = Flex(mod, None if function is None else block_mask(function, 40, 40, heads=4))
    with torch.no_grad():
        plain = model(q, k)
        with watch(model, keep_qk=True) as seen:
            out = model(q, k)
    assert torch.equal(out, plain)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT / 8**0.5
    index = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if mod is not None:
        scores = mod(scores, *index)
    if function is not None:
        scores = scores.masked_fill(~function(*index), -torch.inf)
    weights = scores.softmax(-1)
    sight = seen[0]
    torch.testing.assert_close(sight.tile(slice(0, 40), slice(0, 40)).double(), weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(sight.received().double(), weights.sum(-2), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.shares(0)["same"].double(), weights.diagonal(dim1=-2, dim2=-1), atol=1e-6, rtol=0)


def test_flex_attention_as_on_a_gpu(monkeypatch):
    """There the call runs compiled; what the compiler makes of it does not matter here."""
    from torch.nn.attention import flex_attention as torch_flex

    module = importlib.import_module("sightline.watch.flex")
    compiled = []

    def compile_eager(call, **options):
        compiled.append(options)
        return original(call, **{"backend": "eager", **options})

    original, run = torch.compile, module._run
    module._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", compile_eager)
    monkeypatch.setattr(module, "_run", lambda func, args, kwargs, on_gpu: run(func, args, kwargs, True))
    monkeypatch.setattr(torch_flex, "_WARNINGS_SHOWN", set(), raising=False)  # nobody is told to compile it
    q, k = torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8)
    model = Flex(SCORES["alibi"][0], block_mask(MASKS["causal"], 40, 40, heads=4))
    with torch.no_grad(), watch(model, keep_qk=True) as seen:
        out = model(q, k)
    assert {"fullgraph": True} in compiled
    weights = seen[0].tile(slice(0, 40), slice(0, 40))
    torch.testing.assert_close(out, weights @ k.repeat_interleave(2, 1), atol=1e-5, rtol=0)
    scores = q @ k.repeat_interleave(2, 1).mT / 8**0.5
    index = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    scores = SCORES["alibi"][0](scores, *index).masked_fill(~MASKS["causal"](*index), -torch.inf)
    torch.testing.assert_close(weights, scores.softmax(-1), atol=1e-5, rtol=0)
    assert not torch_flex._WARNINGS_SHOWN
    module._compiled.cache_clear()


def test_a_score_mod_that_is_neither_bias_nor_cap_is_refused(silent):
    model = Flex(lambda s, b, h, i, j: s * (1 + h))
    q = torch.randn(1, 2, 8, 8)
    with torch.no_grad(), pytest.raises(InputError, match="a score_mod that adds a bias") as error, watch(model):
        model(q, q)
    assert "Flex cannot be watched" in str(error.value)
    sequence = nn.Module()
    sequence.odd, sequence.plain = model, Layer()
    sequence.forward = lambda q: sequence.plain(sequence.odd(q, q), q)
    with torch.no_grad(), watch(sequence, layers="plain") as seen:
        sequence.forward(q)
    assert seen.layers == ["plain"]


def test_transformers_flex_implementation(silent):
    import watch_cases as tiny

    model, given = tiny.model("llama", "eager"), tiny.inputs("llama", "left")
    with torch.no_grad():
        expected = model(**given, output_attentions=True)
    function = MASKS["causal"]
    real = given["attention_mask"].bool()
    blocks = block_mask(lambda b, h, i, j: function(b, h, i, j) & real[b, j], 12, 12, batch=3)
    from transformers.integrations import flex_attention

    calls = []

    def dense(module, query, key, value, mask, scaling=None, **kwargs):
        calls.append(mask)
        from torch.nn.attention.flex_attention import flex_attention as flex

        return flex(query, key, value, block_mask=mask, scale=scaling, enable_gqa=True).transpose(1, 2), None

    dense.__name__ = flex_attention.flex_attention_forward.__name__
    from transformers import AttentionInterface

    AttentionInterface.register("own_flex", dense)
    try:
        other = tiny.model("llama", "own_flex")
        with torch.no_grad(), watch(other) as seen:
            other(**given | {"attention_mask": blocks})
    finally:
        AttentionInterface._global_mapping.pop("own_flex")
    assert len(calls) == 2
    for name, weights in zip(seen.layers, expected.attentions):
        rows = real[:, None, :, None]
        torch.testing.assert_close(
            seen[name].tile(slice(0, 12), slice(0, 12)) * rows, weights * rows, atol=1e-5, rtol=0
        )
