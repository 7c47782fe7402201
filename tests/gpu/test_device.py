"""The explorer and the command line on a GPU: the same numbers as on the CPU, from small checkpoints made here."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import sightline as sl
from device_cases import TEXT, assert_alike, assert_said_alike, assert_same_run, decoder, encoder
from sightline.cli.app import app
from sightline.errors import InputError
from sightline.explore import effects, every_head, outcome, readings, thumbs
from sightline.explore.aims import Aim
from sightline.explore.atlas import Atlas
from sightline.explore.effects import EffectsRequest
from sightline.explore.head_view import HeadView
from sightline.explore.links import first_head, link_of
from sightline.explore.measures import measure
from sightline.explore.model_runs import Models, RunRequest, watched
from sightline.explore.readings import ReadingRequest
from sightline.explore.run import Run, as_run
from sightline.watching import load

DEVICE = "cuda"
EDITS = ("ablate:0.1", "cut:1.2:q3:k1", "scale:0.2:x0.5", "boost:1.*:k0:x2")
AIM = Aim("Mary", "John")
FOR = sl.targets.logit(9, than=10)


def quiet(**_: Any) -> None:
    """A report that nobody reads."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("device")
    return {
        "encoder": encoder(place / "encoder"),
        "decoder": decoder(place / "decoder"),
        "half": decoder(place / "half", torch.bfloat16),
    }


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Models]:
    """The same models here and there."""
    names = [str(folder) for folder in folders.values()]
    return {device: Models(names, kept=3, device=device) for device in ("cpu", DEVICE)}


def run_on(models: Models, folder: Path, target: Any = None, **asked: Any) -> Any:
    """A run that was watched and saved, and the number of its target."""
    request = RunRequest(TEXT, **{"model": "decoder", **asked})
    y = watched(*models.get(request.model), request, folder, quiet, target=target)
    return load(folder), y


@pytest.fixture
def runs(models: dict[str, Models], tmp_path: Path) -> dict[str, Run]:
    """A text that the decoder read on each."""
    return {device: as_run(device, run_on(known, tmp_path / device)[0]) for device, known in models.items()}


def test_models_lie_on_the_device(models: dict[str, Models]) -> None:
    for name in ("encoder", "decoder"):
        (there, _), (here, _) = models[DEVICE].get(name), models["cpu"].get(name)
        assert {x.device.type for x in (*there.parameters(), *there.buffers())} == {DEVICE}
        assert {x.device.type for x in here.parameters()} == {"cpu"}
        assert {x.dtype for x in there.parameters()} == {torch.float32}
    assert {x.dtype for x in models[DEVICE].get("half")[0].parameters()} <= {torch.bfloat16, torch.float32}


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"this device is not there\n  expected: auto, or one of cpu, cuda:0"):
        Models(["nothing"], device="cuda:99")


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "encoder"},
        {"model": "encoder", "edits": EDITS},
        {"model": "encoder", "layers": "1"},
        {},
        {"edits": EDITS},
        {"generate": 6},
        {"generate": 6, "begun": (3, 5), "edits": EDITS},
    ],
    ids=str,
)
def test_a_watched_run(asked: dict[str, Any], models: dict[str, Models], tmp_path: Path) -> None:
    there, _ = run_on(models[DEVICE], tmp_path / "there", **asked)
    here, _ = run_on(models["cpu"], tmp_path / "here", **asked)
    assert_same_run(there, here)
    if asked.get("generate"):
        assert there.meta["written"]["tokens"]


@pytest.mark.parametrize("edits", [(), EDITS], ids=["plain", "edited"])
def test_a_watched_run_with_a_target(edits: tuple[str, ...], models: dict[str, Models], tmp_path: Path) -> None:
    there, y = run_on(models[DEVICE], tmp_path / "there", FOR, edits=edits)
    here, expected = run_on(models["cpu"], tmp_path / "here", FOR, edits=edits)
    assert y == pytest.approx(expected, abs=1e-4)
    assert_same_run(there, here)
    for name in here.layers:
        assert_alike(there[name].influence, here[name].influence, place=name)
        assert_alike(there[name].received(of="norms"), here[name].received(of="norms"), place=name)


@pytest.mark.parametrize("edits", [(), EDITS], ids=["plain", "edited"])
def test_readings_and_effects(edits: tuple[str, ...], models: dict[str, Models], tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for device, known in models.items():
        run = as_run("run", run_on(known, tmp_path / device, edits=edits)[0])
        model, tokenizer = known.get("decoder")
        reading = readings.compute(ReadingRequest(run, AIM), model, tokenizer, quiet)
        readings.keep(reading)
        norms = readings.find(run, ReadingRequest(run, AIM).key, "norms")
        assert norms is not None
        table = effects.compute(EffectsRequest(run, AIM), model, tokenizer, quiet).table
        found[device] = {
            "about": readings.about(reading, known),
            "most": [readings.most(one) for one in (reading, norms)],
            "heads": [readings.by_head(one) for one in (reading, norms)],
            "cells": [
                one.cells(layer.index, slice(0, layer.queries), slice(0, layer.keys))
                for one in (reading, norms)
                for layer in one.layers
            ],
            "tiles": [thumbs.thumb(one.view(1, 2).pyramid, most=readings.most(one))[0] for one in (reading, norms)],
            "cell": reading.view(0, 1).cell(5, 2),
            "tracks": list(reading.view(1, 1).tracks() or ()),
            "effects": table,
        }
        assert not any(layer._forward_hooks for layer in model.modules())
    assert_alike(found[DEVICE], found["cpu"])


def test_effects_of_all_heads_lie_on_the_cpu(models: dict[str, Models]) -> None:
    model, tokenizer = models[DEVICE].get("decoder")
    ids = torch.tensor([tokenizer.encode(TEXT).ids] * 2, device=DEVICE)
    found = sl.effects(model, ids, FOR, by="mean")
    assert {x.device.type for x in (found.baseline, found.exact, found.influence)} == {"cpu"}
    assert found.exact.shape == (2, 2, 4)
    assert len(found.top(3)) == 3


def test_a_pass_backwards_is_ended_by_whoever_hears_of_it(models: dict[str, Models], tmp_path: Path) -> None:
    """Gradients are computed by a thread of the device: what is raised there comes here."""

    class Over(Exception):
        pass

    def ends(stage: str = "", **_: Any) -> None:
        if stage == "going back":
            raise Over

    model, tokenizer = models[DEVICE].get("decoder")
    run = as_run("run", run_on(models[DEVICE], tmp_path / "run")[0])
    with pytest.raises(Over):
        readings.compute(ReadingRequest(run, AIM), model, tokenizer, ends)
    again = readings.compute(ReadingRequest(run, AIM), model, tokenizer, quiet)
    assert again.of == "influence"


def test_one_edit_says_what_comes_next(models: dict[str, Models], tmp_path: Path) -> None:
    found = {}
    for device, known in models.items():
        model, tokenizer = known.get("decoder")
        run = as_run("run", run_on(known, tmp_path / device, edits=("ablate:1.3",))[0])
        aims = [AIM, replace(AIM, after=4), Aim()]
        found[device] = [
            outcome.outcome(run, tokenizer, outcome.row_of(run, model, aim.after or len(run.tokens) - 1), aim, 5)
            for aim in aims
        ] + [outcome.kept(run, 5, Aim())]
    assert_alike(found[DEVICE], found["cpu"])


def test_what_the_explorer_asks_of_a_run(models: dict[str, Models], runs: dict[str, Run]) -> None:
    found: dict[str, Any] = {}
    for device, run in runs.items():
        run.model = "decoder"
        atlas, view = Atlas(models[device]), run.view(1, 2)
        steps = atlas.steps(run, 1, 2, query=6, top=4, key=None)
        assert steps.pop("python")
        body, complete = atlas.portraits(run)
        measured, _ = measure(run)
        found[device] = {
            "grid": every_head.grid(run, 6, 2),
            "strongest": every_head.strongest(run, 6),
            "path": every_head.follow(run, 9, least=0.05),
            "links": [link_of(run, i, j) for i in range(2) for j in range(4)],
            "first": first_head(run, measured),
            "portraits": [body["heads"], body["first"], complete],
            "thumbs": atlas.pictures(run)[0],
            "rollout": atlas.rollout(run, [5, 9]),
            "steps": steps,
            "row": view.row([3, 5]),
            "column": view.column([2]),
            "cell": view.cell(5, 2),
            "patch": view.patch(slice(0, 8), slice(0, 4)),
        }
    assert_alike(found[DEVICE], found["cpu"])


@pytest.mark.parametrize("masked", [None, "causal", "booleans"])
def test_a_sight_that_lies_on_the_device(masked: str | None) -> None:
    """A map too large to be made at once: estimates, overviews and tracks."""
    q, k = torch.randn(2, 1, 5000, 16)
    marks = torch.rand(5000, 5000) < 0.5 if masked == "booleans" else None
    found: dict[str, Any] = {}
    for device in ("cpu", DEVICE):
        mask = sl.causal() if masked == "causal" else None if marks is None else marks.to(device)
        view = HeadView(sl.look(q.to(device), k.to(device), mask=mask))
        estimate = view.pyramid.plan((5, 5), 0, 0, "mean")
        for step in estimate.steps:
            step()
        guess = estimate.finish()
        for step in view.pyramid.background():
            step()
        tile = view.pyramid.plan((5, 5), 0, 0, "max")
        for step in tile.steps:
            step()
        near = view.pyramid.plan((1, 1), 2, 1, "mean")
        for step in near.steps:
            step()
        found[device] = {
            "estimate": [guess, estimate.is_estimate],
            "tile": tile.finish(),
            "near": near.finish(),
            "tracks": list(view.tracks() or ()),
            "row": view.row([4999]),
            "cell": {name: x for name, x in view.cell(4000, 7).items() if name != "rank"},
        }
    assert_alike(found[DEVICE], found["cpu"], tolerance=1e-3)  # what a key received is a sum of 5000


def test_half_precision(models: dict[str, Models], tmp_path: Path) -> None:
    """Weights as they are in the file: the numbers are near those of float32, and nothing is refused."""
    found: dict[str, Any] = {}
    for device, known in models.items():
        model, tokenizer = known.get("half")
        seen, _ = run_on(known, tmp_path / device, model="half", edits=EDITS)
        run = as_run("run", seen)
        reading = readings.compute(ReadingRequest(run, AIM), model, tokenizer, quiet)
        table = effects.compute(EffectsRequest(run, AIM), model, tokenizer, quiet).table
        seen, _ = run_on(known, tmp_path / f"{device} writes", model="half", generate=4)
        found[device] = [
            run.cells(1, slice(0, 11), slice(0, 11)),
            reading.cells(1, slice(0, 11), slice(0, 11)),
            Atlas(known).steps(run, 1, 2, query=6, top=11, key=2)["query"],
            [table[name] for name in ("value", "exact", "influence")],
            len(seen.meta["written"]["tokens"]),
        ]
    assert_alike(found[DEVICE], found["cpu"], tolerance=0.1)


def told(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    "asked",
    [
        ("encoder",),
        ("encoder", "--of", "norms"),
        ("decoder",),
        ("decoder", "--of", "influence", "--target", "Mary", "--instead", "John", "--spans", "who=0:8,what=8:21"),
        ("decoder", "--of", "pull", "--target", "Mary"),
        ("decoder", "--target", "Mary", "--cut", "1.3,0.1:-1:2"),
    ],
    ids=" ".join,
)
def test_look(asked: tuple[str, ...], folders: dict[str, Path], tmp_path: Path) -> None:
    said = partial(told, "look", TEXT, "--model", str(folders[asked[0]]), *asked[1:])
    both = {device: said("--device", device, "--out", str(tmp_path / device)) for device in ("cpu", DEVICE)}
    assert_same_run(*(load(tmp_path / device) for device in (DEVICE, "cpu")))
    here, there = (both[device].replace(str(tmp_path / device), "") for device in ("cpu", DEVICE))
    assert_said_alike(" ".join(there.split()), " ".join(here.split()))


def test_steps_and_its_page(folders: dict[str, Path], tmp_path: Path) -> None:
    asked = ["steps", TEXT, "--model", str(folders["decoder"]), "--layer", "1", "--head", "2", "--query", "5"]
    here, there = (told(*asked, "--device", device) for device in ("cpu", DEVICE))
    assert_said_alike(there, here)
    page = tmp_path / "steps.html"
    told(*asked, "--device", DEVICE, "--html", str(page))
    assert "data:image/png" in page.read_text()


def test_heads(folders: dict[str, Path], tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\n\nMary saw John and they left")
    asked = ["heads", str(folders["decoder"]), "--texts", str(texts), "--json"]
    there, here = (json.loads(told(*asked, "--device", device)) for device in (DEVICE, "cpu"))
    assert_alike(there, here, tolerance=1e-3)
