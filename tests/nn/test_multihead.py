"""Several heads, concatenated and projected (S0.5, S1.1, S1.7, S2.5)."""

from __future__ import annotations

import copy

import pytest
import torch

import sightline as sl
from sightline import nn as slnn


@pytest.mark.parametrize("mask", [None, sl.causal()])
def test_eight_heads_one_by_one_concatenated_and_projected(mask):
    mha = slnn.MultiHeadAttention(64, heads=8)
    torch.nn.init.normal_(mha.output.bias)
    x = torch.randn(2, 5, 64)
    z = []
    for h in range(8):
        rows = slice(8 * h, 8 * (h + 1))
        q, k, v = (x @ p.weight[rows].T + p.bias[rows] for p in (mha.query, mha.key, mha.value))
        z.append(sl.attention(q[:, None], k[:, None], v[:, None], mask=mask)[:, 0])  # Z_h, [2, 5, 8]
    z_final = torch.cat(z, -1) @ mha.output.weight.T + mha.output.bias
    torch.testing.assert_close(mha(x, mask=mask), z_final)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"positions": sl.positions.Rotary(8)}, {"positions": sl.alibi(8)}])
def test_grouped_heads_equal_repeated_ones(kv_heads, options):
    grouped = slnn.MultiHeadAttention(64, heads=8, kv_heads=kv_heads, **options)
    full = slnn.MultiHeadAttention(64, heads=8, **options)
    state = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        blocks = state[name].unflatten(0, (kv_heads, 8))
        state[name] = blocks.repeat_interleave(8 // kv_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 5, 64)
    torch.testing.assert_close(grouped(x, mask=sl.causal()), full(x, mask=sl.causal()))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_cross_attention_reads_keys_and_values_from_the_memory(batch):
    mha = slnn.MultiHeadAttention(16, heads=4, memory_width=6, bias=False)
    x, memory = torch.randn(*batch, 5, 16), torch.randn(*batch, 9, 6)
    q = (x @ mha.query.weight.T).unflatten(-1, (4, 4)).transpose(-3, -2)
    k = (memory @ mha.key.weight.T).unflatten(-1, (4, 4)).transpose(-3, -2)
    v = (memory @ mha.value.weight.T).unflatten(-1, (4, 4)).transpose(-3, -2)
    z = ((q @ k.mT / 2).softmax(-1) @ v).transpose(-3, -2).flatten(-2)
    out = mha(x, memory)
    assert out.shape == x.shape
    torch.testing.assert_close(out, z @ mha.output.weight.T)


def test_keys_and_values_may_read_different_memories():
    mha = slnn.MultiHeadAttention(16, heads=4, memory_width=(6, 7))
    x, for_keys, for_values = torch.randn(2, 5, 16), torch.randn(2, 9, 6), torch.randn(2, 9, 7)
    z = sl.attention(
        *(
            project(t).unflatten(-1, (4, 4)).transpose(1, 2)
            for project, t in ((mha.query, x), (mha.key, for_keys), (mha.value, for_values))
        )
    )
    torch.testing.assert_close(mha(x, (for_keys, for_values)), mha.output(z.transpose(1, 2).flatten(2)))


def test_sizes_of_heads_and_values_are_free():
    mha = slnn.MultiHeadAttention(10, heads=3, head_dim=4, value_dim=5)
    shapes = {name: tuple(p.shape) for name, p in mha.named_parameters() if "weight" in name}
    assert shapes == {
        "query.weight": (12, 10),
        "key.weight": (12, 10),
        "value.weight": (15, 10),
        "output.weight": (10, 15),
    }
    assert mha(torch.randn(2, 7, 10)).shape == (2, 7, 10)


def test_rotary_turns_queries_and_keys():
    rotary = sl.positions.Rotary(8)
    with_positions = slnn.MultiHeadAttention(16, heads=2, positions=rotary)
    x = torch.randn(2, 6, 16)
    q, k, v = (
        p(x).unflatten(-1, (2, 8)).transpose(1, 2)
        for p in (with_positions.query, with_positions.key, with_positions.value)
    )
    z = sl.attention(rotary(q), rotary(k), v)
    torch.testing.assert_close(with_positions(x), with_positions.output(z.transpose(1, 2).flatten(2)))
    # Only the distance counts, so a common shift changes nothing and a stretch does.
    torch.testing.assert_close(with_positions(x, at=100), with_positions(x), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(with_positions(x, at=torch.arange(6) * 2), with_positions(x), atol=1e-3)


def test_alibi_is_a_bias_and_adds_to_another_one():
    with_alibi = slnn.MultiHeadAttention(16, heads=2, positions=sl.alibi(2))
    plain = slnn.MultiHeadAttention(16, heads=2)
    plain.load_state_dict(with_alibi.state_dict())
    x, bias = torch.randn(2, 6, 16), torch.randn(2, 6, 6)
    dense = sl.alibi(2).to_dense(6, 6)
    torch.testing.assert_close(with_alibi(x), plain(x, bias=dense))
    torch.testing.assert_close(with_alibi(x, bias=bias), plain(x, bias=dense + bias))
    assert not torch.allclose(with_alibi(x), plain(x), atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [{"softcap": 2.0}, {"normalizer": "sigmoid"}, {"scale": 0.7}, {"backend": "reference"}, {"backend": "streaming"}],
)
def test_options_reach_attention(options):
    mha = slnn.MultiHeadAttention(16, heads=2, **options)
    x = torch.randn(2, 6, 16)
    q, k, v = (p(x).unflatten(-1, (2, 8)).transpose(1, 2) for p in (mha.query, mha.key, mha.value))
    expected = mha.output(sl.attention(q, k, v, **options).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mha(x), expected)


def test_sinks_take_weight_and_are_learned():
    mha = slnn.MultiHeadAttention(16, heads=2, sinks=True, bias=False)
    x = torch.randn(2, 6, 16)
    mha(x).square().sum().backward()
    assert mha.sinks.grad.abs().min() > 0
    before = mha(x)
    with torch.no_grad():
        mha.sinks.fill_(50.0)  # nearly all weight goes to the sink, which has no value
    assert mha(x).abs().max() < 1e-6 < before.abs().max()


def test_dropout_acts_in_training_only():
    mha = slnn.MultiHeadAttention(16, heads=2, dropout=0.5)
    x = torch.randn(2, 6, 16)
    assert not torch.equal(mha(x), mha(x))
    mha.eval()
    assert torch.equal(mha(x), mha(x))


def test_gradients_reach_every_parameter_and_both_inputs():
    mha = slnn.MultiHeadAttention(16, heads=4, kv_heads=2, memory_width=6, sinks=True)
    x, memory = torch.randn(2, 5, 16, requires_grad=True), torch.randn(2, 7, 6, requires_grad=True)
    mha(x, memory).square().sum().backward()
    without = [name for name, p in mha.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]
    # A key's bias moves all scores of a row alike: only a sink, whose score it does not move, feels it.
    assert not without
    assert x.grad.abs().sum() > 0
    assert memory.grad.abs().sum() > 0


def test_a_token_that_may_see_nothing_gets_the_bias_alone():
    mha = slnn.MultiHeadAttention(16, heads=2)
    torch.nn.init.normal_(mha.output.bias)
    x = torch.randn(1, 3, 16, requires_grad=True)
    visible = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
    out = mha(x, mask=visible)
    torch.testing.assert_close(out[0, 1], mha.output.bias)
    out.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
def test_other_precisions(dtype, atol):
    mha = slnn.MultiHeadAttention(32, heads=4, kv_heads=2, positions=sl.positions.Rotary(8))
    x = torch.randn(2, 6, 32)
    exact = copy.deepcopy(mha).double()(x.double(), mask=sl.causal())
    out = mha.to(dtype)(x.to(dtype), mask=sl.causal())
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, atol=atol, rtol=0)


def test_autocast_computes_in_half_precision():
    mha = slnn.MultiHeadAttention(32, heads=4, positions=sl.positions.Rotary(8))
    x = torch.randn(2, 6, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mha(x, mask=sl.causal())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), mha(x, mask=sl.causal()), atol=5e-2, rtol=0)


def test_non_contiguous_and_empty_inputs():
    mha = slnn.MultiHeadAttention(16, heads=2)
    x = torch.randn(5, 2, 16).transpose(0, 1)
    torch.testing.assert_close(mha(x), mha(x.contiguous()))
    assert mha(torch.zeros(2, 0, 16)).shape == (2, 0, 16)
    assert mha(torch.zeros(0, 3, 16)).shape == (0, 3, 16)


def test_state_dict_round_trip():
    options = {"kv_heads": 2, "sinks": True, "positions": sl.positions.Rotary(4)}
    one, other = (slnn.MultiHeadAttention(16, heads=4, **options) for _ in range(2))
    x = torch.randn(2, 5, 16)
    assert not torch.allclose(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


def test_attention_is_computed_in_one_place():
    class Shifted(slnn.MultiHeadAttention):
        def _attend(self, q, k, v, mask, bias):
            assert q.shape == (2, 4, 5, 4)
            assert k.shape == v.shape == (2, 2, 5, 4)
            return torch.zeros_like(q)

    mha = Shifted(16, heads=4, kv_heads=2)
    torch.testing.assert_close(mha(torch.randn(2, 5, 16)), mha.output.bias.expand(2, 5, 16))


MHA = slnn.MultiHeadAttention


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: MHA(10, 4), "the width cannot be split into equal heads\n.*heads=4\n  got: width=10\n  try: width=12"),
        (lambda: MHA(16, 4, kv_heads=3), "the heads cannot be put into equal groups"),
        (lambda: MHA(16, 4, dropout=-0.1), "dropout must be a probability"),
        (lambda: MHA(16, 4, normalizer="max"), "unknown normalizer"),
        (lambda: MHA(16, 4, positions=sl.positions.Sinusoidal(16)), "added to the input(.*\n)*.*Encoder or Decoder"),
        (lambda: MHA(16, 4, positions=sl.positions.Rotary(8)), "do not fit the heads\n  expected: dim=4\n  got: dim=8"),
        (lambda: MHA(16, 4, positions=sl.alibi(8)), "do not fit the heads\n  expected: heads=4\n  got: heads=8"),
        (lambda: MHA(16, 4, positions="rotary"), "this is not a position scheme"),
        (lambda: MHA(16, 4)(torch.zeros(2, 3, 8)), r"x does not fit.*\n.*time, 16\]\n  got: \(2, 3, 8\)"),
        (lambda: MHA(16, 4)(torch.zeros(2, 3, 16), torch.zeros(2, 3, 8)), r"memory does not fit.*\n.*time, 16\]"),
        (lambda: MHA(16, 4, memory_width=8)(torch.zeros(2, 3, 16)), r"memory \(x, as none was given\) does not fit"),
        (lambda: MHA(16, 4)(torch.zeros(2, 3, 16), torch.zeros(3, 3, 16)), "must have the same batch axes"),
        (lambda: MHA(16, 4)(torch.zeros(2, 3, 16), at=3), "does not use `at`"),
        (
            lambda: MHA(16, 4, positions=sl.alibi(4))(torch.zeros(2, 3, 16), torch.zeros(2, 3, 16)),
            "positions count along one sequence",
        ),
        (lambda: MHA(16, 4)(torch.zeros(2, 3, 16), cache={}), "this is not a cache"),
        (lambda: MHA(16, 4, backend="cuda")(torch.zeros(2, 3, 16)), "unknown backend"),
    ],
)
def test_bad_input_is_explained(make, text):
    with pytest.raises(sl.errors.SightlineError, match=text):
        make()
