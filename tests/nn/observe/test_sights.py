"""Looking into modules: the sights are right, and the outputs keep their bits."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import sightline as sl
from sightline import nn as slnn
from sightline.backends import reference
from sightline.errors import InputError, InputTypeError


@torch.no_grad()
def the_map(mha: slnn.MultiHeadAttention, x: torch.Tensor, memory: torch.Tensor, **options: object) -> torch.Tensor:
    """The whole map of a module, from its queries and keys by the definition in float64."""
    q, k = (
        project(of).double().unflatten(-1, (heads, mha.head_dim)).transpose(-3, -2)
        for project, of, heads in ((mha.query, x, mha.heads), (mha.key, memory, mha.kv_heads))
    )
    each_key = torch.eye(k.shape[-2], dtype=torch.float64).expand(*k.shape[:-2], -1, -1)
    sinks = None if mha.sinks is None else mha.sinks.double()
    own = {"scale": mha.scale, "softcap": mha.softcap, "sinks": sinks, "normalizer": mha.normalizer}
    return reference.matrix_view(q, k, each_key, **own, **options)


masks = st.sampled_from(
    [None, sl.causal(), sl.window(1, 1), sl.prefix(2), sl.causal() & sl.padding([3, 1]), sl.padding([0, 4])]
)


@given(
    mask=masks,
    kv_heads=st.sampled_from([1, 2, 4]),
    normalizer=st.sampled_from(["softmax", "relu", "sigmoid", "uniform"]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    bias=st.booleans(),
    times=st.tuples(st.integers(1, 6), st.integers(4, 7)),
    dropout=st.sampled_from([0.0, 0.3]),
    gradients=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_a_sight_is_the_map_and_the_output_keeps_its_bits(
    mask, kv_heads, normalizer, softcap, sinks, bias, times, dropout, gradients, dtype
) -> None:
    torch.manual_seed(0)
    mha = slnn.MultiHeadAttention(
        16,
        heads=4,
        kv_heads=kv_heads,
        normalizer=normalizer,
        softcap=softcap,
        sinks=sinks and normalizer == "softmax",
        dropout=dropout,
    ).to(dtype)
    x, memory = torch.randn(2, times[0], 16, dtype=dtype), torch.randn(2, times[1], 16, dtype=dtype)
    options = {"mask": mask, "bias": torch.randn(times, dtype=dtype) if bias else None}
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(1)
        out = mha(x, memory, **options)
        after = torch.get_rng_state()
        torch.manual_seed(1)
        again, sight = mha.observe(x, memory, stats=("entropy", "received"), **options)
    assert torch.equal(out, again)
    assert torch.equal(after, torch.get_rng_state())
    assert again.requires_grad == gradients
    assert not sight.entropy.requires_grad
    if gradients:
        both = (torch.autograd.grad(y.sum(), list(mha.parameters()), allow_unused=True) for y in (out, again))
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(*both, strict=True))
    assert sight.shape == (2, 4, *times)
    bias = None if options["bias"] is None else options["bias"].double()
    expected = the_map(mha, x, memory, mask=mask, bias=bias)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    tile = sight.tile(slice(None), slice(None)).double()
    torch.testing.assert_close(tile, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(sight.received().double(), expected.sum(-2), rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("positions", [None, sl.positions.Rotary(4), sl.alibi(4)])
@pytest.mark.parametrize("gradients", [False, True])
def test_stacks_observe_what_their_parts_do(positions, gradients) -> None:
    decoder = slnn.Decoder(16, heads=4, layers=3, positions=positions)
    x = torch.randn(2, 9, 16)
    with torch.set_grad_enabled(gradients):
        out, sights = decoder.observe(x, stats="max_score")
        assert torch.equal(out, decoder(x))
        assert list(sights) == [f"layers.{i}.attention" for i in range(3)]
        for i, layer in enumerate(decoder.layers):
            alone, one = layer.observe(x)
            assert list(one) == ["attention"]
            assert torch.equal(one["attention"].lse, sights[f"layers.{i}.attention"].lse)
            assert torch.equal(one["attention"].entropy, sights[f"layers.{i}.attention"].entropy)
            x = alone


def test_only_the_layers_that_are_chosen_are_looked_at(monkeypatch) -> None:
    model = slnn.Transformer(16, heads=2, encoder_layers=2, decoder_layers=2)
    source, target = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    calls = []
    real = sl.lens.look
    monkeypatch.setattr("sightline.lens.look", lambda *a, **b: calls.append(0) or real(*a, **b))
    out, sights = model.observe(source, target, layers="decoder.*.cross*", stats=sl.Top(2))
    assert torch.equal(out, model(source, target))
    assert {name: sight.shape for name, sight in sights.items()} == {
        "decoder.layers.0.cross_attention": (2, 2, 4, 5),
        "decoder.layers.1.cross_attention": (2, 2, 4, 5),
    }
    assert len(calls) == 2
    assert model.observe(source, target, layers=[])[1] == {}


def test_one_head() -> None:
    head = slnn.AttentionHead(8, head_size=4, masked=True)
    x = torch.randn(3, 5, 8)
    out, sight = head.observe(x, mask=sl.padding([5, 2, 3]))
    assert torch.equal(out, head(x, mask=sl.padding([5, 2, 3])))
    assert sight.shape == (3, 1, 5, 5)
    assert sight.tile(slice(None), slice(None))[1, 0, 4].count_nonzero() == 2
    assert head.observe(torch.randn(4, 8))[1].shape == (1, 4, 4)


@pytest.mark.parametrize("cross", [False, True])
def test_decoding_step_by_step(cross) -> None:
    decoder = slnn.Decoder(16, heads=4, layers=2, kv_heads=2, cross=cross, positions=sl.positions.Rotary(4))
    x, memory = torch.randn(2, 7, 16), torch.randn(2, 5, 16) if cross else None
    with torch.no_grad():
        _, whole = decoder.observe(x, memory)
        seen, plain = decoder.new_cache(), decoder.new_cache()
        kept = []
        for part in x.split([3, 1, 1, 2], 1):
            out, sights = decoder.observe(part, memory, cache=seen)
            assert torch.equal(out, decoder(part, memory, cache=plain))
            kept.append((sights, seen.length))
    assert torch.equal(next(iter(seen)).keys, next(iter(plain)).keys)
    for name, sight in whole.items():
        full = sight.tile(slice(None), slice(None))
        for sights, length in kept:  # asked late: later steps leave what was seen as it was
            tile = sights[name].tile(slice(None), slice(None))
            rows = slice(length - tile.shape[-2], length)
            torch.testing.assert_close(tile, full[..., rows, : tile.shape[-1]], rtol=1e-4, atol=1e-6)
            assert tile.shape[-1] == (5 if "cross" in name else length)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_sight_stays_as_it_was_when_its_cache_is_used_again(mode) -> None:
    decoder = slnn.Decoder(16, heads=4, layers=2, cross=True, positions=sl.positions.Rotary(4)).requires_grad_(False)
    attention, own = slnn.MultiHeadAttention(16, heads=4).requires_grad_(False), slnn.KVCache(capacity=8)
    with mode():
        cache, memory = decoder.new_cache(capacity=8), torch.randn(2, 5, 16)
        first, second = torch.randn(2, 6, 2, 1, 16).unbind()
        for x in first[:-1]:
            decoder(x, memory, cache=cache)
            attention(x, cache=own)
        _, sights = decoder.observe(first[-1], memory, cache=cache)
        sights["alone"] = attention.observe(first[-1], cache=own)[1]
        before = {name: sight.tile(slice(None), slice(None)).clone() for name, sight in sights.items()}
        cache.reset()
        own.reset()
        for x in second:  # another text over another memory, in the memory of the caches
            decoder(x, memory * 3 + 1, cache=cache)
            attention(x, cache=own)
        after = {name: sight.tile(slice(None), slice(None)) for name, sight in sights.items()}
        assert len(after) == 5
        for name in before:
            assert torch.equal(after[name], before[name]), name
            torch.testing.assert_close(after[name].sum(-1), torch.ones(2, 4, 1))
        late = {name: sight.entropy for name, sight in sights.items()}  # what was not asked for before
        for name, tile in before.items():
            torch.testing.assert_close(late[name], torch.special.entr(tile).sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradients", [False, True])
def test_under_autocast(gradients) -> None:
    encoder, x = slnn.Encoder(16, heads=2, layers=2, dropout=0.2), torch.randn(2, 6, 16)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(gradients):
        torch.manual_seed(3)
        out = encoder(x)
        torch.manual_seed(3)
        again, sights = encoder.observe(x)
    assert torch.equal(out, again)
    totals = sights["layers.1.attention"].tile(slice(None), slice(None)).sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=1e-2, atol=1e-2)


def test_in_inference_mode() -> None:
    encoder, x = slnn.Encoder(16, heads=2, layers=2), torch.randn(2, 6, 16)
    with torch.inference_mode():
        out, sights = encoder.observe(x, stats="entropy")
        assert torch.equal(out, encoder(x))
    assert sights["layers.0.attention"].top(2).keys.shape == (2, 2, 6, 2)


def test_training_with_and_without_gives_the_same_weights() -> None:
    def train(observed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = slnn.Decoder(16, heads=2, layers=2, dropout=0.2, sinks=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(4):
            x = torch.randn(3, 8, 16)
            out = model.observe(x, stats="received")[0] if observed else model(x)
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
        return list(model.parameters())

    assert all(map(torch.equal, train(True), train(False)))


def test_a_sight_is_of_its_own_time() -> None:
    """What is learned changes in place afterwards; the sight, asked then, is still of the call."""
    mha, x = slnn.MultiHeadAttention(8, heads=2, sinks=True), torch.randn(4, 8)
    table = torch.nn.Parameter(torch.randn(4, 4))
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            sight, expected = (mha.observe(x, bias=table)[1] for _ in range(2))
        expected = expected.prepare("entropy", "total", "received")
        with torch.no_grad():
            mha.sinks.add_(3.0)
            table.add_(torch.randn(4, 4))
        assert torch.equal(sight.entropy, expected.entropy)
        assert torch.equal(sight.received(), expected.received())


def test_backward_of_a_checkpointed_layer_after_looking() -> None:
    layer, x = slnn.EncoderLayer(8, heads=2), torch.randn(2, 5, 8, requires_grad=True)
    mask = sl.padding([2, 5])
    with slnn.observing(layer) as sights:
        out = checkpoint(layer, x, mask=mask, use_reentrant=False)
    (grad,) = torch.autograd.grad(out.square().sum(), x)  # calls the layer again, and nobody looks
    assert torch.equal(grad, torch.autograd.grad(layer(x, mask=mask).square().sum(), x)[0])
    assert list(sights) == ["attention"]


def test_a_model_made_of_parts() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(20, 8)
            self.body = slnn.Decoder(8, heads=2, layers=1)
            self.pool = slnn.MultiHeadAttention(8, heads=1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.body(self.embed(ids))
            return self.pool(x[:, -1:], x)

    model, ids = Model(), torch.randint(20, (2, 6))
    with slnn.observing(model, stats=("received", "entropy")) as sights:
        out = model(ids)
    assert torch.equal(out, model(ids))
    assert {name: sight.shape for name, sight in sights.items()} == {
        "body.layers.0.attention": (2, 2, 6, 6),
        "pool": (2, 1, 1, 6),
    }


def test_the_newest_call_of_a_module_is_kept() -> None:
    mha = slnn.MultiHeadAttention(8, heads=2)
    with slnn.observing(mha) as sights:
        mha(torch.randn(3, 8))
        assert sights[""].shape == (2, 3, 3)
        mha(torch.randn(5, 8))
        assert sights[""].shape == (2, 5, 5)


def test_other_modules_and_plain_calls_are_not_seen() -> None:
    mine, other, x = slnn.MultiHeadAttention(8, heads=2), slnn.MultiHeadAttention(8, heads=2), torch.randn(3, 8)
    with slnn.observing(mine) as sights:
        other(x)
        sl.attention(x, x, x)
        assert sights == {}


def test_nested() -> None:
    encoder, x = slnn.Encoder(8, heads=2, layers=2), torch.randn(3, 8)
    with slnn.observing(encoder) as outer, slnn.observing(encoder.layers[1], stats="entropy") as inner:
        out, innermost = encoder.observe(x)
    assert torch.equal(out, encoder(x))
    assert list(outer) == list(innermost) == ["layers.0.attention", "layers.1.attention"]
    assert list(inner) == ["attention"]
    assert torch.equal(inner["attention"].entropy, outer["layers.1.attention"].entropy)
    encoder(x)
    assert inner["attention"] is not outer["layers.1.attention"]


def test_other_function_modes_still_see_the_call() -> None:
    class Counter(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += func is sl.attention
            return func(*args, **(kwargs or {}))

    encoder, x = slnn.Encoder(8, heads=2, layers=2), torch.randn(3, 8)
    with torch.no_grad(), Counter() as outside:
        out, sights = encoder.observe(x)
    with slnn.observing(encoder) as more, Counter() as inside:
        encoder(x)
    assert outside.calls == inside.calls == len(sights) == len(more) == 2
    assert torch.equal(out, encoder(x))


def test_nothing_is_left_after_an_error() -> None:
    encoder, x = slnn.Encoder(8, heads=2, layers=2), torch.randn(3, 8)
    kept: list[dict] = []

    def fail() -> None:
        with slnn.observing(encoder) as sights:
            kept.append(sights)
            encoder(x, mask=sl.dense(torch.ones(4, 4, dtype=torch.bool)))

    with pytest.raises(InputError, match="does not fit"):
        fail()
    encoder(x)
    assert kept == [{}]
    assert torch._C._len_torch_function_stack() == 0
    assert list(encoder.observe(x)[1]) == ["layers.0.attention", "layers.1.attention"]


def test_bad_arguments_are_refused_before_anything_runs() -> None:
    encoder, x = slnn.Encoder(8, heads=2, layers=1), torch.randn(3, 8)
    encoder.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    with pytest.raises(InputError, match="unknown statistic"):
        encoder.observe(x, stats="entropie")
    with pytest.raises(InputError, match="there is no such layer"):
        encoder.observe(x, layers=1)
    with pytest.raises(InputTypeError, match="only modules"):
        slnn.observing(x).__enter__()


def test_threads_do_not_see_each_other() -> None:
    mha, inputs = slnn.MultiHeadAttention(8, heads=2), {n: torch.randn(n, 8) for n in (3, 5, 7)}
    entered, done = threading.Barrier(3), threading.Barrier(3)
    found: dict[int, object] = {}

    def work(n: int, observed: bool) -> None:
        if observed:
            with slnn.observing(mha) as sights:
                entered.wait()
                out = mha(inputs[n])
                done.wait()
                found[n] = (out, sights[""].shape)
        else:
            entered.wait()
            found[n] = (mha(inputs[n]), None)
            done.wait()

    threads = [threading.Thread(target=work, args=(n, n != 5)) for n in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, x in inputs.items():
        assert torch.equal(found[n][0], mha(x))
        assert found[n][1] == (None if n == 5 else (2, n, n))


def count_graphs(graphs: list) -> object:
    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    return backend


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_observed_uncompiled_and_stays_compiled(in_place) -> None:
    torch.compiler.reset()
    encoder, x, graphs = slnn.Encoder(8, heads=2, layers=2), torch.randn(3, 8), []
    compiled = encoder if in_place else torch.compile(encoder, fullgraph=True, backend=count_graphs(graphs))
    if in_place:
        encoder.compile(fullgraph=True, backend=count_graphs(graphs))
    out = compiled(x)
    with slnn.observing(compiled, stats="entropy") as sights:
        assert torch.equal(compiled(x), out)
    assert list(sights) == ["layers.0.attention", "layers.1.attention"]
    assert torch.equal(compiled.observe(x)[0], out)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(x), out)
    assert len(graphs) == 1


def test_the_last_thread_to_leave_lets_compiled_code_run_again() -> None:
    torch.compiler.reset()
    mha, x, graphs = slnn.MultiHeadAttention(8, heads=2), torch.randn(3, 8), []
    compiled = torch.compile(mha, backend=count_graphs(graphs))
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with slnn.observing(mha):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with slnn.observing(mha):
        thread.start()
        inside.wait()
    with slnn.observing(mha) as sights:
        compiled(x)
    assert list(sights) == [""]
    leave.set()
    thread.join()
    assert not graphs
    compiled(x)
    assert len(graphs) == 1


def test_compiled_code_cannot_observe() -> None:
    torch.compiler.reset()
    mha = slnn.MultiHeadAttention(8, heads=2)
    compiled = torch.compile(lambda x: mha.observe(x)[0], backend="eager")
    with pytest.raises(InputError, match="compiled code cannot observe"):
        compiled(torch.randn(3, 8))
    graphs: list = []
    torch.compile(mha, backend=count_graphs(graphs))(torch.randn(3, 8))
    assert len(graphs) == 1


def test_observing_does_not_load_the_compiler() -> None:
    code = "import sys, torch, sightline as sl; sl.nn.MultiHeadAttention(8, heads=2).observe(torch.randn(3, 8)); "
    code += "sl.nn.Monitor(sl.nn.MultiHeadAttention(8, heads=2)); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
