"""Modules that torch.jit made: their bits stay, and those that attend are named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.watching import watch
from sightline.watching.intercept.scripted import SCRIPTED
from sightline.watching.intercept.unseen import BY_HAND
from watch_by_hand import DIM, TIME, Fused, Projected, padding, run

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.project(x), x, x)


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            return x
        return torch.softmax(torch.matmul(self.project(x), x.mT), -1) @ x


class Feeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 31), nn.Linear(31, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.softmax(self.up(x), -1))


@torch.jit.script
def capped(x: torch.Tensor, limit: float):
    return (x / limit).tanh() * limit


class Capped(Projected):
    """x-transformers: the function between the scores and their softmax is scripted."""

    def attend(self, q, k, v):
        return capped(self.hide(q @ k.mT), 5.0).softmax(-1) @ v


class Features(Projected):
    """Linear attention with the same function, at a length other than its width."""

    def attend(self, q, k, v):
        around = capped(k, 5.0).softmax(-2).mT @ v
        return capped(q, 5.0).softmax(-1) @ around


def made(how, module):
    return torch.jit.script(module) if how == "script" else torch.jit.trace(module, torch.randn(2, TIME, DIM))


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("kind", [Calls, Writes])
def test_scripted_attention_is_named(how, kind):
    model, x = nn.Sequential(Fused(), made(how, kind()), made(how, Feeds())).eval(), torch.randn(2, TIME, DIM)
    plain = model(x)
    seen = run(model, x)
    assert seen.layers == ["0"]
    assert seen.unseen == {"1": SCRIPTED}
    with pytest.warns(UserWarning, match="without being seen"), watch(model):
        assert torch.equal(model(x), plain)
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_model_that_is_scripted_as_a_whole():
    assert list(run(torch.jit.script(Calls()), torch.randn(2, TIME, DIM)).unseen.values()) == [SCRIPTED]


def test_what_does_not_run_is_not_named():
    model = nn.ModuleDict({"a": Fused(), "b": torch.jit.script(Calls())})
    model.forward = lambda x: model["a"](x)
    assert run(model, torch.randn(2, TIME, DIM)).unseen == {}
    model.forward = lambda x: model["b"](model["a"](x))
    assert run(model, torch.randn(2, TIME, DIM), layers="a").unseen == {}


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_a_scripted_function_between_scores_and_softmax(side):
    model = nn.Sequential(Fused(), Capped(), Features()).eval()
    model[1].real = padding(side)
    seen = run(model, torch.randn(2, TIME, DIM))
    assert seen.layers == ["0"]
    assert seen.unseen == {"1": BY_HAND}
