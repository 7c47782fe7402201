"""Where there are no numbers to look at, a watched model runs as it would have, and its attention is named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import watch_cases as tiny
from sightline.watching import watch
from sightline.watching.intercept.numberless import NO_NUMBERS, TRANSFORMED, WRITTEN_DOWN

# Torch's own, on what it does slowly or by way of trial there, and the one that names what was not seen.
pytestmark = pytest.mark.filterwarnings("ignore")

BATCH, HEADS, TIME, DIM = 2, 2, 7, 8


class Attends(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.num_heads, self.qkv, self.attend = HEADS, nn.Linear(HEADS * DIM, 3 * HEADS * DIM), attend

    def forward(self, x):
        q, k, v = self.qkv(x).view(BATCH, TIME, 3, HEADS, DIM).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v).transpose(1, 2).reshape(x.shape)


def by_hand(q, k, v):
    return (q @ k.mT * DIM**-0.5).softmax(-1) @ v


def gradients(model, x):
    return grad(lambda p: functional_call(model, p, (x,)).sum())(dict(model.named_parameters()))


def of_each_example(model, x):
    of_one = grad(lambda p, y: functional_call(model, p, (y,)).sum())
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return vmap(of_one, in_dims=(None, 0))(parameters, torch.stack([x, -x]))


def on_fake(model, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shape = tuple(model(mode.from_tensor(x)).shape)
    return torch.ones(shape)


def traced(model, x):
    return torch.jit.trace(model, x, check_trace=False)(x)


RUNS = {
    "grad": (gradients, TRANSFORMED),
    "jacrev": (lambda model, x: jacrev(lambda y: model(y).sum())(x), TRANSFORMED),
    "vmap": (lambda model, x: vmap(model)(torch.stack([x, -x])), TRANSFORMED),
    "per-sample gradients": (of_each_example, TRANSFORMED),
    "make_fx": (lambda model, x: make_fx(model)(x)(x), WRITTEN_DOWN),
    "export": (lambda model, x: torch.export.export(model, (x,)).module()(x), NO_NUMBERS),
    "trace": (traced, WRITTEN_DOWN),
    "fake tensors": (on_fake, NO_NUMBERS),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand], ids=["torch's", "by hand"])
def test_the_model_runs_as_it_would_have(name, attend):
    run, why = RUNS[name]
    model = nn.Sequential(Attends(attend)).eval()
    x = torch.randn(BATCH, TIME, HEADS * DIM)
    plain = run(model, x)
    with watch(model) as seen:
        mine = run(model, x)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(mine), tree_leaves(plain), strict=True))
    assert not seen.layers
    assert seen.unseen == {"0": why}


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand], ids=["torch's", "by hand"])
def test_a_function_under_vmap_in_a_model_that_is_not(attend):
    model = nn.ModuleDict({"a": Attends(vmap(attend)), "b": Attends(attend)}).eval()
    model.forward = lambda x: model["b"](model["a"](x))
    x = torch.randn(BATCH, TIME, HEADS * DIM)
    plain = model(x)
    with watch(model) as seen:
        assert torch.equal(model(x), plain)
    assert seen.layers == ["b"]
    assert seen.unseen == {"a": TRANSFORMED}


def test_models_on_the_meta_device_run():
    model = nn.Sequential(Attends(F.scaled_dot_product_attention)).to("meta")
    with watch(model) as seen:
        assert model(torch.empty(BATCH, TIME, HEADS * DIM, device="meta")).is_meta
    assert seen.unseen == {"0": NO_NUMBERS}


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_gradients_by_torch_func_of_a_model_of_transformers(family, padding):
    model = tiny.model(family)
    given = tiny.inputs(family, padding)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p):
        return tiny.logits(functional_call(model, p, (), given)).square().mean()

    plain = grad(loss)(parameters)
    with watch(model) as seen:
        mine = grad(loss)(parameters)
    assert all(torch.equal(mine[name], plain[name]) for name in plain)
    assert set(seen.unseen.values()) == {TRANSFORMED}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_a_function_is_no_compiled_one(reentrant):
    def attend(*qkv):
        return checkpoint(F.scaled_dot_product_attention, *qkv, use_reentrant=reentrant)

    model = nn.Sequential(Attends(attend))
    with watch(model) as seen:
        model(torch.randn(BATCH, TIME, HEADS * DIM)).sum().backward()
    assert seen.layers == ["0"]
    assert seen.unseen == {}
