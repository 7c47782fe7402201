"""The mean of what heads gave leaves padding out, however it is hidden: it was in it without a word."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sightline as sl
import watch_cases as tiny

REAL = torch.arange(6) < torch.tensor([[4], [6]])


class Attends(nn.Module):
    num_heads = 2

    def __init__(self, by_hand):
        super().__init__()
        self.by_hand = by_hand

    def forward(self, x, bias):
        q = k = v = x.unflatten(-1, (2, 4)).transpose(1, 2)
        if self.by_hand:
            return (q @ k.mT + bias).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, bias)


class Encodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(self, x):
        return self.layers(x, src_key_padding_mask=~REAL)


def check(seen, real):
    mean = seen.mean_output()
    for name in seen.layers:
        rows = seen.output(name).transpose(1, 2)
        torch.testing.assert_close(mean[name], rows[real(name)].mean(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
def test_by_any_number(low, rows, by_hand):
    torch.manual_seed(0)
    model, x = Attends(by_hand), torch.randn(2, 6, 8)
    bias = torch.zeros(2, 1, rows, 6).masked_fill(~REAL[:, None, None], low)
    with torch.no_grad(), sl.watch(model, keep_output=True) as seen:
        model(x, bias)
    check(seen, lambda _: REAL)
    with torch.no_grad(), sl.edit(model) as edits, sl.watch(model, keep_output=True) as forced:
        edits.force("first")  # every key but the first is out of sight, and none of them is padding
        model(x, torch.zeros(2, 1, rows, 6))
    check(forced, lambda _: torch.ones(2, 6, dtype=torch.bool))


@pytest.mark.parametrize("grad", [False, True])
def test_in_layers_of_torch_on_their_fast_path_and_off_it(grad):
    torch.manual_seed(0)
    model = Encodes().eval()
    with torch.set_grad_enabled(grad), sl.watch(model, keep_output=True) as seen:
        model(torch.randn(2, 6, 16))
    check(seen, lambda _: REAL)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_in_an_encoder_and_a_decoder_and_between_them(implementation):
    model, given = tiny.model("t5", implementation), tiny.inputs("t5", "right")
    given["decoder_attention_mask"] = torch.arange(7) < torch.tensor([[7], [5], [2]])
    with torch.no_grad(), sl.watch(model, keep_output=True) as seen:
        model(**given)
    marks = {name: given[f"{'decoder_' if name.startswith('decoder') else ''}attention_mask"] for name in seen.layers}
    check(seen, lambda name: marks[name].bool())
