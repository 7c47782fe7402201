from __future__ import annotations

import copy

import torch
from torch import nn

from sightline.nn import Encoder, FeedForward, MultiHeadAttention
from sightline.nn.fast.layout import lay_out
from sightline.nn.fast.side_by_side import side_by_side


def test_values_shapes_and_names_stay() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(40, 12), Encoder(12, 3, 2, kv_heads=1, gated=True, hidden=30), nn.Linear(12, 40))
    plain[2].weight = plain[0].weight
    laid = copy.deepcopy(plain)
    lay_out(laid)
    for (name, before), (other, after) in zip(plain.named_parameters(), laid.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(before, after)
    assert laid[2].weight is laid[0].weight  # still tied
    ids = torch.arange(7)[None]
    torch.testing.assert_close(laid(ids), plain(ids))


def test_tall_matrices_lie_by_columns_and_others_by_rows() -> None:
    model = nn.ModuleList([nn.Linear(4, 40), nn.Linear(40, 4), nn.Linear(4, 4)])
    lay_out(model)
    assert [tuple(linear.weight.stride()) for linear in model] == [(1, 40), (40, 1), (4, 1)]


def test_what_has_the_same_input_lies_side_by_side() -> None:
    attention, forward = MultiHeadAttention(12, 3, kv_heads=1), FeedForward(12, 20, gated=True)
    qkv, ups = (attention.query, attention.key, attention.value), (forward.gate, forward.up)
    assert side_by_side(*ups) is None
    lay_out(nn.ModuleList([attention, forward]))
    for linears in (qkv, ups):
        joined = side_by_side(*linears)
        assert joined is not None
        weight, bias = joined
        assert torch.equal(weight, torch.cat([linear.weight for linear in linears]))
        assert torch.equal(bias, torch.cat([linear.bias for linear in linears]))
        assert weight.data_ptr() == linears[0].weight.data_ptr()  # nothing was copied
    assert side_by_side(attention.key, attention.query) is None
    assert side_by_side(attention.query, attention.value) is None
    assert side_by_side(attention.query, forward.gate) is None
    copied = copy.deepcopy(attention)  # each parameter has memory of its own then
    assert side_by_side(copied.query, copied.key, copied.value) is None


def test_biases_for_some_and_other_widths_are_left_alone() -> None:
    attention = MultiHeadAttention(12, 3)
    attention.key.bias = None
    lay_out(attention)
    assert side_by_side(attention.query, attention.key, attention.value) is None
    cross = MultiHeadAttention(12, 3, memory_width=8)
    lay_out(cross)
    assert cross(torch.zeros(2, 12), torch.zeros(3, 8)).shape == (2, 12)
