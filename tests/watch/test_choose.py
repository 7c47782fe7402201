"""Choosing layers and heads."""

from __future__ import annotations

import pytest
import torch

import watch_cases as tiny
from sightline.errors import InputError, InputTypeError
from sightline.watch import watch
from sightline.watch.choose import HeadChoice, LayerChoice

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
        ("model.dec", []),
        ([], []),
    ],
)
def test_layers(layers, chosen):
    choice = LayerChoice(layers)
    assert [i for i, name in enumerate(NAMES) if choice(name, i)] == chosen


def test_layers_that_cannot_be():
    with pytest.raises(InputError, match="counted from the front"):
        LayerChoice(-1)
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
