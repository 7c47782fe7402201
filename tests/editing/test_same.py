"""Every edit, alone and combined, against a dense model in float64 whose attention is done by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import edit_cases
import sightline as sl
import watch_cases

EDITS = {
    "cut": ("cut", {"queries": slice(4, None), "keys": [1, 3], "heads": [(0, 1), (1, 0), (1, 3)]}),
    "cut a query": ("cut", {"queries": -1, "layers": [1]}),
    "cut by a rule": ("cut", {"mask": sl.window(1), "heads": [0, 2], "layers": [0]}),
    "cut and lose": ("cut", {"keys": slice(0, 2), "renormalize": False, "examples": [0, 2]}),
    "boost": ("boost", {"factor": 4.0, "keys": slice(2, 5), "heads": [1]}),
    "temperature": ("temperature", {"t": 2.5, "layers": [0], "queries": slice(3, 9)}),
    "uniform": ("force", {"pattern": "uniform", "heads": [(1, 1)], "queries": [-1, 5]}),
    "first": ("force", {"pattern": "first", "heads": [3]}),
    "zero": ("ablate", {"by": "zero", "heads": [(0, 2)]}),
    "mean": ("ablate", {"by": "mean", "layers": [1], "heads": [0, 1]}),
    "tensor": ("ablate", {"by": torch.linspace(-1, 1, 8), "heads": [(1, 2)], "queries": slice(2, 6)}),
    "scale": ("scale", {"factor": -0.5, "heads": [2], "examples": [1]}),
}
ORDERED = {
    "previous": ("force", {"pattern": "previous", "heads": [(0, 0)]}),
    "itself": ("force", {"pattern": "itself", "heads": [(0, 1)], "queries": slice(None, -2)}),
}


def close(found, expected, real=None):
    difference = (found.double() - expected).abs()
    if real is not None:
        difference = difference[real]
    assert difference.max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def compare(family, edits, padding=None, implementation="sdpa", prompt=None):
    model, inputs = watch_cases.model(family, implementation), watch_cases.inputs(family, padding)
    real = inputs.get("attention_mask")
    real = None if real is None else real.bool()
    twin, _ = edit_cases.transformers_reference(family, model, edits, prompt, real)
    with torch.no_grad():
        wide = {name: x.to(twin.dtype) if x.is_floating_point() else x for name, x in inputs.items()}
        expected = twin(**wide)[0].double()
        with sl.edit(model) as block:
            edit_cases.apply(block, edits)
            found = model(**inputs)[0]
        close(found, expected, None if family == "t5" else real)
        if family not in watch_cases.EAGER_ONLY:
            plain = model(**inputs)[0]
            assert (plain - found).abs().max() > 1e-3  # the edits did something
    return model, inputs


@pytest.mark.parametrize("name", [*EDITS, *ORDERED])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_every_edit_alone(family, name):
    compare(family, [(EDITS | ORDERED)[name]], "left" if family == "llama" else "right")


ALL = [EDITS[n] for n in ("cut", "boost", "temperature", "first", "zero", "mean", "scale")]


@pytest.mark.parametrize(
    "family, padding, implementation",
    [
        ("llama", "left", "sdpa"),
        ("mistral", "right", "sdpa"),
        ("gpt2", "left", "eager"),
        ("gpt2", None, "sdpa"),
        ("bert", "right", "sdpa"),
        ("vit", None, "sdpa"),
        ("t5", "right", "sdpa"),
        ("t5", None, "eager"),
        ("gemma2", "left", "eager"),
        ("gpt-oss", "right", "eager"),
        ("whisper", None, "sdpa"),
    ],
)
def test_edits_combined_in_every_family(family, padding, implementation):
    compare(family, [*ALL, EDITS["cut and lose"]], padding, implementation)


@st.composite
def some_edits(draw):
    """A few edits in one place each, that set no cell twice."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        where = {"layers": draw(st.sampled_from([None, [0], [1]])), "heads": draw(st.sampled_from([None, [0], [1, 3]]))}
        where["queries"] = draw(st.sampled_from([None, -1, [2, 7], slice(5, None), slice(-6, -2)]))
        where["examples"] = draw(st.sampled_from([None, [0], [1, 2]]))
        keys = draw(st.sampled_from([0, [1, 4], slice(3, 8), slice(-3, None)]))
        kind = draw(st.sampled_from(["cut", "lose", "boost", "temperature", "scale"]))
        options = {
            "cut": {"keys": keys},
            "lose": {"keys": keys, "renormalize": False},
            "boost": {"factor": draw(st.sampled_from([0.25, 8.0])), "keys": keys},
            "temperature": {"t": draw(st.sampled_from([0.5, 3.0]))},
            "scale": {"factor": draw(st.sampled_from([0.0, 2.0]))},
        }[kind]
        made.append(("cut" if kind == "lose" else kind, options | where))
    if draw(st.booleans()):
        made.append(("force", {"pattern": draw(st.sampled_from(["uniform", "first", "previous"])), "heads": [(0, 2)]}))
    if draw(st.booleans()):
        made.append(("ablate", {"by": draw(st.sampled_from(["zero", "mean"])), "heads": [(1, 1), (0, 2)]}))
    return made


@settings(max_examples=20, deadline=None)
@given(edits=some_edits(), family=st.sampled_from(["llama", "gpt2"]), padding=st.sampled_from([None, "left", "right"]))
def test_any_edits_combined(edits, family, padding):
    model, inputs = watch_cases.model(family), watch_cases.inputs(family, padding)
    real = inputs["attention_mask"].bool()
    twin, _ = edit_cases.transformers_reference(family, model, edits, real=real)
    with torch.no_grad(), sl.edit(model) as block:
        edit_cases.apply(block, edits)
        close(model(**inputs)[0], twin(**inputs)[0], real)


@pytest.mark.parametrize("name", [*EDITS, *ORDERED])
def test_sightlines_own_models(name):
    model, x = edit_cases.small_decoder(), torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(1))
    edits = [(EDITS | ORDERED)[name]]
    reference = edit_cases.Reference(edits)
    with torch.no_grad(), edit_cases.ByHand(reference):
        expected = copy.deepcopy(model).double()(x.double())
    with torch.no_grad(), sl.edit(model) as block:
        edit_cases.apply(block, edits)
        close(model(x), expected)


@pytest.mark.parametrize("name", list(EDITS))
def test_layers_of_torch(name):
    model, x = edit_cases.torch_encoder(), torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(1))
    hidden = torch.zeros(3, 12, dtype=torch.bool)
    hidden[1, 9:] = True
    edits = [EDITS[name]]
    with torch.no_grad(), edit_cases.ByHand(edit_cases.Reference(edits)):
        expected = copy.deepcopy(model).double()(x.double(), src_key_padding_mask=hidden)
    with torch.no_grad(), sl.edit(model) as block:
        edit_cases.apply(block, edits)
        found = model(x, src_key_padding_mask=hidden)
    real = ~hidden
    if name == "mean":
        real = torch.tensor([True, False, True])[:, None].expand(3, 12)  # the mask by hand says nothing of padding
    close(found, expected, real)


def test_torch_layers_that_give_weights_give_the_edited_ones():
    torch.manual_seed(0)
    layer, x = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(2, 7, 32)
    reference = edit_cases.Reference([EDITS["temperature"], ("cut", {"keys": [2], "heads": [1]})])
    with torch.no_grad(), edit_cases.ByHand(reference):
        expected, _ = copy.deepcopy(layer).double()(*(x.double() for _ in range(3)), need_weights=False)
    with torch.no_grad(), sl.edit(layer) as block:
        edit_cases.apply(block, reference.edits)
        out, weights = layer(x, x, x, average_attn_weights=False)
        _, mean = layer(x, x, x)
    close(out, expected)
    close(weights, reference.seen[0]["p"])
    close(mean, reference.seen[0]["p"].mean(1))
