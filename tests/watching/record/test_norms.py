"""What keys carry: the layer that takes the heads' output is found by running, whatever it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watch_cases as tiny
from sightline.shapes import Sizes
from sightline.watching import watch
from sightline.watching.record.norms import sizes


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, as a module of its own."""

    def __init__(self, width):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(width, width), nn.Linear(width, 2), nn.Linear(2, width)

    def forward(self, x):
        return self.base(x) + 0.5 * self.up(self.down(x))

    def weight(self):
        return self.base.weight + 0.5 * self.up.weight @ self.down.weight


class Rounded(nn.Module):
    """A layer whose weight is kept as whole numbers."""

    def __init__(self, width):
        super().__init__()
        self.whole = nn.Parameter(torch.randint(-127, 128, (width, width)).to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(0.01))

    def forward(self, x):
        return F.linear(x, self.weight()) + 1.0

    def weight(self):
        return self.whole.to(self.scale.dtype) * self.scale


class Model(nn.Module):
    """Attention of two heads, and something behind it."""

    def __init__(self, out, before=None, width=16):
        super().__init__()
        self.qkv, self.out, self.before = nn.Linear(width, 3 * width), out, before

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, 2, -1).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        z = z if self.before is None else self.before(z)
        return z @ self.matrix.mT if self.out is None else self.out(z)


def carried(model, weight):
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = model(x)
        with watch(model, keep_qk=True) as seen:
            assert torch.equal(model(x), expected)
        v = model.qkv(x)[..., 32:].unflatten(-1, (2, 8)).transpose(1, 2)
        if weight is None:
            wanted = v.norm(dim=-1)
        else:
            wanted = torch.stack([(v[:, h] @ weight[:, 8 * h : 8 * h + 8].mT).norm(dim=-1) for h in range(2)], 1)
    torch.testing.assert_close(seen[0].extra.sizes, wanted, atol=1e-5, rtol=1e-4)
    return seen[0].norms_of


def test_layers_adapters_quantised_ones_and_products():
    linear = nn.Linear(16, 12)
    assert carried(Model(linear).eval(), linear.weight) == "out"
    assert carried(Model(linear, nn.Dropout(0.5)).eval(), linear.weight) == "out", "nothing stands between"
    assert carried(Model(nn.Sequential(linear, nn.Dropout(0.5))).eval(), linear.weight) == "out"
    for kind in (Adapted, Rounded):
        layer = kind(16)
        assert carried(Model(layer).eval(), layer.weight().detach()) == "out"
    model = Model(None).eval()
    model.matrix = nn.Parameter(torch.randn(12, 16))
    assert carried(model, model.matrix.detach()) == "a product in Model"


@pytest.mark.parametrize("between", [nn.LayerNorm(16), nn.GELU()])
def test_where_something_stands_between_it_is_the_values_alone(between):
    said = carried(Model(nn.Linear(16, 16), between).eval(), None)
    assert said in ("the values alone: before stands between", "the values alone: no linear layer takes it as it is")


def test_a_gate_stands_between():
    said = carried(Model(nn.Linear(16, 16), lambda z: z * torch.sigmoid(z.sum(-1, keepdim=True))).eval(), None)
    assert said == "the values alone: no linear layer takes it as it is"


def test_steps_of_a_generation_are_measured_too():
    model, ids = tiny.model("llama"), tiny.inputs("llama")["input_ids"]
    with watch(model, keep_qk=True) as seen:
        made = model.generate(ids, max_new_tokens=5, do_sample=False)
    with torch.no_grad(), watch(model, keep_qk=True) as whole:
        model(input_ids=made[:, :-1])
    for name in seen.layers:
        assert seen[name].norms_of == whole[name].norms_of == f"o_proj of {name}"
        torch.testing.assert_close(seen[name].extra.sizes, whole[name].extra.sizes, atol=1e-5, rtol=1e-4)


def test_nothing_is_measured_where_nobody_asked():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    with watch(model) as seen:
        model(**given)
        inside = [len(module._forward_pre_hooks) for module in model.modules() if not module._modules]
    assert not any(inside)
    assert hooks == [len(module._forward_pre_hooks) for module in model.modules()]
    assert seen[0].extra.sizes is None


def test_long_texts_take_another_way_to_the_same_numbers():
    torch.manual_seed(3)
    for rank in (24, 3):  # a weight that loses some directions has no root
        weight = torch.randn(48, rank) @ torch.randn(rank, 4 * 16)
        v, s = torch.randn(1, 2, 400, 16), Sizes((1,), 4, 2, 400, 400, 16, 16)
        v[..., 7, :] = 0
        wanted = [(v[:, h // 2].double() @ weight[:, 16 * h : 16 * h + 16].double().mT).norm(dim=-1) for h in range(4)]
        whole = sizes(v.repeat(1, 1, 8, 1), weight, s)
        torch.testing.assert_close(whole[..., :400], torch.stack(wanted, 1).float(), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(sizes(v, weight, s), whole[..., :400], atol=1e-4, rtol=1e-5)
