"""Where a pass begins and ends: who is called first, parts by themselves, calls that fail, modules in themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.watching import watch


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Identity())

    def forward(self, x: Tensor, fails: bool = False, again: int = 0) -> Tensor:
        x = self.inside(x)
        if again:
            x = self(x, again=again - 1)
        x = F.scaled_dot_product_attention(x, x, x)
        if fails:
            raise RuntimeError("on purpose")
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attends() for _ in range(2))

    def forward(self, x: Tensor, **options: object) -> Tensor:
        for layer in self.layers:
            x = layer(x, **options)
        return x


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_only_the_outermost_module_has_a_hook_behind_it_and_none_stays():
    model, x, counted = Model(), torch.randn(1, 2, 5, 4), []
    inside = model.layers[1].inside[0]
    inside.forward = lambda x: counted.append([len(m._forward_hooks) for m in model.modules()]) or x
    with torch.no_grad(), watch(model) as seen:
        model(x)
        assert not any(module._forward_hooks for module in model.modules())
    assert [sum(row) for row in counted] == [1]
    assert counted[0][0] == 1
    assert hooks(model) == 0
    assert seen.layers == ["layers.0", "layers.1"]


def test_after_a_call_that_fails_the_next_one_is_a_pass_of_its_own():
    model, x, y = Model(), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 7, 4)
    with torch.no_grad(), watch(model) as seen:
        with pytest.raises(RuntimeError, match="on purpose"):
            model(x, fails=True)
        with pytest.warns(UserWarning, match="a second run began"):  # what the first one saw is let go, and said
            out = model(y)
    assert seen.layers == ["layers.0", "layers.1"]
    assert seen[0].shape == (1, 2, 7, 7)
    assert torch.equal(out, model(y))
    assert hooks(model) == 0


def test_a_part_by_itself_is_a_pass():
    model, x, y = Model(), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 7, 4)
    with torch.no_grad(), watch(model, runs="all") as seen:
        model.layers[0](x)
        model(y)
    assert [run[0].shape for run in seen.runs] == [(1, 2, 5, 5), (1, 2, 7, 7)]


def test_a_module_that_calls_itself_is_one_pass():
    model, x = Attends(), torch.randn(1, 2, 5, 4)
    with torch.no_grad(), watch(model, runs="all") as seen:
        model(x, again=2)
        model(x)
    assert [len(run.layers) for run in seen.runs] == [3, 1]
    assert hooks(model) == 0


def test_no_module_inside_a_pass_is_called_by_way_of_a_hook_and_all_have_theirs_again():
    model, x, counted = Model(), torch.randn(1, 2, 5, 4), []
    others = model.layers[1].register_forward_pre_hook(lambda *_: None)
    inside = model.layers[1].inside[0]
    inside.forward = lambda x: counted.append([len(m._forward_pre_hooks) for m in model.modules()]) or x
    every = [name for name, _ in model.named_modules()]
    with torch.no_grad(), watch(model, runs="all") as seen:
        between = [len(m._forward_pre_hooks) for m in model.modules()]
        model(x)
        assert [len(m._forward_pre_hooks) for m in model.modules()] == between
        with pytest.raises(RuntimeError, match="on purpose"):
            model(x, fails=True)
        assert [len(m._forward_pre_hooks) for m in model.modules()] == between
        model.layers[0](x)  # a pass by itself
    assert {name for name, count in zip(every, between) if count} > {"", "layers", "layers.0", "layers.1.inside"}
    # The model, which may call itself, and a module that somebody else has put a hook on.
    assert {name: count for name, count in zip(every, counted[0]) if count} == {"": 1, "layers.1": 2}
    assert [run.layers for run in seen.runs] == [["layers.0", "layers.1"], ["layers.0"], ["layers.0"]]
    others.remove()
    assert hooks(model) == 0


def test_a_block_that_is_left_inside_a_pass_leaves_no_hook():
    model, x = Model(), torch.randn(1, 2, 5, 4)
    block = watch(model)
    model.layers[1].inside[0].forward = lambda x: block.__exit__(None, None, None) or x
    with torch.no_grad():
        block.__enter__()
        model(x)
        assert hooks(model) == 0
        assert model(x).shape == x.shape
