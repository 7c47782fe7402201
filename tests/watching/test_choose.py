"""Choosing layers and heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import watch_cases as tiny
from sightline.errors import InputError, InputTypeError
from sightline.watching import load, watch
from sightline.watching.choose import HeadChoice, LayerChoice

NAMES = ["model.encoder.layers.0.self_attn", "model.encoder.layers.1.self_attn"]
NAMES += ["model.decoder.layers.0.self_attn", "model.decoder.layers.0.encoder_attn"]


@pytest.mark.parametrize(
    "layers, chosen",
    [
        (None, [0, 1, 2, 3]),
        (2, [2]),
        ([0, 3], [0, 3]),
        ("model.decoder", [2, 3]),
        ("model.decoder.layers.0.self_attn", [2]),
        ("*self_attn", [0, 1, 2]),
        ("model.*.layers.[0].*", [0, 2, 3]),
        (["*.encoder_attn", 1], [1, 3]),
        (lambda name: "encoder_attn" in name, [3]),
        ([], []),
        (-1, [3]),
        ([-1, 0, -3], [0, 1, 3]),
        (np.int64(1), [1]),
        ("layers.0", [0, 2, 3]),
        ("encoder", [0, 1]),
        ("self_attn", [0, 1, 2]),
        ("encoder.layers.[01]", [0, 1]),
        ("layers.?.*_attn", [0, 1, 2, 3]),
        ("decoder.*", [2, 3]),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_layers(layers, chosen, known):
    choice = LayerChoice(layers, NAMES if known else ())
    assert [i for i, name in enumerate(NAMES) if choice(name, i, len(NAMES))] == chosen


def test_a_number_in_a_path_is_not_the_beginning_of_another():
    names = [f"model.layers.{i}.self_attn" for i in range(12)]
    choice = LayerChoice(["layers.1", "layers.1[01]"], names)
    assert [i for i, name in enumerate(names) if choice(name, i, 12)] == [1, 10, 11]


def test_a_whole_path_chooses_itself_alone():
    names = ["attn", "block.attn", "block.attn.inner"]
    assert [LayerChoice("attn", names)(name, 0, 3) for name in names] == [True, False, False]
    assert [LayerChoice("block", names)(name, 0, 3) for name in names] == [False, True, True]


def test_a_name_that_is_not_there():
    for wrong in ("model.dec", "layers.2", "*.cross", "", ["decoder", "dcoder"]):
        with pytest.raises(InputError, match=r"has such a name\n.*among: model\.encoder\.layers\.0\.self_attn"):
            LayerChoice(wrong, NAMES)
    model = tiny.model("llama")
    with pytest.raises(InputError, match=r"try: layers=\"model.layers.1.self_attn\""):
        watch(model, layers="model.layers.1.self_atn")


def test_layers_that_cannot_be():
    for wrong in (1.5, [2.0], True):
        with pytest.raises(InputTypeError, match="cannot be chosen"):
            LayerChoice(wrong if isinstance(wrong, list | float) else [wrong])


def test_heads():
    assert HeadChoice(None)("x", 4) is None
    assert HeadChoice(2)("x", 4) == [2]
    assert HeadChoice([3, 1, 3, -1])("x", 4) == [1, 3]
    assert HeadChoice(range(4))("x", 4) is None, "all of them"
    by_layer = HeadChoice(lambda name: None if name == "a" else [0])
    assert (by_layer("a", 4), by_layer("b", 4)) == (None, [0])
    for wrong, error in (([4], InputError), ([], InputError), ("2", InputTypeError), ([True], InputTypeError)):
        with pytest.raises(error):
            HeadChoice(wrong)("x", 4)


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "t5"])
@pytest.mark.parametrize("keep", [False, True])
def test_some_heads_are_those_of_all(family, keep):
    model = tiny.model(family, "eager" if family in tiny.EAGER_ONLY else "sdpa")
    given = tiny.inputs(family, "left")
    with torch.no_grad():
        with watch(model) as everything:
            model(**given)
        with watch(model, heads=[0, 3], keep_qk=keep) as some:
            model(**given)
    assert some.heads(0) == [0, 3]
    for name in everything.layers:
        a, b = some[name], everything[name]
        assert a.shape[1] == 2
        *_, queries, keys = a.shape
        area = slice(0, queries), slice(0, keys)
        torch.testing.assert_close(a.tile(*area), b.tile(*area)[:, [0, 3]], atol=1e-6, rtol=0)
        torch.testing.assert_close(a.entropy, b.entropy[:, [0, 3]], atol=1e-6, rtol=0)
        for share, rows in some.shares(name).items():
            torch.testing.assert_close(rows, everything.shares(name)[share][:, [0, 3]], atol=1e-6, rtol=0)
    assert [p.head for p in some.portraits()[:2]] == [0, 3]


def test_an_index_counts_layers_in_the_order_they_run():
    model, given = tiny.model("t5"), tiny.inputs("t5")
    with torch.no_grad(), watch(model) as everything:
        model(**given)
    with torch.no_grad(), watch(model, layers=[1, 4]) as some:
        model(**given)
    assert some.layers == [everything.layers[1], everything.layers[4]]


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("layers", [-1, [-1], [-2, 0], [-3]])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_negative_index_counts_from_the_last_to_run(family, layers, padding, tmp_path):
    model, given = tiny.model(family), tiny.inputs(family, padding, length=11)
    with torch.no_grad(), watch(model) as everything:
        model(**given)
    if layers == [-3] and family == "llama":
        with (
            torch.no_grad(),
            pytest.warns(UserWarning, match=r"chose no layer \(layers=\[-3\]\)"),
            watch(model, layers),
        ):
            model(**given)
        return
    with torch.no_grad(), watch(model, layers, keep_qk=tmp_path / "run") as some:
        model(**given)
    numbers = [layers] if isinstance(layers, int) else sorted(layers, key=lambda i: i % len(everything))
    wanted = list(dict.fromkeys(everything.layers[i] for i in numbers))
    assert some.layers == wanted
    assert load(tmp_path / "run").layers == wanted
    assert len(list((tmp_path / "run").glob("*.safetensors"))) == 2 * len(wanted)
    for name in wanted:
        torch.testing.assert_close(some[name].entropy, everything[name].entropy, atol=1e-6, rtol=0)


def test_a_generation_of_the_last_layer():
    model, given = tiny.model("t5"), tiny.inputs("t5", "left", length=11)
    given.pop("decoder_input_ids")
    with torch.no_grad():
        with watch(model) as everything:
            model.generate(**given, max_new_tokens=5, do_sample=False)
        with watch(model, layers=-1) as last:
            model.generate(**given, max_new_tokens=5, do_sample=False)
    assert last.layers == everything.layers[-1:]
    torch.testing.assert_close(last[0].entropy, everything[-1].entropy, atol=1e-6, rtol=0)


def test_what_chose_nothing_is_said_beside_what_did():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with torch.no_grad(), pytest.warns(UserWarning, match=r"chose no layer \(layers=\[7, 'lm_head'\]\)") as said:
        seen = _run(model, given, ["layers.1", 7, "lm_head"])
    assert "model.layers.0.self_attn, model.layers.1.self_attn" in str(said[0].message)
    assert seen.layers == ["model.layers.1.self_attn"]


def _run(model, given, layers):
    with watch(model, layers) as seen:
        model(**given)
    return seen
