"""Edits as values: printed, compared, saved, loaded; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import sightline as sl
from edit_cases import edited, small_decoder, torch_encoder
from sightline.errors import InputError, InputTypeError, SightFileError


def watched(model, x, **options):
    with torch.no_grad(), sl.watch(model, keep_qk=True, keep_output=True, **options) as seen:
        model(x)
    return seen


def some_edits():
    model, x = small_decoder(), torch.randn(2, 6, 32)
    edits = sl.Edits()
    edits.cut(queries=slice(-3, None), keys=[0, 2], heads=[(0, 1), ("layers.1", 2)])
    edits.cut(mask=sl.window(2) & ~sl.dense(torch.eye(6).bool()), renormalize=False, layers="layers.0")
    edits.boost(2.5, keys=torch.tensor(3), queries=[1, 2], examples=[0])
    edits.temperature(0.5, layers=-1)
    edits.force("uniform", heads=3)
    edits.patch(watched(model, x), heads=[(0, 2)])
    edits.patch(watched(model, x), "pattern", {1: 2, 3: 3}, heads=[(1, 1)])
    edits.ablate(torch.arange(8.0), heads=[(0, 3)])
    edits.ablate({"layers.1.attention": torch.ones(4, 8)}, heads=[(1, 0)])
    edits.scale(0.0, layers=[0, 1], examples=slice(0, 1))
    return edits


def test_they_print_one_line_each_as_they_were_written():
    lines = str(some_edits()).splitlines()
    assert lines[0] == "cut(keys=[0, 2], heads=[(0, 1), ('layers.1', 2)], queries=slice(-3, None))"
    assert lines[2] == "boost(factor=2.5, keys=3, queries=[1, 2], examples=0)"
    assert lines[5] == "patch(source=<2 layers>, what='output', heads=[(0, 2)])"
    assert len(lines) == len(some_edits()) == 10
    assert str(sl.Edits()) == "no edits"


def test_they_are_saved_and_loaded(tmp_path):
    edits = some_edits()
    again = sl.Edits.load(edits.save(tmp_path / "edits.json"))
    assert again == edits
    assert str(again) == str(edits)
    plain = sl.Edits()
    plain.cut(keys=3)
    assert plain != edits
    assert sl.Edits.load(plain.save(tmp_path / "plain.json")) == plain
    assert sorted(file.name for file in tmp_path.iterdir()) == ["edits.json", "edits.json.safetensors", "plain.json"]


def test_loaded_edits_do_the_same(tmp_path):
    edits, model, x = some_edits(), small_decoder(), torch.randn(2, 6, 32)
    again = sl.Edits.load(edits.save(tmp_path / "edits.json"))
    with torch.no_grad():
        with sl.edit(model) as block:
            block.temperature(1.0)
            model(x)  # the number of layers is known from here on
        with sl.edit(model, edits):
            expected = model(x)
        with sl.edit(model, again):
            assert torch.allclose(model(x), expected, atol=1e-5)
        assert not torch.allclose(model(x), expected, atol=1e-2)


@pytest.mark.parametrize("change", ["{", '{"sightline": "sight"}', "kind", "option", "number"])
def test_what_is_damaged_is_said(tmp_path, change):
    path = sl.Edits(some_edits()).save(tmp_path / "edits.json")
    if len(change) > 8 or change == "{":
        path.write_text(change)
    else:
        about = json.loads(path.read_text())
        about["edits"][2] = {
            "kind": ["burn", {}],
            "option": ["boost", {"colour": 3}],
            "number": ["boost", {"factor": "two"}],
        }[change]
        path.write_text(json.dumps(about))
    with pytest.raises((SightFileError, InputTypeError)):
        sl.Edits.load(path)


REFUSED = {
    "nothing is said to be cut": lambda e: e.cut(),
    "nothing is said to be ablated": lambda e: e.ablate(),
    "factor must be positive": lambda e: e.boost(0, keys=1),
    "factor must be finite": lambda e: e.boost(float("inf"), keys=1),
    "t must be positive": lambda e: e.temperature(-1),
    "no such pattern": lambda e: e.force("next"),
    "no attention has such a name": lambda e: e.scale(2, layers="layer.7"),
    "the layers are said twice": lambda e: e.scale(2, layers=0, heads=[(1, 1)]),
    "layers are chosen by index or by name": lambda e: e.scale(2, layers=1.5),
    "heads are chosen by number": lambda e: e.scale(2, heads="three"),
    "keys are chosen by columns": lambda e: e.cut(keys="last"),
    "keys cannot be chosen by this slice": lambda e: e.cut(keys=slice(5, 1, -1)),
    "a patch comes from a run that was watched": lambda e: e.patch(3),
    "heads cannot be replaced by this": lambda e: e.ablate("median", heads=1),
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_bad_edits_are_refused_when_they_are_made(words):
    model = small_decoder()
    with sl.edit(model) as edits:
        with pytest.raises((InputError, InputTypeError), match=words):
            REFUSED[words](edits)
        assert not len(edits)


LATER = {
    "has no such heads\n.*heads 0 to 3": lambda e: e.scale(2, heads=[(0, 4)]),
    "has no such queries\n.*queries 0 to 5": lambda e: e.cut(queries=6),
    "has no such keys\n.*keys 0 to 5, or -6 to -1": lambda e: e.cut(keys=-7),
    "has no such examples\n.*examples 0 to 1": lambda e: e.scale(0, examples=2),
    "two edits set the pattern of the same head": lambda e: (e.force("first", heads=1), e.force("uniform", queries=2)),
    "two edits set the output of the same head": lambda e: (e.ablate(heads=1), e.ablate(by="mean", layers=1)),
    "what .* is to be replaced by does not fit": lambda e: e.ablate(torch.ones(3), heads=1),
    "nothing is given that .* is to be replaced by": lambda e: e.ablate({"elsewhere": torch.ones(8)}, heads=1),
    "counted from the end are known only": lambda e: e.scale(2, layers=-1),
    "the mask does not fit": lambda e: e.cut(mask=torch.ones(3, 3, dtype=torch.bool)),
}


@pytest.mark.parametrize("words", list(LATER))
def test_the_others_at_the_first_call_and_the_model_stays_as_it_was(words):
    model, x = small_decoder(), torch.randn(2, 6, 32)
    with torch.no_grad():
        before = model(x)
        with pytest.raises(InputError, match=words):
            edited(model, LATER[words], x)
        assert torch.equal(model(x), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert not torch._C._len_torch_function_stack()


def test_what_does_not_fit_the_layer_is_refused():
    torch.manual_seed(0)
    layer = sl.nn.MultiHeadAttention(16, 2, normalizer="relu").eval()
    with pytest.raises(InputError, match="temperature is for softmax"):
        edited(layer, lambda edits: edits.temperature(2.0), torch.randn(1, 4, 16))
    cross = sl.nn.MultiHeadAttention(16, 2).eval()
    with pytest.raises(InputError, match="attends to another sequence"):
        edited(cross, lambda edits: edits.force("previous"), torch.randn(1, 4, 16), torch.randn(1, 7, 16))


def test_an_edit_that_changed_nothing_is_said():
    model = small_decoder()
    with pytest.warns(UserWarning, match="an edit has changed nothing"):
        edited(model, lambda edits: edits.scale(2.0, layers=7), torch.randn(1, 4, 32))


def test_patches_say_what_the_source_lacks():
    model, x = small_decoder(), torch.randn(2, 6, 32)
    with torch.no_grad(), sl.watch(model, layers=0) as thin:
        model(x)
    long = watched(model, torch.randn(3, 7, 32))
    for source, words in (
        (thin, "were not kept"),
        (long, "has another batch"),
        (watched(model, torch.randn(1, 7, 32)), "is not as long as"),
    ):
        with pytest.raises(InputError, match=words):
            edited(model, lambda edits, source=source: edits.patch(source, heads=[(0, 1)]), x)


def test_attention_that_nobody_sees_cannot_be_edited():
    class ByHand(torch.nn.Module):
        def forward(self, x):
            shares = torch.einsum("bid,bjd->bij", x, x).exp()  # a softmax that is written out too
            return torch.einsum("bij,bjd->bid", shares / shares.sum(-1, keepdim=True), x)

    model = torch.nn.Sequential(torch_encoder(), ByHand())
    with pytest.raises(InputError, match="1 cannot be edited"):
        edited(model, lambda edits: edits.temperature(2.0), torch.randn(2, 5, 32))


def test_edits_saved_by_an_earlier_version() -> None:
    """See tests/data/make_format_3.py."""
    folder = Path(__file__).parents[1] / "data" / "format-3" / "edits"
    edits = sl.Edits.load(folder / "all.json")
    assert [str(one) for one in edits] == (folder / "all.txt").read_text("utf-8").splitlines()
    assert {one.kind for one in edits} == {"cut", "boost", "temperature", "force", "patch", "ablate", "scale"}
