"""A census of a small model: every head, every measure, and the loss without them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import edit_cases
import sightline as sl
from sightline.census import census, take
from sightline.census.page import page
from sightline.cli import edited
from sightline.cli import heads as command
from sightline.cli.app import app
from sightline.errors import InputError
from sightline.models.text.language_model import LanguageModel


def tiny():
    torch.manual_seed(3)
    decoder = edit_cases.small_decoder(mask=sl.causal())
    return LanguageModel(torch.nn.Embedding(40, 32), decoder, tied=True).eval()


TEXTS = [torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (9, 14)]


@pytest.fixture(scope="module")
def found():
    return census(tiny(), TEXTS, vocabulary=40)


def test_every_head_has_every_measure(found):
    assert list(found.table) == list(command.MEASURES)
    assert all(values.shape == (2, 4) and values.isfinite().all() for values in found.table.values())
    model = tiny()
    with torch.no_grad(), sl.edit(model) as edits:
        edits.ablate(heads=[(1, 2)])
        losses = [float(sl.targets.loss(one[1:], at=1)(model(torch.tensor([one])))) for one in TEXTS]
    whole = [float(sl.targets.loss(one[1:], at=1)(model(torch.tensor([one])).detach())) for one in TEXTS]
    raised = sum((b - a) * (len(one) - 1) for a, b, one in zip(losses, whole, TEXTS)) / 21
    assert float(found.table["effect"][1, 2]) == pytest.approx(raised, abs=1e-4)


def test_curves_begin_at_the_loss_and_follow_their_ranking(found):
    assert found.loss == found.curves["effect"][0][1]
    assert {"effect", "influence", "induction", "random 1"} <= found.curves.keys()
    model, best = tiny(), found.ranked("effect")
    with torch.no_grad(), sl.edit(model) as edits:
        edits.ablate(heads=best[:2])
        sums = [float(sl.targets.loss(one[1:], at=1)(model(torch.tensor([one])))) * (len(one) - 1) for one in TEXTS]
    assert dict(found.curves["effect"])[2] == pytest.approx(sum(sums) / 21, abs=1e-4)


def test_heads_of_equal_value_are_removed_by_lot():
    found = take.Census(["a"], {"retrieval": torch.tensor([[0.0] * 30 + [1.0, 0.5]])})
    work = take._Work(tiny(), [torch.tensor(TEXTS[0])], 40, None, 0, found)
    order = work._order("retrieval")
    assert order[:2] == [(0, 30), (0, 31)]
    assert sorted(order) == [(0, i) for i in range(32)]
    assert order[2:] != sorted(order[2:])


def test_it_is_a_page_and_json(found):
    whole = page(found, "<tiny>")
    assert "<tiny>" not in whole  # it is data, and stays that
    told = json.loads(whole.split("window.ATLAS = ")[1].split(";\n")[0])
    assert [one["name"] for one in told["measures"]] == list(command.MEASURES)
    assert told["heads"][6]["values"] == pytest.approx(
        [float(x[1, 2]) for x in found.table.values()], rel=1e-4, abs=1e-9
    )
    assert (told["rank"], told["order"], told["texts"], told["model"]) == ("effect", 1, 2, "<tiny>")
    assert told["curves"]["effect"][1] == list(found.curves["effect"][1])
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert len(plain["heads"]) == 8
    assert plain["heads"][0].keys() >= {"layer", "head", "effect", "retrieval"}


def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    whole = take.sweep

    def sweep(*given, **options):
        if given[1].shape[1] == 14:
            raise KeyboardInterrupt
        return whole(*given, **options)

    monkeypatch.setattr(take, "sweep", sweep)
    some = census(tiny(), TEXTS, vocabulary=40)
    assert not some.complete
    assert len(some.each["effect"]) == 1  # the text that was done
    assert some.table["effect"].isfinite().all()
    assert not some.curves
    assert '"complete":false' in page(some, "tiny")
    monkeypatch.setattr(take._Work, "effects", stop)
    some = census(tiny(), TEXTS[:1], vocabulary=40)
    assert "retrieval" in some.table
    assert "effect" not in some.table
    assert '"rank":"previous"' in page(some, "tiny")
    json.dumps(some.as_json(), allow_nan=False)
    with pytest.raises(InputError, match="no text"):
        census(tiny(), [[1]], vocabulary=40)


class Tokens:
    def encode(self, text, add_special_tokens=True):
        return SimpleNamespace(ids=[ord(c) % 40 for c in text], tokens=list(text))


class Known:
    def __init__(self, names, device):
        self.names = names
        assert device == "cpu"

    def first(self):
        return self.names[0]

    def get(self, name):
        return tiny(), Tokens()


def test_the_command_tells_it_and_keeps_it(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "Models", Known)
    texts = tmp_path / "texts.txt"
    texts.write_text("abcabcabc\n\nthe other text")
    done = CliRunner().invoke(app, ["heads", "tiny", "--texts", str(texts), "--out", str(tmp_path / "heads.html")])
    assert done.exit_code == 0, done.output
    assert "Heads by effect" in done.stdout
    assert "Loss" in done.stdout
    assert (tmp_path / "heads.html").read_text().startswith("<!doctype html>")
    told = CliRunner().invoke(app, ["heads", "tiny", "--texts", str(texts), "--json"])
    assert len(json.loads(told.stdout)["heads"]) == 8
    refused = CliRunner().invoke(app, ["heads", "tiny", "--rank", "beauty"])
    assert isinstance(refused.exception, InputError)


def test_cuts_are_written_as_layer_and_head_or_as_an_edge():
    assert [repr(one) for one in edited.cuts("1.2, 0.3:-1:4")] == [
        "ablate(by='zero', heads=[(1, 2)])",
        "cut(keys=4, heads=[(0, 3)], queries=-1)",
    ]
    for wrong in ("12", "1.2:3", "head"):
        with pytest.raises(InputError, match="nothing can be cut by this"):
            edited.cuts(wrong)
    with pytest.raises(InputError, match="a cut changes something"):
        edited.check("1.2", None)
    model = tiny()
    lines = edited.changed(model, Tokens(), "abc", sl.targets.logit(3), edited.cuts("1.2"), "the logit")
    assert lines[0].startswith("the logit is ")
    assert lines[-1].endswith(("less", "more"))
