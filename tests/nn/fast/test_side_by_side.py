from __future__ import annotations

import copy
import io

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import sightline as sl
from sightline.nn import Encoder, MultiHeadAttention
from sightline.nn.fast.side_by_side import lay_side_by_side, side_by_side


def projections(attention):
    return attention.query, attention.key, attention.value


@pytest.fixture
def products(monkeypatch):
    """How many products with a matrix the forward pass of a module makes, by the matrix's rows."""
    rows = []
    linear = torch.nn.functional.linear

    def counted(x, weight, bias=None):
        rows.append(len(weight))
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    return rows


@pytest.mark.parametrize("options", [{}, {"kv_heads": 1}, {"bias": False}, {"head_dim": 5, "value_dim": 3}], ids=str)
def test_without_gradients_three_products_are_one_with_the_same_result(products, options):
    attention, x = MultiHeadAttention(12, 3, **options), torch.randn(2, 5, 12)
    expected = attention(x, mask=sl.causal())
    assert len(products) == 4
    products.clear()
    with torch.no_grad():
        found = attention(x, mask=sl.causal())
    assert len(products) == 2
    assert products[0] == sum(len(linear.weight) for linear in projections(attention))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.query.weight.data.mul_(3),
        lambda m: m.load_state_dict({name: t * 2 for name, t in m.state_dict().items()}),
        lambda m: setattr(m, "key", nn.Linear(12, 12)),
        lambda m: setattr(m.value, "weight", nn.Parameter(torch.randn(12, 12))),
        lambda m: m.double().float(),
    ],
    ids=["in place behind its back", "loaded", "another layer", "another weight", "moved"],
)
def test_a_change_of_the_weights_is_seen(change):
    attention, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    with torch.no_grad():
        attention(x)
        change(attention)
        found = attention(x)
    torch.testing.assert_close(found, attention(x).detach())


def test_hooks_on_a_projection_are_called():
    attention, x, seen = MultiHeadAttention(12, 3), torch.randn(2, 5, 12), []
    attention.key.register_forward_hook(lambda *_: seen.append("key"))
    with torch.no_grad():
        attention(x)
    assert seen == ["key"]


def test_moved_and_converted_modules_lie_side_by_side_again():
    for attention in (
        MultiHeadAttention(12, 3).double(),
        MultiHeadAttention(12, 3).to(torch.bfloat16),
        MultiHeadAttention.from_torch(nn.MultiheadAttention(12, 3)),
        Encoder.from_torch(nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3), 1, enable_nested_tensor=False))
        .layers[0]
        .attention,
    ):
        assert side_by_side(*projections(attention)) is not None


def test_what_stays_where_it_is_keeps_its_address():
    attention = MultiHeadAttention(12, 3)
    before = [p.data_ptr() for p in attention.parameters()]
    attention.float().cpu().train().requires_grad_(False)
    assert [p.data_ptr() for p in attention.parameters()] == before


def test_copies_and_files_hold_plain_weights():
    attention, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    file = io.BytesIO()
    torch.save(attention, file)
    file.seek(0)
    others = [copy.deepcopy(attention), torch.load(file, weights_only=False), MultiHeadAttention(12, 3)]
    others[2].load_state_dict(load(save(attention.state_dict())))
    with torch.no_grad():
        expected = attention(x)
        attention.query.weight.zero_()  # a copy has memory of its own
        for other in others:
            torch.testing.assert_close(other(x), expected)


def test_layers_of_other_kinds_are_left_alone():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.float64)
    lay_side_by_side(a, b)
    assert side_by_side(a, b) is None
    cross = MultiHeadAttention(12, 3, memory_width=8)
    assert side_by_side(*projections(cross)) is None
    with torch.device("meta"):
        MultiHeadAttention(12, 3)


def test_compiled_and_transformed_it_gives_the_same():
    attention, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    with torch.no_grad():
        expected = attention(x)
        torch.testing.assert_close(torch.compile(attention, backend="eager", fullgraph=True)(x), expected)
        torch.testing.assert_close(torch.func.vmap(attention)(x), expected)
