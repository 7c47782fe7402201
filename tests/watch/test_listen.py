"""A mode that sleeps while passes repeat: what attends in another way than before is still heard."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import watch_cases as tiny
from sightline.watch import watch
from sightline.watch.mode import WatchMode

pytestmark = pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning")


def modes():
    return torch._C._len_torch_function_stack()


class Heard:
    """How many calls of torch the mode hears, pass by pass."""

    def __init__(self, monkeypatch, model):
        self.passes, self.stack = [], []
        hear = WatchMode.__torch_function__

        def counted(mode, *args, **kwargs):
            if self.passes:
                self.passes[-1] += 1
            return hear(mode, *args, **kwargs)

        monkeypatch.setattr(WatchMode, "__torch_function__", counted)
        model.register_forward_pre_hook(lambda *_: self.passes.append(0))
        model.register_forward_hook(lambda *_: self.stack.append(modes()))


def test_it_sleeps_after_some_steps_and_wakes_now_and_then(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama", None, 1, length=5)
    heard = Heard(monkeypatch, model)
    with torch.no_grad(), watch(model) as seen:
        model.generate(**given, max_new_tokens=20, do_sample=False)
        assert modes() == 1
    assert modes() == 0
    assert seen[0].shape[-2:] == (24, 24)
    assert not seen.unseen
    most = max(heard.passes)
    # A prompt, and steps from 1 to 19.
    awake = [i for i, count in enumerate(heard.passes) if count > most / 2]
    assert awake == [0, 1, 2, 3, 4, 8, 16]


def test_what_attends_by_itself_is_always_heard(monkeypatch):
    model, x = torch.nn.Module(), torch.randn(1, 2, 4, 8)
    model.forward = lambda x: F.scaled_dot_product_attention(x, x, x)
    model.add_module("inner", torch.nn.Identity())
    heard = Heard(monkeypatch, model)

    def run():
        with torch.no_grad(), watch(model):
            for _ in range(9):
                model(x)

    with pytest.warns(UserWarning, match="second run"):
        run()
    assert len(set(heard.passes[1:])) == 1
    assert heard.passes[-1] > 0


def test_a_pass_of_another_kind_is_heard():
    """Steps one by one, and then one that attends by hand."""
    model, ids = tiny.model("llama"), tiny.inputs("llama", None, 1, length=16)["input_ids"]
    by_hand = []

    def also(module, args, kwargs, output):
        if by_hand:
            x = output[0] if isinstance(output, tuple) else output
            (x @ x.mT).softmax(-1) @ x

    model.model.layers[0].mlp.register_forward_hook(lambda m, a, o: also(m, a, {}, o))
    with torch.no_grad(), watch(model) as seen:
        cache = model(ids[:, :4]).past_key_values
        for i in range(4, 10):
            model(ids[:, i : i + 1], past_key_values=cache)
        by_hand.append(True)
        model(ids[:, 10:12], past_key_values=cache)
    assert any("by hand" in reason for reason in seen.unseen.values())
    assert seen[0].shape[-2:] == (12, 12)


class Counting(TorchFunctionMode):
    """Somebody else's mode."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outside", [False, True])
def test_other_modes_go_on(outside):
    model, ids = tiny.model("llama"), tiny.inputs("llama", None, 1, length=16)["input_ids"]

    def steps(mode):
        counts = []
        cache = model(ids[:, :4]).past_key_values
        for i in range(4, 12):
            before = mode.calls
            model(ids[:, i : i + 1], past_key_values=cache)
            counts.append(mode.calls - before)
        return counts

    mode = Counting()
    with torch.no_grad():
        if outside:
            with mode, watch(model) as seen:
                counts = steps(mode)
        else:
            with watch(model) as seen, mode:
                counts = steps(mode)
    assert seen[0].shape[-2:] == (12, 12)
    assert min(counts) > 0
    assert modes() == 0


def test_an_error_in_a_pass_that_is_not_heard(monkeypatch):
    model, ids = tiny.model("llama"), tiny.inputs("llama", None, 1, length=16)["input_ids"]
    with torch.no_grad(), watch(model) as seen:
        cache = model(ids[:, :4]).past_key_values
        for i in range(4, 11):
            model(ids[:, i : i + 1], past_key_values=cache)
        monkeypatch.setattr(model.model.norm, "forward", lambda x: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids[:, 11:12], past_key_values=cache)
        assert modes() == 1
    assert modes() == 0
    assert seen[0].shape[-2:] == (12, 12)
