"""The runs of one block: each is a Seen, in memory and on disk."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

import watch_cases as tiny
from sightline.errors import InputError
from sightline.watching import load, watch


def passes(model, lengths, **options):
    with warnings.catch_warnings(action="error"), torch.no_grad(), watch(model, **options) as seen:
        for length in lengths:
            model(tiny.inputs("llama", None, 2, length)["input_ids"])
    return seen


def alone(model, length):
    with torch.no_grad(), watch(model) as seen:
        model(tiny.inputs("llama", None, 2, length)["input_ids"])
    return seen


def check(runs, model, lengths):
    assert len(runs) == len(lengths)
    for run, length in zip(runs, lengths):
        want = alone(model, length)
        assert run.layers == want.layers
        assert run.ids == want.ids
        for name in run.layers:
            assert torch.equal(run[name].entropy, want[name].entropy)
            assert torch.equal(run[name].overview().sums, want[name].overview().sums)
            assert run.shares(name).keys() == want.shares(name).keys()


def test_every_pass_is_kept(tmp_path):
    model = tiny.model("llama")
    seen = passes(model, (9, 5, 7), runs="all")
    check(seen.runs, model, (9, 5, 7))
    assert seen.runs[-1] is seen
    assert seen.meta["runs"] == 3
    assert [run.runs for run in seen.runs[:2]] == [[run] for run in seen.runs[:2]]
    again = load(seen.save(tmp_path / "run"))
    check(again.runs, model, (9, 5, 7))
    one = passes(model, (6,), runs="all")  # saved over it, nothing of the others is left
    assert [run.layers for run in load(one.save(tmp_path / "run")).runs] == [one.layers]
    assert not list((tmp_path / "run").glob("run-*"))


def test_the_last_so_many_are_kept_and_written_as_they_come(tmp_path):
    model = tiny.model("llama")
    seen = passes(model, (9, 5, 7), runs=2, keep_qk=tmp_path / "run")
    for found in (seen, load(tmp_path / "run")):
        check(found.runs, model, (5, 7))
        assert all(run[0].has_qk for run in found.runs)
    assert [part.name for part in (tmp_path / "run").glob("run-*")] == ["run-000001"]


def test_generations_are_runs_whole():
    model = tiny.model("llama")
    ids = tiny.inputs("llama", None, 1, 5)["input_ids"]
    with torch.no_grad(), watch(model, runs="all") as seen:
        for _ in range(2):
            model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [run[0].shape[-2:] for run in seen.runs] == [(8, 8), (8, 8)]
    assert torch.equal(seen.runs[0][1].entropy, seen[1].entropy)
    assert seen.runs[0].ids == seen.ids


def test_encoders_and_decoders_keep_their_own_tokens():
    model = tiny.model("t5")
    with torch.no_grad(), watch(model, runs="all") as seen:
        for length in (9, 6):
            model(**tiny.inputs("t5", None, 2, length))
    assert [len(run.memory_ids[0]) for run in seen.runs] == [9, 6]


@pytest.mark.parametrize("runs", [0, -1, True, "first", 1.5, None])
def test_what_is_no_number_of_runs_is_refused(runs):
    with pytest.raises(InputError, match=r'"last", "all"'):
        watch(torch.nn.Linear(1, 1), runs=runs)


@pytest.mark.parametrize("wrong", ["run-000000", ["../x"], ["run-000009"], [1], ["run-000000/.."]])
def test_folders_that_name_other_places_are_refused(wrong, tmp_path):
    model = tiny.model("llama")
    folder = passes(model, (3, 4), runs="all", layers=0).save(tmp_path / "run")
    index = folder / "index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps(content | {"runs": wrong}))
    with pytest.raises(ValueError, match="runs"):
        load(folder)
    inner = folder / "run-000000" / "index.json"
    inner.write_text(json.dumps(json.loads(inner.read_text()) | {"runs": ["run-000000"]}))
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="run"):
        load(folder)


def test_folders_of_the_second_format_have_one_run(tmp_path):
    folder = passes(tiny.model("llama"), (3,)).save(tmp_path / "run")
    content = json.loads((folder / "index.json").read_text())
    del content["runs"]
    (folder / "index.json").write_text(json.dumps(content | {"version": 2}))
    assert len(load(folder).runs) == 1
