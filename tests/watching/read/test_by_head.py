"""One number for each head, the mean of what heads gave, and named parts of the text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sightline as sl
import watch_cases as tiny
from sightline.errors import InputError
from sightline.watching import load, watch


def target(output):
    return tiny.logits(output)[:, -1].square().sum(-1)


@pytest.fixture(scope="module")
def llama():
    model, given = tiny.model("llama"), tiny.inputs("llama", "left")
    with watch(model, influence=True, keep_qk=True, keep_output=True) as seen:
        seen.backward(target(model(**given)))
    return model, given, seen


def test_sums_over_cells(llama):
    _, _, seen = llama
    everything = slice(None), slice(None)
    for of in ("influence", "pull", "norms"):
        table = seen.by_head(of)
        assert table.shape == (3, 2, 4)
        for i in range(2):
            cells = seen[i].tile(*everything, of=of).double().sum((-1, -2)).float()
            expected = cells / seen[i].shape[-2] if of == "norms" else cells
            atol = 1e-4 if of == "pull" else 1e-5
            torch.testing.assert_close(table[:, i], expected, atol=atol, rtol=1e-4)
    with pytest.raises(InputError, match="influence, pull, norms"):
        seen.by_head("weights")


def test_heads_stand_by_their_number_and_what_is_not_there_is_nan(llama):
    model, given, every = llama
    with watch(model, heads=lambda name: [1, 3] if ".0." in name else [0], influence=True) as seen:
        seen.backward(target(model(**given)))
    table, whole = seen.by_head(), every.by_head()
    assert table.shape == (3, 2, 4)
    known = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0]], dtype=torch.bool)
    torch.testing.assert_close(table[:, known], whole[:, known])
    assert table[:, ~known].isnan().all()
    with watch(model) as plain:
        model(**given)
    with pytest.raises(InputError, match="influence"):
        plain.by_head()


def test_means_leave_padding_out(llama):
    model, given, seen = llama
    real = given["attention_mask"].bool()
    mean = seen.mean_output()
    assert list(mean) == seen.layers
    for name in seen.layers:
        out = seen.output(name)
        rows = out.transpose(1, 2)[real]  # [tokens, heads, dim]
        torch.testing.assert_close(mean[name], rows.mean(0), atol=1e-5, rtol=1e-5)
        made = seen[name].tile(slice(None), slice(None)) @ seen[name].extra.v.repeat_interleave(2, 1)
        torch.testing.assert_close(out, made, atol=1e-5, rtol=1e-4)
    with watch(model) as plain:
        model(**given)
    with pytest.raises(InputError, match="keep_output=True"):
        plain.mean_output()


def test_outputs_where_torch_takes_its_fast_path():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = model(x)
        with watch(model, keep_output=True, keep_qk=True) as seen:
            assert torch.equal(model(x), expected)
    layer = model.layers[0].self_attn
    with watch(model, influence=True, keep_qk=True) as deep:
        deep.backward(model(x)[:, -1, 0])
    torch.testing.assert_close(seen.output(0), deep[0].tile(slice(None), slice(None)) @ deep[0].extra.v)
    part = deep[0].extra.v[:, 1] @ layer.out_proj.weight[:, 8:].mT
    for sight in (seen[0], deep[0]):
        assert sight.norms_of == "out_proj of layers.0.self_attn"
        torch.testing.assert_close(sight.extra.sizes[:, 1], part.norm(dim=-1).detach(), atol=1e-5, rtol=1e-5)


def text_run(batch=1):
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(batch, 6, 16)
    with watch(layer) as seen:
        layer(x, x, x)
    return seen


def test_spans_by_characters():
    seen = text_run(2)
    seen.tokens = [["Who", " went", "?", " Mary", " did", "."], ["Did", " John", "?", " Who", " went", "?"]]
    whole = seen[0].tile(slice(None), slice(None))
    found = seen.spans({"went": " went", "start": slice(0, 1)})["MultiheadAttention"]
    assert found.keys == ("went", "start", "rest")
    expected = torch.stack([whole[0, :, :, 1].mean(-1), whole[1, :, :, 4].mean(-1)])
    torch.testing.assert_close(found.table[:, :, 0, 0], expected)
    both = seen.spans({"question": (0, 9)}, {"last": [-1]})[seen.layers[0]]
    torch.testing.assert_close(both.table[:, :, 0, 0], whole[:, :, -1, :3].sum(-1))
    # A token on an edge is where most of it is.
    cut = seen.spans({"a": (0, 7), "b": (7, 14)})[seen.layers[0]]
    torch.testing.assert_close(cut.table[0, :, 0, 0], whole[0, :, :, :2].sum(-1).mean(-1))
    html = seen.spans({"a": (0, 7)}, {"x": slice(0, 2), "y": slice(2, 6)})._repr_html_()
    assert html.count("<tr>") == 3
    assert "mean over heads" in html


@pytest.mark.parametrize(
    "keys, said",
    [
        ({"a": "Who"}, None),
        ({"a": "?"}, "occurs 2 times"),
        ({"a": "Jane"}, "occurs 0 times"),
        ({"a": ""}, "is empty"),
        ({"a": (3, 99)}, "from 0 to"),
        ({"a": (5, 5)}, "from 0 to"),
        ({"a": (0, 5), "b": (4, 8)}, "overlap"),
        ({"a": (0, 5), "b": slice(0, 2)}, "overlap"),
    ],
)
def test_what_is_no_part_of_the_text(keys, said):
    seen = text_run()
    seen.tokens = [["Who", " went", "?", " Mary", " did", "?"]]
    if said is None:
        assert seen.spans(keys)[seen.layers[0]].table.shape == (1, 2, 1, 2)
        seen.tokens = None
        said = "tokenizer="
    with pytest.raises(InputError, match=said):
        seen.spans(keys)


def test_saved_runs_carry_the_readings_they_have(llama, tmp_path):
    model, given, seen = llama
    again = load(seen.save(tmp_path / "whole"))
    everything = slice(None), slice(None)
    for i in range(2):
        for of in ("influence", "pull", "norms"):
            assert torch.equal(again[i].tile(*everything, of=of), seen[i].tile(*everything, of=of))
        assert again[i].norms_of == seen[i].norms_of
    assert torch.equal(again.by_head(), seen.by_head())
    less = load(seen.save(tmp_path / "less", keep_qk=False))
    assert torch.equal(less.by_head(), seen.by_head())
    with pytest.raises(InputError, match="influence of cells is not known"):
        less[0].tile(*everything, of="influence")
    with pytest.raises(InputError, match="influence=True"):
        again.backward(torch.zeros(()))
    with watch(model, influence=True, keep_qk=tmp_path / "run") as written:
        y = target(model(**given))
        written.backward(y)
    for one in (written, load(tmp_path / "run")):
        assert torch.equal(one[1].tile(*everything, of="influence"), seen[1].tile(*everything, of="influence"))
    with watch(model, influence=True, folder=tmp_path / "later") as written:
        y = target(model(**given))
    written.backward(y)
    torch.testing.assert_close(load(tmp_path / "later").by_head(), seen.by_head())


def test_what_is_named_in_stats_is_computed_when_the_gradient_arrives(llama):
    model, given, every = llama
    asked = (sl.Top(2, of="influence"), sl.Received(of="pull", reduce="magnitude"), sl.Picture(4, 4, of="influence"))
    norms = (sl.Received(of="norms", reduce="max"),)
    with watch(model, stats=(*asked, *norms), influence=True) as seen:
        y = target(model(**given))
        seen.backward(y)
        with pytest.raises(InputError, match="cannot be added to"):
            seen.backward(y, add=True)
    for i in range(2):
        assert seen[i].extra.v is None
        torch.testing.assert_close(seen[i].top(2, of="influence").weights, every[i].top(2, of="influence").weights)
        for request in (*asked[1:], *norms):
            torch.testing.assert_close(seen[i].value(request), every[i].value(request), atol=1e-5, rtol=1e-4)
