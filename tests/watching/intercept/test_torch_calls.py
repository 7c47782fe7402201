"""Models that call torch's own functions: written by hand, torch.nn's modules, and Sightline's."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sightline as sl
from sightline.watching import watch

WIDTH, HEADS = 32, 4


class Attention(nn.Module):
    """As in nanoGPT and timm: one projection for q, k and v, then F.scaled_dot_product_attention."""

    def __init__(self, **options):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.qkv.weight, 0, 0.25)
        self.options = options

    def forward(self, x, memory=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        if memory is not None:
            _, k, v = self.qkv(memory).chunk(3, -1)
        q, k, v = (y.view(b, -1, HEADS, c // HEADS).transpose(1, 2) for y in (q, k, v))
        self.last = q.detach(), k.detach()
        out = F.scaled_dot_product_attention(q, k, v, **self.options)
        return self.proj(out.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention(**options)

    def forward(self, x):
        return x + self.attn(self.norm(x))


class Model(nn.Module):
    def __init__(self, depth=2, **options):
        super().__init__()
        self.blocks = nn.ModuleList([Block(**options) for _ in range(depth)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def expected(q, k, visible=None, bias=None, scale=None):
    scores = q.double() @ k.double().mT * (scale or 1 / math.sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias.double()
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0)


def whole(sight):
    *_, queries, keys = sight.shape
    return sight.tile(slice(0, queries), slice(0, keys)).double()


TRIANGLE = torch.ones(9, 9, dtype=torch.bool).tril()
HOLES = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0)) < 0.4
BIAS = torch.randn(1, HEADS, 9, 9, generator=torch.Generator().manual_seed(1))
ADDED = torch.where(HOLES, 0.0, -torch.inf)
PADDING = (torch.arange(9) < torch.tensor([[9], [6]]))[:, None, None]
CASES = {
    "plain": ({}, {}, "None"),
    "causal": ({"is_causal": True}, {"visible": TRIANGLE}, "causal()"),
    "scale": ({"scale": 0.7}, {"scale": 0.7}, "None"),
    "booleans": ({"attn_mask": HOLES}, {"visible": HOLES}, "dense(<2 x 1 x 9 x 9>)"),
    "a triangle": ({"attn_mask": TRIANGLE}, {"visible": TRIANGLE}, "causal()"),
    "a triangle of -inf": ({"attn_mask": torch.where(TRIANGLE, 0.0, -torch.inf)}, {"visible": TRIANGLE}, "causal()"),
    "zeros and -inf": ({"attn_mask": ADDED}, {"visible": HOLES}, "dense(<2 x 1 x 9 x 9>)"),
    "the least number": (
        {"attn_mask": torch.where(TRIANGLE, 0.0, torch.finfo(torch.float32).min)},
        {"visible": TRIANGLE},
        "causal()",
    ),
    "numbers": ({"attn_mask": BIAS}, {"bias": BIAS}, "None"),
    "numbers and -inf": ({"attn_mask": BIAS + ADDED}, {"visible": HOLES, "bias": BIAS}, "None"),
    "padding": ({"attn_mask": PADDING}, {"visible": PADDING}, "padding(<2 x 9>)"),
    "nothing hidden": ({"attn_mask": torch.ones(9, 9, dtype=torch.bool)}, {}, "None"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_kind_of_mask(name, keep, mode):
    options, meant, text = CASES[name]
    model, x = Model(**options), torch.randn(2, 9, WIDTH)
    with mode():
        plain = model(x)
        with watch(model, keep_qk=keep) as seen:
            out = model(x)
    assert torch.equal(out, plain), "the same kernel, the same bits"
    assert seen.layers == ["blocks.0.attn", "blocks.1.attn"]
    for block, name in zip(model.blocks, seen.layers):
        weights = expected(*block.attn.last, **meant)
        sight = seen[name]
        assert str(sight.call.mask) == text
        torch.testing.assert_close(whole(sight), weights, atol=5e-6, rtol=0)
        torch.testing.assert_close(sight.received().double(), weights.sum(-2), atol=1e-5, rtol=0)
        torch.testing.assert_close(sight.entropy.double(), torch.special.entr(weights).sum(-1), atol=1e-5, rtol=0)
        if sight.lse.requires_grad:
            raise AssertionError("statistics carry no gradient")


def test_rows_that_see_nothing():
    holes = HOLES.clone()
    holes[0, 0, 3] = False
    model, x = Model(depth=1, attn_mask=holes), torch.randn(2, 9, WIDTH)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    assert (seen[0].lse[0, :, 3] == -torch.inf).all()
    assert whole(seen[0])[0, :, 3].abs().max() == 0
    assert seen[0].entropy[0, :, 3].abs().max() == 0


def test_queries_and_keys_of_different_length():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.cross_attn = Attention()

        def forward(self, x, memory):
            return self.cross_attn(x, memory)

    model = Cross()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 5, WIDTH), torch.randn(2, 11, WIDTH))
    assert seen.kind(0) == "cross"
    assert seen[0].shape == (2, HEADS, 5, 11)
    torch.testing.assert_close(whole(seen[0]), expected(*model.cross_attn.last), atol=5e-6, rtol=0)
    assert set(seen.shares(0)) == {"first"}


def test_grouped_heads_and_other_ranks():
    class Grouped(nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=q.shape != k.shape)

    for q, k, shape in (
        (torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), (2, 6, 5, 5)),
        (torch.randn(6, 5, 8), torch.randn(6, 5, 8), (6, 1, 5, 5)),
        (torch.randn(5, 8), torch.randn(5, 8), (1, 1, 5, 5)),
        (torch.randn(2, 3, 6, 5, 8), torch.randn(2, 3, 6, 5, 8), (6, 6, 5, 5)),
    ):
        model = Grouped()
        with watch(model) as seen:
            out = model(q, k)
        assert torch.equal(out, model(q, k))
        assert seen[0].shape == shape
        keys = k if q.dim() < 3 else k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        weights = expected(q, keys, torch.ones(5, 5, dtype=torch.bool).tril())
        torch.testing.assert_close(whole(seen[0]), weights.reshape(shape), atol=5e-6, rtol=0)


@pytest.mark.parametrize("of", ["heads", "texts", "all"])
def test_two_axes_of_texts_with_a_mask_for_one_query(of):
    """Which keys one query sees may be each head's own: that is no padding of a text."""

    class Five(nn.Module):
        def forward(self, q, k, mask):
            return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    torch.manual_seed(0)
    q, k = torch.randn(2, 3, HEADS, 1, 8), torch.randn(2, 3, HEADS, 5, 8)
    mask = torch.rand({"heads": (2, 3, HEADS, 1, 5), "texts": (2, 3, 1, 1, 5), "all": (1, 3, 1, 1, 5)}[of]) < 0.5
    mask[..., 0] = True
    with torch.no_grad(), watch(model := Five()) as seen:
        model(q, k, mask)
    weights = (q @ k.mT * 8**-0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(seen[0].tile(slice(0, 1), slice(0, 5)).reshape(weights.shape), weights)


def test_dropout_is_not_shown():
    model, x = Model(depth=1, dropout_p=0.5), torch.randn(2, 9, WIDTH)
    torch.manual_seed(1)
    plain = model(x)
    torch.manual_seed(1)
    with watch(model) as seen:
        out = model(x)
    assert torch.equal(out, plain)
    torch.testing.assert_close(whole(seen[0]), expected(*model.blocks[0].attn.last), atol=5e-6, rtol=0)


def test_half_precision():
    model, x = Model().to(torch.bfloat16), torch.randn(2, 9, WIDTH).to(torch.bfloat16)
    with torch.no_grad(), watch(model, keep_qk=True) as seen:
        out = model(x)
    assert torch.equal(out, model(x))
    assert seen.meta["dtype"] == "bfloat16"
    assert seen[0].call.q.dtype == torch.bfloat16
    torch.testing.assert_close(whole(seen[0]).sum(-1), torch.ones(2, HEADS, 9).double(), atol=1e-2, rtol=0)


def test_autocast():
    model, x = Model(is_causal=True), torch.randn(2, 9, WIDTH)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(x)
        with watch(model) as seen:
            out = model(x)
    assert torch.equal(out, plain)
    assert whole(seen[0]).sum(-1).sub(1).abs().max() < 2e-2


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masked", [None, "padding", "attn", "both"])
def test_multihead_attention(need_weights, batch_first, masked):
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first).eval()
    x = torch.randn(2, 9, WIDTH)
    blocked = torch.arange(9) >= torch.tensor([[9], [6]])  # True = blocked, the opposite of everybody else
    future = ~TRIANGLE
    options = {}
    if masked in ("padding", "both"):
        options["key_padding_mask"] = blocked
    if masked in ("attn", "both"):
        options["attn_mask"] = future
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        plain, _ = layer(given, given, given, need_weights=need_weights, **options)
        _, weights = layer(given, given, given, need_weights=True, average_attn_weights=False, **options)
        with watch(layer) as seen:
            out, returned = layer(given, given, given, need_weights=need_weights, **options)
    assert (returned is None) == (not need_weights)
    torch.testing.assert_close(out, plain, atol=5e-6, rtol=1e-5)
    assert seen.layers == ["MultiheadAttention"]
    torch.testing.assert_close(whole(seen[0]), weights.double(), atol=5e-6, rtol=0)


def test_multihead_attention_with_extra_keys_and_in_training():
    layer = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.4, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    x = torch.randn(2, 9, WIDTH)
    for need_weights in (True, False):
        torch.manual_seed(3)
        plain, _ = layer(x, x, x, need_weights=need_weights)
        torch.manual_seed(3)
        with watch(layer) as seen:
            out, _ = layer(x, x, x, need_weights=need_weights)
        assert torch.equal(out, plain)
        assert seen[0].shape == (2, HEADS, 9, 11)
        with torch.no_grad():
            _, weights = layer.eval()(x, x, x, average_attn_weights=False)
        layer.train()
        torch.testing.assert_close(whole(seen[0]), weights.double(), atol=5e-6, rtol=0)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("more", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_a_hint_that_is_causal_counts_where_torch_takes_it(need_weights, more):
    """Asked for weights, torch reads the mask, whatever the hint says; and the keys it adds are seen by all."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **more).eval()
    x, hidden = torch.randn(2, 5, WIDTH), torch.ones(5, 5, dtype=torch.bool).triu(2)
    with torch.no_grad(), watch(module) as seen:
        out, _ = module(x, x, x, attn_mask=hidden, is_causal=True, need_weights=need_weights)
    v = F.linear(x, *(t.chunk(3)[2] for t in (module.in_proj_weight, module.in_proj_bias)))
    for extra in ([module.bias_v.expand(2, 1, WIDTH)] if module.bias_v is not None else []) + (
        [torch.zeros(2, 1, WIDTH)] if module.add_zero_attn else []
    ):
        v = torch.cat([v, extra], 1)
    weights = seen[0].tile(slice(0, 5), slice(0, v.shape[1]))
    heads = weights @ v.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(module.out_proj(heads.transpose(1, 2).flatten(2)), out, atol=1e-6, rtol=1e-5)


def test_transformer_encoder_and_its_fast_path():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 9, WIDTH)
    blocked = torch.arange(9) >= torch.tensor([[9], [6]])
    real = ~blocked
    with torch.inference_mode():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unwatched it takes nested tensors, which torch warns of
            plain = model(x, src_key_padding_mask=blocked)
        with watch(model) as seen:
            out = model(x, src_key_padding_mask=blocked)
    assert torch.equal(out, plain)
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]
    with torch.no_grad():
        first = model.layers[0].self_attn
        _, weights = first(x, x, x, key_padding_mask=blocked, average_attn_weights=False)
    weights = weights * real[:, None, :, None]  # on the fast path, padding does not run at all
    torch.testing.assert_close(whole(seen[0]), weights.double(), atol=5e-6, rtol=0)


def test_transformer_with_a_memory():
    model = nn.Transformer(WIDTH, HEADS, 1, 1, 48, batch_first=True).eval()
    source, target = torch.randn(2, 9, WIDTH), torch.randn(2, 5, WIDTH)
    causal = model.generate_square_subsequent_mask(5)
    with torch.no_grad(), watch(model) as seen:
        out = model(source, target, tgt_mask=causal)
        kinds = {name: seen.kind(name) for name in seen.layers}
    assert kinds == {
        "encoder.layers.0.self_attn": "self",
        "decoder.layers.0.self_attn": "self",
        "decoder.layers.0.multihead_attn": "cross",
    }
    assert seen[2].shape == (2, HEADS, 5, 9)
    assert whole(seen[1]).triu(1).abs().max() == 0
    torch.testing.assert_close(out, model(source, target, tgt_mask=causal), atol=1e-5, rtol=1e-4)


def test_sightlines_own_modules():
    model = sl.nn.Encoder(WIDTH, HEADS, layers=2).eval()
    x = torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        plain = model(x, mask=sl.padding([9, 6]))
        with watch(model, keep_qk=True) as seen:
            out = model(x, mask=sl.padding([9, 6]))
    assert torch.equal(out, plain)
    assert len(seen) == 2
    assert whole(seen[0])[1, :, :, 6:].abs().max() == 0


@pytest.mark.parametrize("normalizer", ["relu", "sigmoid", "uniform", "softmax"])
def test_sightlines_own_attention_in_every_way(normalizer):
    class Own(nn.Module):
        def forward(self, q, k):
            options = {"normalizer": normalizer, "softcap": 3.0, "bias": sl.alibi(4), "mask": sl.window(3)}
            return sl.attention(q, k, k, **options)

    model, q, k = Own(), torch.randn(2, 4, 7, 8), torch.randn(2, 2, 7, 8)
    with watch(model, keep_qk=True, stats=("entropy", "received", "overview")) as seen:
        out = model(q, k)
    assert torch.equal(out, model(q, k))
    from sightline.backends import reference

    weights = reference.weights(
        q.double(), k.double(), mask=sl.window(3), bias=sl.alibi(4), softcap=3.0, normalizer=normalizer
    )
    torch.testing.assert_close(whole(seen[0]), weights, atol=5e-6, rtol=0)
    torch.testing.assert_close(seen[0].overview().sums.double(), weights, atol=5e-6, rtol=0)


def test_a_cache_of_ones_own():
    """A decoder with `sl.nn`'s cache: steps are joined, as with transformers."""
    model = sl.nn.Decoder(WIDTH, HEADS, layers=2).eval()
    x = torch.randn(1, 9, WIDTH)
    with torch.no_grad():
        whole_pass = model(x)
        cache = model.new_cache()
        with watch(model) as seen:
            parts = [model(x[:, :6], cache=cache)] + [model(x[:, i : i + 1], cache=cache) for i in range(6, 9)]
        with watch(model) as reference:
            model(x)
    torch.testing.assert_close(torch.cat(parts, 1), whole_pass, atol=1e-5, rtol=1e-4)
    for name in reference.layers:
        assert seen[name].shape == (1, HEADS, 9, 9)
        torch.testing.assert_close(whole(seen[name]), whole(reference[name]), atol=1e-5, rtol=0)
        torch.testing.assert_close(seen[name].entropy, reference[name].entropy, atol=1e-5, rtol=0)


def test_a_processor_that_is_no_module():
    """As in diffusers: a plain object does the work, given the module."""

    class Processor:
        def __call__(self, attn, x):
            q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in attn.qkv(x).chunk(3, -1))
            return attn.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    class Processed(Attention):
        def __init__(self):
            super().__init__()
            self.processor = Processor()

        def forward(self, x):
            return self.processor(self, x)

    model = nn.Sequential(Processed(), Processed())
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 6, WIDTH))
    assert seen.layers == ["0", "1"]


def test_one_module_called_twice_in_a_pass():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attention()

        def forward(self, x):
            return self.attn(self.attn(x))

    model, x = Twice(), torch.randn(1, 6, WIDTH)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    assert seen.layers == ["attn", "attn#2"]
    torch.testing.assert_close(whole(seen["attn#2"]), expected(*model.attn.last), atol=5e-6, rtol=0)


def test_layers_called_one_by_one_are_one_run():
    model, x = Model(is_causal=True), torch.randn(1, 6, WIDTH)
    with torch.no_grad(), watch(model) as seen:
        for block in model.blocks:
            x = block(x)
    assert seen.layers == ["blocks.0.attn", "blocks.1.attn"]
    assert seen.meta["runs"] == 1


def test_empty_and_single():
    model = Model(depth=1)
    for length in (0, 1):
        with torch.no_grad(), watch(model) as seen:
            model(torch.randn(1, length, WIDTH))
        assert seen[0].shape == (1, HEADS, length, length)
        assert seen[0].lse.shape == (1, HEADS, length)


def test_values_that_are_not_numbers_pass_through():
    model, x = Model(depth=1, is_causal=True), torch.randn(1, 6, WIDTH)
    x[0, 3] = torch.nan
    with torch.no_grad():
        plain = model(x)
        with watch(model) as seen:
            out = model(x)
    assert torch.equal(out.isnan(), plain.isnan())
    assert whole(seen[0])[0, :, :3].isfinite().all()
