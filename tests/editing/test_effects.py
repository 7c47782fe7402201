"""What every head did for a target: exact, first order, and the example of a real model with its numbers."""

from __future__ import annotations

import threading

import pytest
import torch

import edit_cases
import sightline as sl
import watch_cases
from model_cases import smollm2, smollm2_tokenizer
from sightline.editing import head_effects as module
from sightline.editing.short_cut import LastLinear
from sightline.errors import InputError, InputTypeError


def target(out):
    return (out[0] if isinstance(out, tuple) or hasattr(out, "logits") else out)[:, -1, 0] * 3


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_each_head_is_replaced_as_if_it_were_alone(family, by):
    model, inputs = watch_cases.model(family), watch_cases.inputs(family, "right")
    found = sl.effects(model, inputs, target, by=by)
    assert found.exact.shape == found.influence.shape == (3, len(found.layers), 4)
    with torch.no_grad():
        assert torch.allclose(found.baseline, target(model(**inputs)).double(), atol=1e-5)
        for layer, head in [(0, 1), (1, 3), (len(found.layers) - 1, 0)]:
            with sl.edit(model) as edits:
                edits.ablate(by, heads=[(layer, head)])
                alone = found.baseline - target(model(**inputs))
            assert torch.allclose(found.exact[:, layer, head], alone, atol=2e-5)
    for layer, head in found.top(2):
        with sl.edit(model) as edits, torch.no_grad():
            edits.scale(1.0, heads=[(layer, head)])
            model(**inputs)
    assert "orange" in found._repr_html_()
    assert str(found).splitlines()[2].split()[:2] == [str(n) for n in found.top(1)[0]]


def test_the_first_order_figure_predicts_small_changes():
    model, x = edit_cases.small_decoder(), torch.randn(2, 7, 32)
    replacement = {}
    with torch.no_grad(), sl.watch(model, keep_output=True) as seen:
        model(x)
    for name in seen.layers:
        replacement[name] = torch.zeros(4, 8)
    found = sl.effects(model, x, lambda out: out[:, -1, :3].sum(-1), by=replacement)
    plain = sl.effects(model, x, lambda out: out[:, -1, :3].sum(-1))
    assert torch.allclose(found.influence, plain.influence)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.scale(1 - 1e-2, heads=[(1, 2)])
        changed = plain.baseline - model(x)[:, -1, :3].sum(-1)
    assert torch.allclose(changed * 100, plain.influence[:, 1, 2], rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_is_told_the_same(mode):
    """Where everything else is done under no_grad, so is this; only under inference mode are there none to be had."""
    torch.manual_seed(0)
    model, x = sl.nn.Decoder(16, heads=2, layers=2).eval(), torch.randn(1, 5, 16)

    def target(output):
        return output[:, -1].sum(-1)

    expected = sl.effects(model, x, target)
    with mode():
        found = sl.effects(model, x, target)
    assert torch.equal(found.exact, expected.exact)
    if mode is torch.no_grad:
        assert torch.equal(found.influence, expected.influence)
    else:
        assert found.influence.isnan().all()


def test_a_patching_sweep_puts_in_another_run():
    model, x, y = edit_cases.small_decoder(), torch.randn(1, 6, 32), torch.randn(1, 6, 32)
    with torch.no_grad(), sl.watch(model, keep_output=True) as seen:
        model(y)
    found = sl.effects(model, x, lambda out: out[:, -1, 0], by=seen, heads=[(1, 1), (0, 2)])
    assert int(found.exact.isfinite().sum()) == int(found.influence.isfinite().sum()) == 2
    with torch.no_grad(), sl.edit(model) as edits:
        edits.patch(seen, heads=[(1, 1)])
        assert torch.allclose(found.baseline - model(x)[:, -1, 0], found.exact[:, 1, 1], atol=1e-5)
    itself = sl.effects(model, y, lambda out: out[:, -1, 0], by=seen)
    assert itself.exact.abs().max() < 1e-5


def test_a_function_runs_once_for_each_head_and_a_number_for_all():
    model, x = edit_cases.small_decoder(), torch.randn(2, 6, 32)
    count = []

    def run():
        count.append(1)
        return model(x)

    one = sl.effects(model, run, lambda out: out[:, -1, 0].sum())
    many = sl.effects(model, x, lambda out: out[:, -1, 0].sum())
    assert one.exact.shape == (2, 4)
    assert len(count) == 2 + 8
    assert torch.allclose(one.exact, many.exact, atol=2e-5)
    assert torch.allclose(one.influence, many.influence, atol=2e-5)


def test_layers_below_are_not_computed_again_and_nothing_is_left(monkeypatch):
    model, x = edit_cases.small_decoder(layers=4), torch.randn(1, 6, 32)
    ran = []
    model.layers[0].register_forward_hook(lambda *_: ran.append(1))
    inner = model.layers[0].feed_forward.register_forward_hook(lambda *_: ran.append(2))
    found = sl.effects(model, x, lambda out: out[:, -1, 0])
    assert ran.count(2) == 2 + 1  # twice unedited, and once for its own heads
    assert "forward" not in vars(model.layers[0])
    inner.remove()

    # A model whose blocks read more than their input is run whole.
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.seen = torch.nn.ModuleList(model.layers), None

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * (1 + layer.feed_forward.down.weight[0, 0] * self.calls)
            return x

    odd = Odd()
    odd.calls = 0.5
    whole = sl.effects(odd, x, lambda out: out[:, -1, 0])
    monkeypatch.setattr(module.Blocks, "below", _never)
    assert torch.allclose(sl.effects(odd, x, lambda out: out[:, -1, 0]).exact, whole.exact, atol=1e-5)
    assert torch.allclose(sl.effects(model, x, lambda out: out[:, -1, 0]).exact, found.exact, atol=1e-5)


def test_a_real_model_with_its_numbers():
    """The second " John" is what head 23.3 of SmolLM2 looks at, and one edge of it is nearly half of the answer."""
    model, tokenizer = smollm2(), smollm2_tokenizer()
    ids = torch.tensor([tokenizer.encode("When Mary and John went to the store, John gave a drink to").ids])
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    difference = sl.targets.logit(mary, than=john)
    # All heads of the layers that the strongest are in: the others take a minute more, and are weaker.
    found = sl.effects(model, ids, difference, heads=[(i, j) for i in (1, 20, 23, 29) for j in range(9)])
    assert round(float(found.baseline), 2) == 6.12
    strongest = found.top(6)
    assert strongest == [(23, 3), (1, 5), (29, 1), (1, 3), (20, 0), (29, 0)]
    assert [round(float(found.exact[0][pair]), 2) for pair in strongest] == [3.04, 2.18, 1.68, 1.30, 1.29, -1.28]
    assert round(float(found.influence[0, 23, 3]), 2) == 2.60
    layer, head = strongest[0]
    with sl.watch(model, layers=layer, influence=True, keep_qk=True) as seen:
        seen.backward(difference(model(ids)))
    key = seen[0].top(1, of="influence").keys[0, head, -1, 0]
    assert int(key) == 9
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=-1, keys=key, heads=[(layer, head)])
        assert round(float(difference(model(ids))), 2) == 3.33


def _never(self, *_):
    from contextlib import nullcontext

    return nullcontext(False)


def test_what_cannot_be_is_refused():
    model, x = edit_cases.small_decoder(dropout=0.5), torch.randn(1, 6, 32)
    with pytest.raises(InputError, match="two unedited runs differ"):
        sl.effects(model.train(), x, lambda out: out[:, -1, 0])
    model.eval()
    with pytest.raises(InputTypeError, match="a target is a number"):
        sl.effects(model, x, lambda out: out)
    with pytest.raises(InputError, match="cannot be repeated"):
        sl.effects(model, torch.randn(6), lambda out: out)
    with pytest.raises(InputError, match="no such layer"):
        sl.effects(model, x, lambda out: out[:, -1, 0], heads=[(7, 0)])
    with pytest.raises(InputError, match="has no such heads"):
        sl.effects(model, x, lambda out: out[:, -1, 0], heads=[(1, 9)])
    with pytest.raises(InputError, match="no attention was seen"):
        sl.effects(torch.nn.Linear(4, 4), torch.randn(1, 4), lambda out: out[:, 0])


def test_half_precision_may_differ_by_its_roundings():
    """Kernels with and without gradients, or of a larger batch, do: by the last digits of what they can say."""
    model, x = edit_cases.small_decoder().bfloat16(), torch.randn(1, 6, 32, dtype=torch.bfloat16)
    off = 1 + torch.finfo(torch.bfloat16).eps
    model.register_forward_hook(lambda _, __, out: out * (off if torch.is_grad_enabled() else 1.0))
    found = sl.effects(model, x, lambda out: 10 * out[:, -1, 0].abs() + 1)
    assert found.exact.isfinite().all()
    off = 1.1
    with pytest.raises(InputError, match="two unedited runs differ"):
        sl.effects(model, x, lambda out: 10 * out[:, -1, 0].abs() + 1)


def test_what_was_done_before_an_interrupt_is_kept(monkeypatch):
    model, x = edit_cases.small_decoder(), torch.randn(1, 6, 32)
    changed = module._Work.changed

    def stops(self, layer, some, by):
        if layer == 1:
            raise KeyboardInterrupt
        return changed(self, layer, some, by)

    monkeypatch.setattr(module._Work, "changed", stops)
    with pytest.raises(KeyboardInterrupt) as caught:
        sl.effects(model, x, lambda out: out[:, -1, 0])
    assert caught.value.effects.exact[:, 0].isfinite().all()
    assert caught.value.effects.exact[:, 1].isnan().all()
    assert len(caught.value.effects.top(9)) == 4


def test_another_thread_runs_the_same_model_meanwhile():
    """It gets what the model gives, at all positions, and nothing of what it gives is taken for an effect."""
    torch.manual_seed(0)
    body = sl.nn.Decoder(16, heads=2, layers=2)
    model = torch.nn.Sequential(body, torch.nn.Linear(16, 9)).eval()
    x, y = torch.randn(1, 5, 16), torch.randn(1, 7, 16)
    goal = sl.targets.logit(3)
    expected, others, main = sl.effects(model, x, goal), [], threading.get_ident()
    with torch.no_grad():
        plain = model(y)

    def run():
        with torch.no_grad():
            others.append(model(y))

    def meanwhile(*_):
        if threading.get_ident() == main:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

    handles = [layer.register_forward_hook(meanwhile) for layer in body.layers]
    found = sl.effects(model, x, goal)
    for handle in handles:
        handle.remove()
    assert len(others) > 4
    for other in others:
        torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.exact, expected.exact, atol=1e-5, rtol=1e-4)


def test_the_last_position_is_alone_in_this_thread_only():
    linear, x, others = torch.nn.Linear(8, 5), torch.randn(2, 6, 8), []
    head = LastLinear(True)
    with head.recording(linear):
        out = linear(x)
    head.find(out)
    with head.alone() as narrow:
        thread = threading.Thread(target=lambda: others.append(linear(x)))
        thread.start()
        thread.join()
        own = linear(x)
    assert narrow
    assert own.shape == (2, 1, 5)
    assert torch.equal(others[0], out)
