"""transformers' models, watched on their own kernels, against their own eager account of the same weights."""

from __future__ import annotations

import pytest
import torch

import watch_cases as tiny
from sightline.watching import watch
from sightline.watching.intercept.transformers import INTERFACE
from watch_cases import STATS, check_statistics, layers_of, rows_that_exist

RUNS = [
    (family, implementation, padding)
    for family in tiny.FAMILIES
    for implementation in (["eager"] if family in tiny.EAGER_ONLY else ["sdpa", "eager"])
    for padding in ([None] if family == "vit" else [None, "left", "right"])
]


@pytest.mark.parametrize("family, implementation, padding", RUNS)
def test_statistics_and_tiles_are_those_of_eager(family, implementation, padding):
    model, given = tiny.model(family, implementation), tiny.inputs(family, padding)
    reference = model if implementation == "eager" else tiny.model(family, "eager")
    with torch.no_grad():
        expected = reference(**given, output_attentions=True)
        plain = model(**given)
        with watch(model, stats=STATS) as seen:
            output = model(**given)
    assert torch.equal(tiny.logits(output), tiny.logits(plain)), "the same kernels give the same bits"
    names = layers_of(family, seen)
    for kind, maps in tiny.attentions(family, expected).items():
        assert len(maps) == len(names[kind])
        for name, weights in zip(names[kind], maps):
            check_statistics(seen[name], weights, rows_that_exist(family, kind, given))


@pytest.mark.parametrize("family", [*tiny.EAGER_ONLY, "bert", "gpt2", "llama", "mistral"])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_model_can_run_the_compact_way(family, padding, implementation):
    if family in tiny.EAGER_ONLY:
        implementation = "eager"
    model, given = tiny.model(family, implementation), tiny.inputs(family, padding)
    real = given["attention_mask"].bool()
    with torch.no_grad():
        expected = tiny.model(family, "eager")(**given, output_attentions=True)
        with watch(model, stats=STATS, compact=True) as seen:
            output = model(**given)
    torch.testing.assert_close(tiny.logits(output)[real], tiny.logits(expected)[real], atol=1e-4, rtol=1e-4)
    for name, weights in zip(seen.layers, expected.attentions):
        check_statistics(seen[name], weights, given["attention_mask"])


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_compact_way_under_checkpointing(reentrant):
    given = tiny.inputs("mistral", "left", length=11)
    real = given["attention_mask"].bool()

    def gradients(compact):
        model = tiny.model("mistral").train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        with watch(model, compact=compact) as seen:
            model(**given).logits[real].square().mean().backward()
        assert all(len(layer.parts) == 1 for layer in seen._layers.values())
        return [p.grad for p in model.parameters()]

    for mine, theirs in zip(gradients(True), gradients(False)):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_the_former_name_of_the_compact_way():
    model = tiny.model("llama", "eager")
    with pytest.warns(DeprecationWarning, match="compact=True"):
        assert watch(model, fused=True).compact
    with pytest.warns(DeprecationWarning, match="compact"):
        assert not watch(model, fused=False).compact


def test_the_compact_way_makes_no_table_of_queries_by_keys(monkeypatch):
    from transformers import masking_utils

    model, given = tiny.model("mistral"), tiny.inputs("mistral", "left")
    with torch.no_grad():
        plain = model(**given).logits

        def refuse(*args):
            raise AssertionError("a mask was written out")

        monkeypatch.setattr(masking_utils, "_non_vmap_expansion_sdpa", refuse)
        with watch(model, compact=True):
            output = model(**given).logits
        with pytest.raises(AssertionError, match="written out"), watch(model, layers=0, compact=True):
            model(**given)  # a layer that is not watched runs as it always did
        with pytest.raises(AssertionError, match="written out"), watch(model):
            model(**given)  # and so does every layer, unless the user chose otherwise
    torch.testing.assert_close(output, plain, atol=1e-5, rtol=1e-5)


def test_watches_after_many_others_are_as_the_first(monkeypatch):
    from transformers import masking_utils

    # A watch changes the class of this table twice; Python 3.13 takes note of a class's first thousand changes only.
    table = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    for _ in range(600):
        own = table["sdpa"]
        with INTERFACE:
            assert table["sdpa"] is own, "no model runs"
    model, given = tiny.model("mistral"), tiny.inputs("mistral", "left")
    with torch.no_grad():
        for _ in range(20):
            model(**given)  # often enough for Python to remember what it looked up

        def refuse(*args):
            raise AssertionError("a mask was written out")

        monkeypatch.setattr(masking_utils, "_non_vmap_expansion_sdpa", refuse)
        with watch(model, compact=True):
            model(**given)


def test_layers_that_are_not_chosen_run_untouched():
    model, given = tiny.model("llama"), tiny.inputs("llama", "left")
    with torch.no_grad():
        plain = model(**given).logits
        with watch(model, layers="model.layers.1") as seen:
            output = model(**given).logits
    assert seen.layers == ["model.layers.1.self_attn"]
    assert torch.equal(output, plain)


def test_attentions_that_were_asked_for_are_still_given():
    model, given = tiny.model("gpt2", "eager"), tiny.inputs("gpt2")
    with torch.no_grad(), watch(model) as seen:
        output = model(**given, output_attentions=True)
    assert len(output.attentions) == 2
    torch.testing.assert_close(seen[1].tile(slice(0, 12), slice(0, 12)), output.attentions[1], atol=1e-6, rtol=0)


def test_a_mask_of_ones_own_making():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    table = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1)) < 0.6
    table |= torch.eye(12, dtype=torch.bool)
    given["attention_mask"] = table
    reference = tiny.model("llama", "eager")
    own = torch.where(table, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = reference(**given | {"attention_mask": own}, output_attentions=True)
        with watch(model) as seen:
            model(**given)
    for name, weights in zip(seen.layers, expected.attentions):
        torch.testing.assert_close(seen[name].tile(slice(0, 12), slice(0, 12)), weights, atol=1e-5, rtol=0)


def test_packed_sequences():
    model, given = tiny.model("llama"), tiny.inputs("llama", batch=1)
    given = {"input_ids": given["input_ids"], "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])}
    reference = tiny.model("llama", "eager")
    with torch.no_grad():
        expected = reference(**given, output_attentions=True, use_cache=False)
        with watch(model) as seen:
            model(**given, use_cache=False)
    assert expected.attentions[0][0, 0, 5:, :5].abs().max() == 0, "two sequences"
    for name, weights in zip(seen.layers, expected.attentions):
        torch.testing.assert_close(seen[name].tile(slice(0, 12), slice(0, 12)), weights, atol=1e-5, rtol=0)


def test_gradients_flow_as_before():
    model, given = tiny.model("llama"), tiny.inputs("llama", "right")
    labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)

    def gradients(watched):
        model.zero_grad()
        if watched:
            with watch(model) as seen:
                model(**given, labels=labels).loss.backward()
            assert not seen[0].entropy.requires_grad
        else:
            model(**given, labels=labels).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    for mine, theirs in zip(gradients(True), gradients(False)):
        assert torch.equal(mine, theirs)


def test_layers_that_run_again_for_their_gradients_are_seen_once():
    model, given = tiny.model("llama").train(), tiny.inputs("llama")
    model.gradient_checkpointing_enable()
    with watch(model) as seen:
        model(**given, use_cache=False).logits.sum().backward()
    assert seen.layers == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
