"""A watch takes nothing and leaves nothing: nested, beside others, after errors, in other threads."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sightline as sl
import watch_cases as tiny
from sightline.errors import InputError, InputTypeError
from sightline.watching import watch
from sightline.watching.intercept import active


class Layer(nn.Module):
    def __init__(self, fail=False):
        super().__init__()
        self.linear, self.fail = nn.Linear(16, 16), fail

    def forward(self, x):
        y = self.linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
        out = F.scaled_dot_product_attention(y, y, y)
        if self.fail:
            raise RuntimeError("something in the model")
        return out.transpose(1, 2).flatten(2)


def traces(*models):
    """Everything a watch touches, as it is now."""
    from transformers import masking_utils, modeling_utils

    functions, masks = modeling_utils.AttentionInterface, masking_utils.AttentionMaskInterface
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return {
        "lookup": (functions.get_interface, "__getitem__" in vars(functions), "__getitem__" in vars(masks)),
        "tables": (dict(functions._global_mapping), dict(masks._global_mapping)),
        "modes": torch._C._len_torch_function_stack(),
        "watches": list(active._local.watches),
        "busy": active._local.busy,
        "stance": None if dynamo is None else dynamo._stance.stance,
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for model in models for m in model.modules()],
        "implementation": [getattr(getattr(m, "config", None), "_attn_implementation", None) for m in models],
        "threads": threading.active_count(),
    }


@pytest.fixture
def llama():
    return tiny.model("llama")


def test_after_a_run(llama):
    before = traces(llama)
    with torch.no_grad(), watch(llama):
        assert traces(llama) != before
        llama(**tiny.inputs("llama"))
    assert traces(llama) == before


def test_after_an_exception_inside(llama):
    model = nn.Sequential(Layer(), Layer(fail=True))
    before = traces(model, llama)
    with pytest.raises(RuntimeError, match="something in the model"), watch(llama), watch(model) as seen:
        model(torch.randn(1, 4, 16))
    assert traces(model, llama) == before
    with watch(model[0]) as again:
        model[0](torch.randn(1, 4, 16))
    assert again.layers == ["Layer"]
    assert seen.layers == ["0", "1"], "what was seen before the error is there"


def test_an_exception_that_the_block_survives():
    model = nn.Sequential(Layer(), Layer(fail=True))

    def run():
        with watch(model) as seen:
            with pytest.raises(RuntimeError):
                model(torch.randn(1, 4, 16))
            model[1].fail = False
            model(torch.randn(1, 7, 16))
        return seen

    with pytest.warns(UserWarning, match="a second run began"):
        seen = run()
    assert seen.layers == ["0", "1"]
    assert seen[0].shape == (1, 2, 7, 7)


def test_after_a_folder_that_cannot_be(llama, tmp_path):
    before = traces(llama)
    (tmp_path / "photo.png").write_bytes(b"")
    with pytest.raises(InputError, match="holds something else"), watch(llama, folder=tmp_path):
        pass
    assert traces(llama) == before


def test_after_an_error_of_ones_own(llama):
    before = traces(llama)
    with torch.no_grad(), pytest.raises(InputError, match="no such heads"), watch(llama, heads=[9]):
        llama(**tiny.inputs("llama"))
    assert traces(llama) == before


def test_two_models_at_once(llama):
    other, x = Layer(), torch.randn(1, 4, 16)
    before = traces(llama, other)
    with torch.no_grad(), watch(llama) as first, watch(other) as second:
        llama(**tiny.inputs("llama"))
        other(x)
    assert first.layers == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert second.layers == ["Layer"]
    assert traces(llama, other) == before


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_nested_watches_of_one_model(family, implementation):
    model, given = tiny.model(family, implementation), tiny.inputs(family, "left")
    before = traces(model)
    with torch.no_grad():
        plain = model(**given).logits
        with watch(model) as outer:
            with watch(model, layers=1, heads=[2]) as inner:
                out = model(**given).logits
            assert traces(model) != before
        torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-5)
    assert len(outer) == 2
    assert len(inner) == 1
    assert inner[0].shape == (3, 1, 12, 12)
    torch.testing.assert_close(inner[0].entropy, outer[1].entropy[:, 2:3])
    assert traces(model) == before


def test_a_part_of_a_model():
    model, x = nn.Sequential(Layer(), nn.Sequential(Layer(), Layer())), torch.randn(1, 4, 16)
    with watch(model[1]) as seen:
        model(x)
    assert seen.layers == ["0", "1"]


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_thread_that_does_not_watch(family):
    model, given = tiny.model(family), tiny.inputs(family, "left")
    with torch.no_grad():
        plain = model(**given).logits
    found = {}

    def run():
        with torch.no_grad():
            found["before"] = model(**given).logits
            inside.set()
            done.wait(10)
            found["during"] = model(**given).logits

    inside, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=run)
    with torch.no_grad(), watch(model) as seen:
        thread.start()
        inside.wait(10)
        out = model(**given).logits
        done.set()
        thread.join(10)
    assert all(torch.equal(logits, plain) for logits in found.values()), "other threads run as they always did"
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-5)
    assert len(seen) == 2
    assert seen.meta["runs"] == 1


def test_two_threads_that_watch(llama):
    given, other = tiny.inputs("llama"), tiny.inputs("llama", batch=1, length=7)
    before = traces(llama)
    found = {}
    barrier = threading.Barrier(2)

    def run(name, inputs):
        with torch.no_grad(), watch(llama) as seen:
            barrier.wait(10)
            llama(**inputs)
            barrier.wait(10)
        found[name] = seen

    threads = [threading.Thread(target=run, args=pair) for pair in (("a", given), ("b", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found["a"][0].shape == (3, 4, 12, 12)
    assert found["b"][0].shape == (1, 4, 7, 7)
    assert traces(llama) == before


def test_nothing_holds_the_model_afterwards():
    model = Layer()
    with watch(model) as seen:
        model(torch.randn(1, 4, 16))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert seen[0].shape == (1, 2, 4, 4)


@pytest.mark.parametrize("options", [{}, {"keep_qk": True}, {"influence": True, "keep_qk": True}], ids=str)
def test_what_is_seen_is_in_no_circle(options, llama):
    """What it holds, on a GPU perhaps, is free without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for model, given in ((Layer(), torch.randn(1, 4, 16)), (llama, torch.tensor([[1, 2, 3, 4, 5]]))):
            with watch(model, **options) as seen:
                model(given)
            gone = weakref.ref(seen)
            del seen
            assert gone() is None
    finally:
        gc.enable()


def test_a_run_without_attention_is_said():
    model = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="saw no attention"), watch(model) as seen:
        model(torch.randn(2, 4))
    with pytest.raises(InputError, match="a pass without such a call"):
        seen[0]


def test_a_block_without_a_run_is_said():
    with pytest.warns(UserWarning, match="no pass of the model"), watch(Layer()):
        pass


def test_a_run_in_another_thread_is_said():
    model = Layer()
    thread = threading.Thread(target=lambda: model(torch.randn(1, 4, 16)))

    def run():
        with watch(model):
            thread.start()
            thread.join()

    with pytest.warns(UserWarning, match="in this thread"):
        run()


def test_a_choice_that_fits_nothing_is_said():
    model = nn.Sequential(Layer(), Layer())
    with pytest.warns(UserWarning, match=r"chose no layer \(layers=\['linear'\]\)") as said, watch(model, "linear"):
        model(torch.randn(1, 4, 16))
    assert "got: 0, 1" in str(said[0].message)


def test_after_an_error_nothing_more_is_said():
    with pytest.raises(RuntimeError), watch(nn.Linear(4, 4)):
        raise RuntimeError


def test_a_watch_is_for_one_block():
    model = Layer()
    watching = watch(model)
    with watching:
        model(torch.randn(1, 4, 16))
    with pytest.raises(InputError, match="for one block"), watching:
        pass


def test_what_is_no_module():
    with pytest.raises(InputTypeError, match="looks into a module"):
        watch(lambda x: x)
    with pytest.raises(InputTypeError, match="keep_qk"):
        watch(Layer(), keep_qk=3)


@pytest.mark.parametrize("block", [watch, lambda model: watch(model, stats=(sl.Received(of="norms"),)), sl.edit])
def test_hooks_that_are_taken_away_while_another_thread_is_about_to_call_them(block):
    """Torch then calls them, and without the keywords that they were promised."""
    model, ids, found = tiny.model("llama"), torch.tensor([[3, 4, 5]]), []
    inside, gone = threading.Event(), threading.Event()
    with torch.no_grad():
        plain = model(input_ids=ids).logits

    def wait(*_):
        inside.set()
        assert gone.wait(30)

    def run():
        with torch.no_grad():
            found.append(model(input_ids=ids).logits)

    handle, thread = model.register_forward_pre_hook(wait), threading.Thread(target=run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing was seen
        with block(model):
            thread.start()
            assert inside.wait(30)
    gone.set()
    thread.join()
    handle.remove()
    assert torch.equal(found[0], plain)
