"""Modules of torch.nn, taken over: the same outputs, and no NaN where torch gives NaN."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline import nn as slnn
from sightline.nn import masks_from_torch

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
QUERIES, KEYS, BATCH, HEADS = 5, 7, 3, 4


def random_weights(module):
    """All of them, so that no bias is 0 and no norm is trivial."""
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return module


def random_masks(kind, queries, keys):
    """Masks as torch takes them (True = blocked); every query may see the first key."""
    blocked = torch.rand(queries, keys) < 0.4
    by_head = torch.rand(BATCH * HEADS, queries, keys) < 0.4
    padding = torch.rand(BATCH, keys) < 0.3
    for table in (blocked, by_head, padding):
        table[..., 0] = False
    added = torch.randn(queries, keys)
    nowhere = torch.zeros(queries, keys)
    return {
        "none": {},
        "bool": {"attn_mask": blocked},
        "by head": {"attn_mask": by_head},
        "float": {"attn_mask": added},
        "float with -inf": {"attn_mask": added.masked_fill(blocked, -torch.inf)},
        "0 and -inf": {"attn_mask": nowhere.masked_fill(blocked, -torch.inf)},
        "padding": {"key_padding_mask": padding},
        "bool and padding": {"attn_mask": blocked, "key_padding_mask": padding},
        "float and float padding": {
            "attn_mask": added,
            "key_padding_mask": torch.zeros(BATCH, keys).masked_fill(padding, -torch.inf),
        },
    }[kind]


KINDS = (
    "none",
    "bool",
    "by head",
    "float",
    "float with -inf",
    "0 and -inf",
    "padding",
    "bool and padding",
    "float and float padding",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 6, "vdim": 6}, {"kdim": 6, "vdim": 9, "bias": False}]
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention(kind, options, batch_first):
    theirs = random_weights(torch.nn.MultiheadAttention(16, HEADS, batch_first=batch_first, **options))
    ours = slnn.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, 16)
    k, v = torch.randn(BATCH, KEYS, options.get("kdim", 16)), torch.randn(BATCH, KEYS, options.get("vdim", 16))
    given = random_masks(kind, QUERIES, KEYS)
    turn = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    expected = turn(theirs(turn(x), turn(k), turn(v), need_weights=False, **given)[0])
    mask, bias = masks_from_torch(**given, heads=HEADS)
    torch.testing.assert_close(ours(x, (k, v), mask=mask, bias=bias), expected, **CLOSE)


def test_self_attention_without_a_batch_and_with_is_causal():
    theirs = random_weights(torch.nn.MultiheadAttention(16, HEADS))
    ours = slnn.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(QUERIES, 16)
    blocked = torch.ones(QUERIES, QUERIES).triu(1).bool()
    expected = theirs(x, x, x, attn_mask=blocked, is_causal=True, need_weights=False)[0]
    mask, bias = masks_from_torch(blocked, is_causal=True)
    assert mask == sl.causal(align="start")
    assert bias is None
    torch.testing.assert_close(ours(x, mask=mask), expected, **CLOSE)
    torch.testing.assert_close(ours(x, mask=masks_from_torch(blocked)[0]), expected, **CLOSE)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, torch.nn.GELU("tanh")])
@pytest.mark.parametrize("kind", ["none", "by head", "float with -inf", "bool and padding"])
def test_encoder_layer(norm_first, activation, kind):
    theirs = torch.nn.TransformerEncoderLayer(
        16, HEADS, 24, activation=activation, layer_norm_eps=1e-2, batch_first=True, norm_first=norm_first
    )
    random_weights(theirs).eval()
    ours = slnn.EncoderLayer.from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, 16)
    given = random_masks(kind, QUERIES, QUERIES)
    mask, bias = masks_from_torch(**given, heads=HEADS)
    renamed = {"src_mask": given.get("attn_mask"), "src_key_padding_mask": given.get("key_padding_mask")}
    torch.testing.assert_close(ours(x, mask=mask, bias=bias), theirs(x, **renamed), **CLOSE)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["none", "bool", "padding"])
def test_decoder_layer(norm_first, bias, kind):
    theirs = torch.nn.TransformerDecoderLayer(16, HEADS, 24, batch_first=True, norm_first=norm_first, bias=bias)
    random_weights(theirs).eval()
    x, memory = torch.randn(BATCH, QUERIES, 16), torch.randn(BATCH, KEYS, 16)
    own, other = random_masks(kind, QUERIES, QUERIES), random_masks(kind, QUERIES, KEYS)
    expected = theirs(
        x,
        memory,
        tgt_mask=own.get("attn_mask"),
        memory_mask=other.get("attn_mask"),
        tgt_key_padding_mask=own.get("key_padding_mask"),
        memory_key_padding_mask=other.get("key_padding_mask"),
    )
    ours = slnn.DecoderLayer.from_torch(theirs)
    mask, memory_mask = masks_from_torch(**own)[0], masks_from_torch(**other)[0]
    torch.testing.assert_close(ours(x, memory, mask=mask, memory_mask=memory_mask), expected, **CLOSE)


def test_decoder_layer_with_a_causal_rule():
    theirs = random_weights(torch.nn.TransformerDecoderLayer(16, HEADS, 24, batch_first=True)).eval()
    ours = slnn.DecoderLayer.from_torch(theirs, mask=sl.causal())
    x, memory = torch.randn(BATCH, QUERIES, 16), torch.randn(BATCH, KEYS, 16)
    square = torch.nn.Transformer.generate_square_subsequent_mask(QUERIES)
    torch.testing.assert_close(ours(x, memory), theirs(x, memory, tgt_mask=square), **CLOSE)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("with_norm", [True, False])
def test_encoder_and_decoder(norm_first, with_norm):
    norm = random_weights(torch.nn.LayerNorm(16)) if with_norm else None
    options = {"dim_feedforward": 24, "batch_first": True, "norm_first": norm_first}
    one = torch.nn.TransformerEncoderLayer(16, HEADS, **options)
    two = torch.nn.TransformerDecoderLayer(16, HEADS, **options)
    encoder = random_weights(torch.nn.TransformerEncoder(one, 2, norm, enable_nested_tensor=False)).eval()
    decoder = random_weights(torch.nn.TransformerDecoder(two, 2, norm)).eval()
    x, y = torch.randn(BATCH, KEYS, 16), torch.randn(BATCH, QUERIES, 16)
    memory = slnn.Encoder.from_torch(encoder)(x)
    torch.testing.assert_close(memory, encoder(x), **CLOSE)
    torch.testing.assert_close(slnn.Decoder.from_torch(decoder)(y, memory), decoder(y, memory), **CLOSE)


def test_transformer():
    theirs = torch.nn.Transformer(16, HEADS, 2, 2, 24, batch_first=True)
    random_weights(theirs).eval()
    source, target = torch.randn(BATCH, KEYS, 16), torch.randn(BATCH, QUERIES, 16)
    square = theirs.generate_square_subsequent_mask(QUERIES)
    expected = theirs(source, target, tgt_mask=square, tgt_is_causal=True)
    causal = slnn.Transformer.from_torch(theirs, mask=sl.causal())
    torch.testing.assert_close(causal(source, target), expected, **CLOSE)
    free = slnn.Transformer.from_torch(theirs)
    torch.testing.assert_close(free(source, target), theirs(source, target), **CLOSE)


@pytest.mark.parametrize("blocked", ["mask", "padding"])
def test_rows_that_see_nothing_are_zero_where_torch_gives_nan(blocked):
    theirs = random_weights(torch.nn.MultiheadAttention(16, HEADS, batch_first=True))
    ours = slnn.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, 16, requires_grad=True)
    if blocked == "mask":
        given = {"attn_mask": torch.ones(QUERIES, QUERIES).triu().bool()}  # the first query sees nothing
        empty = (slice(None), 0)
    else:
        given = {"key_padding_mask": torch.arange(BATCH)[:, None].expand(BATCH, QUERIES) == 1}
        empty = (1,)
    nan = theirs(x, x, x, **given)[0]
    assert nan[empty].isnan().all()
    out = ours(x, mask=masks_from_torch(**given)[0])
    torch.testing.assert_close(out[empty], ours.output.bias.expand_as(out[empty]))
    exists = ~nan.isnan()
    torch.testing.assert_close(out[exists], nan[exists], **CLOSE)
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in ours.parameters())


def test_padded_sequences_in_an_encoder_stay_finite():
    layer = torch.nn.TransformerEncoderLayer(16, HEADS, 24, batch_first=True, dropout=0.0)
    theirs = random_weights(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    ours = slnn.Encoder.from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, 16)
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [True] * 5])
    expected, out = theirs(x, src_key_padding_mask=pad), ours(x, mask=masks_from_torch(key_padding_mask=pad)[0])
    torch.testing.assert_close(out[~pad], expected[~pad], **CLOSE)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in ours.parameters())


def test_gradients_equal_torchs():
    theirs = random_weights(torch.nn.TransformerEncoderLayer(16, HEADS, 24, batch_first=True, dropout=0.0))
    ours = slnn.EncoderLayer.from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, 16)
    theirs(x).square().sum().backward()
    ours(x).square().sum().backward()
    projections = (ours.attention.query, ours.attention.key, ours.attention.value)
    stacked = torch.cat([p.weight.grad for p in projections])
    torch.testing.assert_close(stacked, theirs.self_attn.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.feed_forward.up.weight.grad, theirs.linear1.weight.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_settings_are_kept_and_weights_are_copies(training):
    theirs = torch.nn.TransformerDecoderLayer(16, HEADS, 24, dropout=0.25, layer_norm_eps=1e-3, dtype=torch.float64)
    theirs.train(training)
    theirs.linear1.requires_grad_(False)
    before = copy.deepcopy(theirs.state_dict())
    ours = slnn.DecoderLayer.from_torch(theirs)
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    assert all(module.training == training for module in ours.modules())
    dropouts = (ours.attention.dropout, ours.cross_attention.dropout, ours.feed_forward.dropout.p, ours.dropout.p)
    assert dropouts == (0.25,) * 4
    assert ours.cross_attention_norm.eps == 1e-3
    assert [name for name, p in ours.named_parameters() if not p.requires_grad] == [
        "feed_forward.up.weight",
        "feed_forward.up.bias",
    ]
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(1)
    assert all(torch.equal(before[name], value) for name, value in theirs.state_dict().items())


def test_masks_from_nothing_are_nothing():
    assert masks_from_torch() == (None, None)
    assert masks_from_torch(torch.zeros(3, 3)) == (None, None)


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: slnn.MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(8, 2, add_bias_kv=True)),
            "add_bias_kv has no counterpart",
        ),
        (
            lambda: slnn.MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(8, 2, add_zero_attn=True)),
            "add_zero_attn has no counterpart",
        ),
        (
            lambda: slnn.MultiHeadAttention.from_torch(torch.nn.Linear(8, 8)),
            "torch.nn.MultiheadAttention\n  got: Linear",
        ),
        (
            lambda: slnn.Encoder.from_torch(torch.nn.Linear(8, 8)),
            "expected: torch.nn.TransformerEncoder\n  got: Linear",
        ),
        (
            lambda: slnn.EncoderLayer.from_torch(torch.nn.TransformerEncoderLayer(8, 2, activation=torch.tanh)),
            "this activation has no counterpart",
        ),
        (lambda: masks_from_torch(torch.zeros(3, 3).long()), "attn_mask must be boolean or float"),
        (lambda: masks_from_torch(torch.zeros(3).bool()), "attn_mask has the wrong rank"),
        (lambda: masks_from_torch(torch.zeros(6, 3, 3).bool()), "one table for each head(.*\n)*.*heads=mha.heads"),
        (lambda: masks_from_torch(key_padding_mask=torch.zeros(2, 3, 3).bool()), "key_padding_mask has the wrong rank"),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()
