"""Watching on a real GPU: torch's own kernels, timm's models, transformers' models, results on the CPU."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watch_cases as tiny
from sightline.watching import load, watch

HEADS, DIM = 8, 64


class Layer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def draw(dtype, length=700, batch=2, kv_heads=HEADS):
    return tuple(
        torch.randn(batch, heads, length, DIM, device="cuda", dtype=dtype) for heads in (HEADS, kv_heads, kv_heads)
    )


def weights_of(q, k, visible=None):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q.double() @ k.double().mT / DIM**0.5
    return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1).nan_to_num(0).cpu()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("masked", [None, "causal", "booleans", "padding"])
def test_torchs_own_kernels(dtype, masked):
    q, k, v = draw(dtype)
    visible, options = None, {}
    if masked == "causal":
        visible, options = torch.ones(700, 700, dtype=torch.bool, device="cuda").tril(), {"is_causal": True}
    elif masked == "booleans":
        visible = (torch.rand(2, 1, 700, 700, device="cuda") < 0.5) | torch.eye(700, dtype=torch.bool, device="cuda")
        options = {"attn_mask": visible}
    elif masked == "padding":
        visible = (torch.arange(700, device="cuda") < torch.tensor([[700], [300]], device="cuda"))[:, None, None]
        options = {"attn_mask": visible}
    model = Layer(**options)
    with torch.no_grad():
        plain = model(q, k, v)
        with watch(model, keep_qk=True) as seen:
            out = model(q, k, v)
    assert torch.equal(out, plain), "the same kernel, the same bits"
    sight, weights = seen[0], weights_of(q, k, visible)
    assert sight.lse.device.type == "cpu"
    assert sight.call.q.device.type == "cpu"
    assert sight.call.q.dtype == dtype
    bound = 1e-4 if dtype == torch.float32 else 2e-3
    assert (sight.received().double() - weights.sum(-2)).abs().max() < 10 * bound
    assert (sight.entropy.double() - torch.special.entr(weights).sum(-1)).abs().max() < 10 * bound
    tile = sight.tile(slice(300, 400), slice(0, 700)).double()
    assert (tile - weights[..., 300:400, :]).abs().max() < bound
    shares = seen.shares(0)
    assert (shares["same"].double() - weights.diagonal(dim1=-2, dim2=-1)).abs().max() < bound
    cell = sight.overview().cell
    assert cell == (2, 2)
    pooled = weights.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).sum((-1, -3))
    assert (sight.overview().sums.double() - pooled).abs().max() < 4 * bound


def test_grouped_heads_keep_their_kernel():
    q, k, v = draw(torch.bfloat16, kv_heads=2)
    model = Layer(is_causal=True, enable_gqa=True)
    with torch.no_grad(), watch(model) as seen:
        out = model(q, k, v)
    assert torch.equal(out, model(q, k, v))
    assert seen[0].shape == (2, HEADS, 700, 700)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(dtype, need_weights):
    layer = nn.MultiheadAttention(256, 4, batch_first=True, device="cuda", dtype=dtype).eval()
    x = torch.randn(2, 100, 256, device="cuda", dtype=dtype)
    blocked = torch.arange(100, device="cuda") >= torch.tensor([[100], [60]], device="cuda")
    with torch.no_grad():
        _, weights = layer(x, x, x, key_padding_mask=blocked, average_attn_weights=False)
        with watch(layer) as seen:
            layer(x, x, x, key_padding_mask=blocked, need_weights=need_weights)
    tile = seen[0].tile(slice(0, 100), slice(0, 100))
    assert (tile - weights.float().cpu()).abs().max() < (1e-5 if dtype == torch.float32 else 1e-2)


def test_transformer_encoder():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 2).cuda().eval()
    x = torch.randn(2, 100, 256, device="cuda")
    with torch.no_grad():
        plain = model(x)
        with watch(model) as seen:
            out = model(x)
    assert torch.equal(out, plain)
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]


def test_timms_vision_transformer():
    import timm

    model = timm.create_model("vit_small_patch16_224", pretrained=False).cuda().eval()
    assert model.blocks[0].attn.fused_attn
    x = torch.randn(2, 3, 224, 224, device="cuda")
    with torch.no_grad():
        plain = model(x)
        with watch(model) as seen:
            out = model(x)
        assert torch.equal(out, plain)
        assert seen.layers == [f"blocks.{i}.attn" for i in range(12)]
        assert seen[0].shape == (2, 6, 197, 197)
        # The same weights, written out by timm's unfused path.
        inputs = []
        handle = model.blocks[3].attn.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        model(x)
        handle.remove()
        attn = model.blocks[3].attn
        qkv = attn.qkv(inputs[0]).reshape(2, 197, 3, 6, 64).permute(2, 0, 3, 1, 4)
        q, k = attn.q_norm(qkv[0]), attn.k_norm(qkv[1])
    weights = (q.double() @ k.double().mT * attn.scale).softmax(-1).cpu()
    assert (seen[3].tile(slice(0, 197), slice(0, 197)).double() - weights).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bert"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_transformers_models(family, padding):
    model, reference = tiny.model(family).cuda(), tiny.model(family, "eager").cuda()
    given = {name: x.cuda() for name, x in tiny.inputs(family, padding).items()}
    real = given["attention_mask"].bool()
    with torch.no_grad():
        expected = reference(**given, output_attentions=True)
        plain = tiny.logits(model(**given))
        with watch(model) as seen:
            out = tiny.logits(model(**given))
    assert torch.equal(out, plain)
    for name, weights in zip(seen.layers, expected.attentions):
        rows = real[:, None, :, None].cpu()
        tile = seen[name].tile(slice(0, 12), slice(0, 12))
        torch.testing.assert_close(tile * rows, weights.cpu() * rows, atol=1e-4, rtol=0)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(cache):
    model = tiny.model("llama").cuda()
    given = {name: x.cuda() for name, x in tiny.inputs("llama", "left").items()}
    options = {"max_new_tokens": 6, "do_sample": False}
    if cache == "static":
        options["cache_implementation"] = "static"
    with torch.no_grad(), watch(model) as seen:
        ids = model.generate(**given, **options)
    assert seen[0].shape == (3, 4, 17, 17)
    assert seen.ids == ids[:, :-1].tolist()
    total = seen[1].tile(slice(12, 17), slice(0, 17)).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-4, rtol=0)


def step(model, given, watched):
    """Output, gradients and the next random number of one step."""
    torch.manual_seed(11)
    model.zero_grad()
    with watch(model) if watched else contextlib.nullcontext():
        out = tiny.logits(model(**given))
        if torch.is_grad_enabled():
            out.float().square().mean().backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.detach(), torch.rand(1), torch.rand(1, device="cuda"), *grads]


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bert", "t5"])
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "training", "autocast", "checkpointing", "reentrant"])
def test_the_same_bits_as_unwatched(deterministic, family, padding, mode):
    """Where torch's own runs have the same bits; else no further apart than two unwatched runs."""
    dropout = {"attention_dropout": 0.3} if family in ("llama", "mistral") and mode != "no_grad" else {}
    model = tiny.model(family, **dropout).cuda()
    given = {name: x.cuda() for name, x in tiny.inputs(family, padding, length=11).items()}
    context = contextlib.nullcontext
    if mode in ("no_grad", "inference_mode"):
        context = getattr(torch, mode)
    elif mode == "autocast":
        context = functools.partial(torch.autocast, "cuda", torch.bfloat16)
    else:
        model.train()
    if mode in ("checkpointing", "reentrant"):
        model.gradient_checkpointing_enable({"use_reentrant": mode == "reentrant"})
        model.enable_input_require_grads()
    runs = []
    for watched in (False, False, False, True):
        with context():
            runs.append(step(model, given, watched))
    _, first, second, mine = runs
    for a, b, c in zip(first, second, mine, strict=True):
        spread = (a - b).abs().max()
        assert torch.equal(a, c) if spread == 0 else (a - c).abs().max() <= 4 * spread


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_fast_path_of_an_encoder(side, dtype):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 2).cuda().to(dtype).eval()
    x = torch.randn(3, 101, 256, device="cuda", dtype=dtype)
    place = torch.arange(101, device="cuda")
    count = torch.tensor([[0], [30], [57]], device="cuda")
    hidden = place < count if side == "left" else place >= 101 - count
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=hidden)
        with watch(model) as seen:
            out = model(x, src_key_padding_mask=hidden)
    assert torch.equal(out, plain)
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]
    assert seen[0].received()[hidden[:, None].cpu().expand(3, 4, 101)].abs().max() < 1e-6
    total = seen[0].received().sum(-1)
    rows = (~hidden).sum(-1).cpu() if side == "right" else torch.full((3,), 101)
    torch.testing.assert_close(total, rows[:, None].expand(3, 4).float(), atol=0.1, rtol=0)


def test_a_compiled_model_keeps_its_code():
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 96, norm_first=True) for _ in range(2))).cuda().eval()
    compiled = torch.compile(model)
    x = torch.randn(2, 101, 64, device="cuda")
    with torch.no_grad():
        plain = compiled(x)
        counters = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with watch(compiled) as seen:
            out = compiled(x)
        after = compiled(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counters
    assert torch.equal(out, plain)
    assert torch.equal(after, plain)
    assert seen.layers == ["0.self_attn", "1.self_attn"]
    assert seen.unseen == {}


def test_long_padding_stays_a_rule_the_compact_way():
    """A padded batch at 16,384 tokens: its table of booleans alone would be 512 MiB."""
    t = tiny.classes()
    config = tiny.config("llama")
    config.max_position_embeddings, config.num_hidden_layers = 16384, 1
    config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim = 256, 4, 2, 64
    model = t.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").cuda().to(torch.bfloat16).eval()
    ids = torch.randint(2, tiny.TOKENS, (2, 16384), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, :5000] = 0
    with torch.no_grad():
        with watch(model, compact=True) as seen:  # compiles
            model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with watch(model, compact=True) as seen:
            model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
    assert torch.cuda.max_memory_allocated() - before < 512 * 2**20
    received = seen[0].received()
    assert received[1, :, :5000].abs().max() == 0
    torch.testing.assert_close(received.sum(-1)[1], torch.full((4,), 11384.0), atol=10, rtol=0)


def test_flex_attention_stays_compiled():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)

    class Flex(nn.Module):
        def forward(self, q, k, v):
            return flex(q, k, v, block_mask=blocks)

    q, k, v = draw(torch.float16, 1024)
    blocks = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 200), None, None, 1024, 1024, device="cuda")
    model = Flex()
    with torch.no_grad():
        plain = model(q, k, v)
        with watch(model, keep_qk=True) as seen:
            out = model(q, k, v)
    torch.testing.assert_close(out, plain, atol=2e-3, rtol=1e-2)
    place = torch.arange(1024, device="cuda")
    gap = place[:, None] - place
    weights = weights_of(q, k, (gap >= 0) & (gap < 200))
    assert (seen[0].received().double() - weights.sum(-2)).abs().max() < 2e-2


def test_a_folder_written_from_the_gpu(tmp_path):
    q, k, v = draw(torch.bfloat16, 1500)
    model = Layer(is_causal=True)
    with torch.no_grad(), watch(model, keep_qk=tmp_path / "run") as seen:
        model(q, k, v)
    loaded = load(tmp_path / "run")
    assert torch.equal(loaded[0].entropy, seen[0].entropy)
    tile = loaded[0].tile(slice(1400, 1500), slice(0, 1500)).double()
    visible = torch.ones(1500, 1500, dtype=torch.bool, device="cuda").tril()
    assert (tile - weights_of(q, k, visible)[..., 1400:, :]).abs().max() < 2e-3


def test_the_gpu_holds_nothing_afterwards():
    q, k, v = draw(torch.bfloat16, 2048)
    model = Layer(is_causal=True)

    def run():
        with torch.no_grad(), watch(model, keep_qk=True) as seen:
            model(q, k, v)
        assert seen[0].shape == (2, HEADS, 2048, 2048)  # what a thread brings to the CPU is there
        return torch.cuda.memory_allocated()

    before = run()
    for _ in range(3):
        after = run()
    assert after <= before + 2**20


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bert"])
def test_a_pass_that_is_not_heard_has_the_same_bits_and_account(deterministic, family, dtype):
    """The fifth pass: of plain calls the operator that torch would choose is called by its name."""
    model = tiny.model(family).cuda().to(dtype)
    given = {name: x.cuda() for name, x in tiny.inputs(family, None, length=60).items()}
    with torch.inference_mode():
        plain, again = (tiny.logits(model(**given)) for _ in range(2))
        found = []
        for _ in range(5):
            with watch(model) as seen:
                out = tiny.logits(model(**given))
            found.append(seen)
    assert torch.equal(out, plain) or not torch.equal(again, plain)
    assert found[0].unseen == found[-1].unseen == {}
    for name in found[0].layers:
        one, other = found[0][name], found[-1][name]
        assert repr(one.call.mask) == repr(other.call.mask)
        torch.testing.assert_close(other.lse, one.lse, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(other.entropy, one.entropy, rtol=1e-3, atol=1e-3)


def test_a_short_text_waits_for_whoever_asks(monkeypatch):
    """The model ran on a stream of its own and went on; somebody else asks, in a thread, on another stream.

    Of more than the account, as with `keep_qk`, nothing waits.
    """
    from sightline.watching.record.gather import Gather

    model, side, other = tiny.model("llama").cuda(), torch.cuda.Stream(), torch.cuda.Stream()
    ids = torch.randint(0, 50, (2, 301), device="cuda")
    found = []
    for on in (False, True):
        monkeypatch.setattr(Gather, "on", on)
        torch.cuda.synchronize()
        with torch.cuda.stream(side), torch.no_grad():
            torch.cuda._sleep(50_000_000)
            with watch(model) as seen:
                model(ids)
        assert all((part.arriving is None) == on for layer in seen._layers.values() for part in layer.parts)
        found.append(seen)

    def ask():
        with torch.cuda.stream(other):
            for name in found[1].layers:
                found[1][name].entropy  # noqa: B018

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert not any(part.arriving is None for layer in found[1]._layers.values() for part in layer.parts)
    for name in found[0].layers:
        for what in ("entropy", "lse"):
            torch.testing.assert_close(getattr(found[1][name], what), getattr(found[0][name], what))
        torch.testing.assert_close(found[1][name].received(), found[0][name].received(), rtol=1e-4, atol=1e-5)


def test_what_waited_is_not_on_the_gpu_once_somebody_asked():
    model, ids = tiny.model("llama").cuda(), torch.randint(0, 50, (2, 301), device="cuda")

    def run():
        with torch.no_grad(), watch(model) as seen:
            model(ids)
        return seen

    run()[0].entropy  # noqa: B018
    gc.collect()  # of tests before this one, which may go at any time
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    seen = run()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    assert 0 < held < 64 << 20
    seen[0].entropy  # noqa: B018
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= 1 << 16
    assert seen[1].received().device.type == "cpu"


class Attends(nn.Module):
    """Attention with its projections."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def two_that_attend():
    """A model of two layers, what it reads, and the g . o of their heads by autograd."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Attends(), Attends()).cuda(), torch.randn(2, 257, 256, device="cuda")
    taken = []
    hooks = [one.out.register_forward_pre_hook(lambda _, args: taken.append(args[0])) for one in model]
    grads = torch.autograd.grad(number(model(x)).sum(), taken)
    for hook in hooks:
        hook.remove()
    products = [(g.double() * o.detach().double()).unflatten(-1, (4, 64)).sum(-1) for g, o in zip(grads, taken)]
    return model, x, [product.transpose(1, 2).cpu() for product in products]


def number(out):
    return out[:, -1].square().sum(-1)


def check_influence(seen, expected, heads=slice(None)):
    for i, along in enumerate(expected):
        found = seen[i].influence
        assert found.device.type == "cpu"
        assert (found - along[:, heads]).abs().max() <= 1e-4 * along.abs().max()


@pytest.mark.parametrize("heads", [None, [1, 3]])
def test_influence_does_not_wait_for_the_gpu(heads):
    import copy
    import warnings

    model, x, expected = two_that_attend()
    chosen = slice(None) if heads is None else heads
    with watch(model, stats=(), heads=heads, influence=True) as seen:
        y = number(model(x))
    seen.backward(2 * y)  # what is done for the first time may wait
    torch.cuda.synchronize()
    behind = torch.cuda.Event()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says that it is new
        try:
            torch.cuda.set_sync_debug_mode("error")
            torch.cuda._sleep(500_000_000)
            seen.backward(y)
            behind.record()
            waited = behind.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not waited
    parts = [part for layer in seen._layers.values() for part in layer.parts]
    assert not any(isinstance(part.extra["along"], torch.Tensor) for part in parts)
    copied = copy.deepcopy(seen._layers[seen.layers[1]])
    assert (copied.sight().influence - expected[1][:, chosen]).abs().max() <= 1e-4 * expected[1].abs().max()
    thread = threading.Thread(target=lambda: seen[0].influence)
    thread.start()
    thread.join()
    check_influence(seen, expected, chosen)
    seen.backward(y, add=True)
    check_influence(seen, [2 * along for along in expected], chosen)
    seen.backward(y)
    check_influence(seen, expected, chosen)


def test_influence_of_the_models_own_backward_pass_on_another_stream(monkeypatch):
    """Each layer's numbers by themselves; large ones, for which somebody waits; and a model that ran elsewhere."""
    from sightline.watching.record import influence

    for most in (4 << 20, 0):
        model, x, expected = (
            two_that_attend()
        )  # a watch holds its graph: torch warns where another stream goes on in it
        monkeypatch.setattr(influence, "PINNED", most)
        with watch(model, influence=True, keep_qk=True) as seen:
            number(model(x)).sum().backward()
        assert isinstance(seen._layers[seen.layers[0]].parts[0].extra["along"], torch.Tensor) == (not most)
        check_influence(seen, expected)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), watch(model, stats=(), influence=True) as seen:
            y = number(model(x))
        seen.backward(y)
        torch.cuda._sleep(10_000_000)
        with torch.cuda.stream(side):
            [torch.full_like(x, torch.nan) for _ in range(8)]  # takes what memory was given back there
        check_influence(seen, expected)


def test_a_row_that_is_not_read_has_no_influence_whatever_it_holds():
    q, k, v = draw(torch.float32)
    q[:, :, 600:] = torch.nan
    model = Layer(is_causal=True)
    with watch(model, stats=(), influence=True) as seen:
        out = model(q, k, v)
        seen.backward(out[:, :, :5].sum())
    assert out[:, :, 600:].isnan().any()
    found = seen[0].influence
    assert (found[:, :, 5:] == 0).all()
    torch.testing.assert_close(found[:, :, :5], out[:, :, :5].detach().sum(-1).cpu(), atol=1e-4, rtol=1e-4)
