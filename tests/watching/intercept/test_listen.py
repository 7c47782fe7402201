"""A mode that sleeps while passes repeat: what attends in another way than before is still heard."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import StaticCache

import watch_cases as tiny
from sightline.watching import watch
from sightline.watching.intercept import lse_capture, transformers
from sightline.watching.intercept.function_mode import WatchMode
from watching.record.test_gather import check_same

pytestmark = pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning")


WITHOUT_SDPA = ("gemma2", "gpt-oss")
# Whether torch has a kernel for heads that share keys whose log-sum-exp can be had; torch 2.8 has none on a CPU.
Q, K = torch.zeros(1, 4, 5, 8), torch.zeros(1, 2, 5, 8)
GROUPED = torch._fused_sdp_choice(Q, K, K, enable_gqa=True) != SDPBackend.MATH.value


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
        assert modes() == 0, "it sleeps on between steps"
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


def test_what_one_watch_learned_the_next_one_knows(monkeypatch):
    model = tiny.model("llama")
    heard = Heard(monkeypatch, model)
    for length in (5, 9, 7, 11, 6, 13, 8):  # texts of every length
        with watch(model) as seen, torch.no_grad():
            model(**tiny.inputs("llama", None, 1, length=length))
        assert len(seen.layers) == 2
        assert seen.unseen == {}
    loud, quiet = heard.passes[0], heard.passes[4]
    assert heard.passes[3] > 0.9 * loud  # the fourth
    assert max(heard.passes[4:]) < 0.4 * loud, (loud, quiet)


def by_hand(attention):
    """An attention module's forward, written out."""

    def forward(hidden_states, **_):
        q, k, v = (p(hidden_states) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        k, v = (x.repeat_interleave(q.shape[-1] // x.shape[-1], -1) for x in (k, v))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return attention.o_proj(weights @ v), None

    return forward


def test_a_model_that_was_changed_is_heard_anew():
    model = tiny.model("llama")
    for _ in range(5):
        with watch(model), torch.no_grad():
            model(**tiny.inputs("llama", None, 1, length=5))
    attention = model.model.layers[1].self_attn
    attention.forward = by_hand(attention)
    with watch(model) as seen, torch.no_grad():
        model(**tiny.inputs("llama", None, 1, length=7))
    assert seen.layers == ["model.layers.0.self_attn"]
    assert list(seen.unseen) == ["model.layers.1.self_attn"]
    assert "by hand" in seen.unseen["model.layers.1.self_attn"]


def test_a_layer_that_attends_otherwise_in_a_pass_that_was_not_heard_is_named():
    model = tiny.model("llama")
    attention = model.model.layers[1].self_attn
    own, otherwise = type(attention).forward, by_hand(attention)
    switch = {"on": False}

    class Switched(type(attention)):
        def forward(self, *args, **kwargs):
            return otherwise(*args, **kwargs) if switch["on"] else own(self, *args, **kwargs)

    attention.__class__ = Switched
    for _ in range(5):
        with watch(model) as seen, torch.no_grad():
            model(**tiny.inputs("llama", None, 1, length=5))
        assert seen.unseen == {}
    switch["on"] = True
    for _ in range(2):  # the first says that something is amiss, the next one hears what
        with watch(model) as seen, torch.no_grad():
            model(**tiny.inputs("llama", None, 1, length=7))
        assert seen.layers == ["model.layers.0.self_attn"]
        assert list(seen.unseen) == ["model.layers.1.self_attn"]
    assert "by hand" in seen.unseen["model.layers.1.self_attn"]


def test_what_went_unseen_once_is_looked_for_every_time():
    model = tiny.model("llama")
    attention = model.model.layers[1].self_attn
    attention.forward = by_hand(attention)
    for _ in range(6):
        with watch(model) as seen, torch.no_grad():
            model(**tiny.inputs("llama", None, 1, length=5))
        assert list(seen.unseen) == ["model.layers.1.self_attn"]


@pytest.fixture
def unheard(monkeypatch):
    """Counts the calls whose kernels alone are asked."""
    calls = []
    inner = transformers.Attending._unmasked
    monkeypatch.setattr(
        transformers.Attending, "_unmasked", lambda self, *given: calls.append(1) or inner(self, *given)
    )
    return calls


def the_same_again(model, run):
    """The first pass, which is heard call by call, and the fifth, which is not."""
    found = []
    for _ in range(5):
        with watch(model) as seen:
            out = run()
        found.append((seen, out))
    return found[0], found[-1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("family", [one for one in tiny.FAMILIES if one not in WITHOUT_SDPA])
def test_a_pass_that_is_not_heard_has_the_same_account(family, padding, mode, unheard):
    model, given = tiny.model(family), tiny.inputs(family, padding)
    with mode():
        plain = model(**given)
        (first, _), (fifth, out) = the_same_again(model, lambda: model(**given))
    check_same(first, fifth)
    assert torch.equal(tiny.logits(out), tiny.logits(plain))
    if family == "llama" and padding is None:
        assert len(unheard) == len(fifth.layers)


@pytest.mark.parametrize("kernel", ["by a mode", "not known"])
def test_a_kernel_that_is_not_asked_for_by_its_name(kernel, monkeypatch, unheard):
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with torch.no_grad():
        (first, plain), (fifth, _) = the_same_again(model, lambda: model(**given))
        assert unheard
        monkeypatch.setattr(lse_capture, "_kernel", lambda *_: None)
        if kernel == "not known":
            monkeypatch.setattr(lse_capture, "_KNOWN", {})
        for _ in range(2):  # the eighth is heard again
            with watch(model) as seen:
                out = model(**given)
            check_same(first, seen)
            assert torch.equal(out.logits, plain.logits)
    assert len(unheard) == 3 * len(fifth.layers)


def test_somebody_elses_mode_hears_the_kernel_all_the_same():
    model, given = tiny.model("llama"), tiny.inputs("llama")

    def counted():
        with FlopCounterMode(display=False) as flops:
            model(**given)
        return flops.get_total_flops()

    with torch.inference_mode():
        expected = counted()
        for _ in range(6):
            with watch(model):
                assert counted() == expected


def test_a_prompt_in_a_static_cache(unheard):
    """The cache is longer than the prompt: what is behind it is no key yet."""
    model, ids = tiny.model("llama"), tiny.inputs("llama", None, 1, length=9)["input_ids"]

    def run():
        cache = StaticCache(config=model.config, max_cache_len=30)
        return model(ids, past_key_values=cache).logits

    with torch.no_grad():
        (first, plain), (fifth, out) = the_same_again(model, run)
    assert torch.equal(plain, out)
    check_same(first, fifth)
    assert fifth[0].shape[-2:] == (9, 9)


def test_a_function_that_attends_in_another_way_all_at_once_is_named(monkeypatch):
    """In a pass that is not heard nothing is made up of a call that torch was not asked for."""
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with torch.no_grad():
        the_same_again(model, lambda: model(**given))
        monkeypatch.setattr(
            transformers, "_heard", lambda function, name: _without_attention(transformers.Attending(function, name))
        )
        with watch(model) as seen:
            model(**given)
    assert not seen.layers
    assert all("called none of torch's" in why for why in seen.unseen.values())
    assert len(seen.unseen) == 2


def _without_attention(attending):
    attending._catching = lambda module, q, *_, **__: (q.transpose(1, 2).contiguous(), None)
    return attending


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_of_a_step_that_is_as_the_one_before_it_nothing_is_asked(mode, monkeypatch):
    """Neither of its first layer, with which the tokens of the pass come, nor of the others."""
    model, given = tiny.model("llama"), tiny.inputs("llama", None, 1, length=5)
    asked, look = [], transformers.look
    monkeypatch.setattr(
        transformers, "look", lambda *given, **more: asked.append(given[0].shape[-2]) or look(*given, **more)
    )

    def run():
        return model.generate(**given, max_new_tokens=20, min_new_tokens=20, do_sample=False)

    with mode():
        (first, plain), (fifth, out) = the_same_again(model, run)
        asked.clear()
        with watch(model) as seen:
            run()
    assert torch.equal(plain, out)
    check_same(first, fifth)
    check_same(first, seen)
    steps = [queries for queries in asked if queries == 1]
    assert not GROUPED or len(steps) <= 2 * len(seen.layers), "only where a block of steps begins"


def test_a_layer_that_is_alike_is_asked_for_its_tensors_alone(monkeypatch):
    """Of layers that are alike the first is asked, and the first of another form."""
    model, given = tiny.model("llama"), tiny.inputs("llama", None, 1, length=9)
    asked, look = [], transformers.look
    monkeypatch.setattr(transformers, "look", lambda *given, **more: asked.append(1) or look(*given, **more))
    with torch.no_grad():
        (first, plain), (fifth, out) = the_same_again(model, lambda: model(**given))
        assert torch.equal(plain.logits, out.logits)
        check_same(first, fifth)
        asked.clear()
        with watch(model, runs="all") as seen:
            for length in (9, 5):
                model(**{name: x[:, :length] for name, x in given.items()})
        assert len(asked) == (2 if GROUPED else 4), "one layer of each pass"
        assert [run[1].shape[-2:] for run in seen.runs] == [(9, 9), (5, 5)]
        check_same(seen.runs[0], fifth)
