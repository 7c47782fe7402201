"""Models that torch.compile has wrapped, and FlexAttention."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watch_cases as tiny
from sightline.errors import InputError
from sightline.watching import watch

pytestmark = pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning")


class Layer(nn.Module):
    def forward(self, q, k):
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)


class Block(nn.Module):
    """Attention over x, and things that a second run would do again, if asked to."""

    def __init__(self, dropout=0.0, counts=False):
        super().__init__()
        self.linear, self.dropout, self.counts, self.calls = nn.Linear(16, 16), dropout, counts, 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x, cache=None):
        if self.counts:
            self.total += 1
        if cache is not None:
            x = cache.add(x)
        y = self.linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
        out = F.scaled_dot_product_attention(y, y, y, is_causal=True, dropout_p=self.dropout)
        return x + out.transpose(1, 2).flatten(2)


class Backend:
    """A compiler that counts its graphs, and how often they run; its code gives other bits than eager's."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*args):
            self.runs += 1
            found = graph(*args)
            return tuple(x + 1e-6 if isinstance(x, torch.Tensor) and x.dim() else x for x in found)

        return run


@pytest.fixture
def backend():
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


def compiled_model(way, backend, **options):
    torch.manual_seed(3)
    model = nn.Sequential(Block(**options), Block(**options)).eval()
    if way == "wrapped":
        return torch.compile(model, backend=backend)
    if way == "in place":
        model.compile(backend=backend)
    elif way == "layers wrapped":
        model[0], model[1] = (torch.compile(part, backend=backend) for part in model)
    elif way == "layers in place":
        for part in model:
            part.compile(backend=backend)
    elif way == "forward":
        for part in model:
            part.forward = torch.compile(part.forward, backend=backend)
    return model


WAYS = ["wrapped", "in place", "layers wrapped", "layers in place", "forward"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [False, True])
def test_a_compiled_model_keeps_its_compiled_code(way, first, backend):
    """Whether it was compiled before the block, or is compiled in it."""
    model, eager = compiled_model(way, backend), compiled_model(None, None)
    x = torch.randn(1, 7, 16)
    with torch.no_grad():
        if not first:
            model(x)
        graphs = backend.graphs
        backend.runs = 0
        with watch(model, stats=tiny.STATS) as seen:
            out = model(x)
        runs = backend.runs
        assert 1 <= runs <= 2
        assert first or backend.graphs == graphs, "nothing was compiled for the watch"
        graphs = backend.graphs
        plain = model(x)
        assert (backend.graphs, backend.runs) == (graphs, 2 * runs), "compiled as before, not anew"
        assert torch.equal(out, plain)
        assert not torch.equal(out, eager(x))
        with watch(eager, stats=tiny.STATS) as expected:
            eager(x)
    assert seen.layers == ["0", "1"]
    assert seen.unseen == {}
    for name in seen.layers:
        assert len(seen._layers[name].parts) == 1
        torch.testing.assert_close(seen[name].entropy, expected[name].entropy, atol=1e-4, rtol=0)
        torch.testing.assert_close(seen[name].received(), expected[name].received(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_compiled_code(way, backend):
    model, x = compiled_model(way, "aot_eager"), torch.randn(2, 7, 16)
    grads = []
    for watched in (False, True):
        model.zero_grad()
        if watched:
            with watch(model) as seen:
                model(x).square().sum().backward()
        else:
            model(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    assert seen.layers == ["0", "1"]


class Cache:
    def __init__(self):
        self.adds = 0

    def add(self, x):
        self.adds += 1
        return x


@pytest.mark.parametrize("why", ["dropout", "cache", "buffer", "hook"])
def test_what_cannot_run_twice_is_named(why, backend):
    options = {"dropout": 0.5} if why == "dropout" else {"counts": True} if why == "buffer" else {}
    model = compiled_model("layers wrapped", backend, **options)
    x, calls, cache = torch.randn(1, 7, 16), [], Cache()
    if why == "hook":
        model[0]._orig_mod.linear.register_forward_hook(lambda *_: calls.append(1))
    model.forward = lambda x: model[1](model[0](x, cache if why == "cache" else None))
    with torch.no_grad():
        torch.manual_seed(1)
        model[0].total.zero_()
        model(x)
        calls.clear()
        added = cache.adds
        torch.manual_seed(1)
        model[0].total.zero_()
        plain = model(x)
        hooked, added = len(calls), cache.adds - added
        torch.manual_seed(1)
        model[0].total.zero_()
        calls.clear()
        if why in ("dropout", "buffer"):
            with pytest.warns(UserWarning, match="attended without being seen"), watch(model) as seen:
                out = model(x)
        else:
            with watch(model) as seen:
                out = model(x)
    assert torch.equal(out, plain)
    assert len(calls) == hooked
    assert cache.adds == 3 * added
    assert model[0].total == (1 if why == "buffer" else 0)
    words = {"dropout": "random numbers", "cache": "a Cache", "buffer": "changed its tensors", "hook": "with hooks"}
    assert words[why] in seen.unseen["0"]
    assert seen.layers == ([] if why in ("dropout", "buffer") else ["1"])


def test_compiled_code_without_attention_is_not_named(backend):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            mlp = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
            self.block, self.mlp = Block(), torch.compile(mlp, backend=backend)

        def forward(self, x):
            return self.mlp(self.block(x))

    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 7, 16))
    assert backend.runs == 1
    assert (seen.layers, seen.unseen) == (["block"], {})


def test_a_compiled_function_in_a_model_is_named(backend):
    attend = torch.compile(lambda y: F.scaled_dot_product_attention(y, y, y), backend=backend)

    class Calls(nn.Module):
        def forward(self, y):
            return attend(y)

    model, y = Calls(), torch.randn(1, 2, 7, 8)
    with torch.no_grad(), watch(model) as seen:
        model(y)
    assert "uncompiled" in seen.unseen["Calls"]


def test_a_compiled_model_of_transformers(backend):
    model, given = tiny.model("llama"), tiny.inputs("llama", "left", length=11)
    with torch.no_grad():
        expected = tiny.model("llama", "eager")(**given, output_attentions=True).attentions
        for part in model.model.layers:
            part.compile(backend=backend)
        plain = model(**given, use_cache=False).logits
        graphs = backend.graphs
        with watch(model) as seen:
            out = model(**given, use_cache=False).logits
        model(**given, use_cache=False)
    assert backend.graphs == graphs
    assert torch.equal(out, plain)
    assert seen.unseen == {}
    rows = given["attention_mask"][:, None, :, None]
    for name, weights in zip(seen.layers, expected):
        tile = seen[name].tile(slice(0, 11), slice(0, 11))
        torch.testing.assert_close(tile * rows, weights * rows, atol=1e-4, rtol=0)


def test_a_compiled_forward_that_attends_twice(backend):
    class Twice(nn.Module):
        def forward(self, y):
            return F.scaled_dot_product_attention(*[F.scaled_dot_product_attention(y, y, y)] * 3)

    model = Twice()
    model.forward = torch.compile(model.forward, backend=backend)
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 2, 7, 8))
    assert seen.layers == ["Twice", "Twice#2"]


def test_nothing_is_compiled_where_the_user_says_so(backend):
    model, x = compiled_model("layers wrapped", backend, dropout=0.5), torch.randn(1, 7, 16)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), watch(model) as seen:
        model(x)
    assert backend.runs == 0
    assert (seen.layers, seen.unseen) == (["0", "1"], {})


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("way", ["whole", "layers"])
def test_torchs_own_layers_compiled(way, first, backend):
    """Whose code asks torch whether somebody looks."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2).eval()
    run = torch.compile(model, backend=backend) if way == "whole" else model
    for i in range(2 if way == "layers" else 0):
        model.layers[i].compile(backend=backend)
    x = torch.randn(2, 11, 16)
    with torch.no_grad():
        if not first:
            run(x)
        graphs = backend.graphs
        with watch(run) as seen:
            out = run(x)
        assert first or backend.graphs == graphs
        graphs = backend.graphs
        assert torch.equal(run(x), out)
    assert backend.graphs == graphs
    assert (seen.layers, seen.unseen) == (["layers.0.self_attn", "layers.1.self_attn"], {})


def test_two_watches_of_compiled_code(backend):
    model, x = compiled_model("layers in place", backend), torch.randn(1, 7, 16)
    code = model[0]._compiled_call_impl
    with torch.no_grad(), watch(model) as outer:
        with watch(model, layers=1) as inside:
            model(x)
        assert model[0]._compiled_call_impl is not code
    assert model[0]._compiled_call_impl is code
    assert (outer.layers, inside.layers) == (["0", "1"], ["1"])
    assert all(len(layer.parts) == 1 for layer in outer._layers.values())


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

    module = importlib.import_module("sightline.watching.intercept.flex")
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
