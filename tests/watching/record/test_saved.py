"""Runs that earlier versions saved still load, and give the numbers they gave; see tests/data/make_*.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sightline.watching import load
from watch_cases import check_statistics

DATA = Path(__file__).parents[2] / "data"
RUNS = sorted(path.parent for path in DATA.glob("format-*/runs/*/index.json"))


def test_the_runs_are_there():
    assert len(RUNS) >= 6


@pytest.mark.parametrize("folder", RUNS, ids=lambda p: f"{p.parents[1].name}-{p.name}")
def test_a_run_saved_by_an_earlier_version(folder):
    prefix = f"runs/{folder.name}/"
    truth = {
        name.removeprefix(prefix): t
        for name, t in load_file(folder.parents[1] / "expected.safetensors").items()
        if name.startswith(prefix)
    }
    seen = load(folder)
    assert seen.complete
    assert {name.split("/")[0] for name in truth} == {*seen.layers, "ids"}
    assert seen.ids == truth["ids"].tolist()
    assert seen.tokens == [[f"<{i}>" for i in ids] for ids in seen.ids]
    for name in seen.layers:
        sight, weights, exists = seen[name], truth[f"{name}/weights"], truth[f"{name}/exists"]
        check_statistics(sight, weights, exists)
        assert sight.has_qk == ("without-qk" not in folder.name and folder.name != "encoder")
        if f"{name}/influence" in truth:
            torch.testing.assert_close(sight.tile(slice(None), slice(None), of="influence"), truth[f"{name}/influence"])
        shares, rows = seen.shares(name), exists[:, None]
        if seen.kind(name) == "self" and sight.shape[-1] == sight.shape[-2]:
            diagonal = weights.double().diagonal(dim1=-2, dim2=-1)
            torch.testing.assert_close(shares["same"].double() * rows, diagonal * rows, atol=1e-5, rtol=0)
            below = weights.double().diagonal(-1, -2, -1)
            previous = shares["previous"].double()[..., 1:]
            torch.testing.assert_close(previous * rows[..., 1:], below * rows[..., 1:], atol=1e-5, rtol=0)
    assert len(seen.portraits()) == sum(seen[name].shape[1] for name in seen.layers)


def test_several_runs_saved_by_an_earlier_version():
    seen = load(DATA / "format-3" / "runs" / "influence")
    assert [run.ids for run in seen.runs] == [[seen.ids[0][3:]], seen.ids]
    assert [run[0].shape for run in seen.runs] == [(1, 4, 5, 5), (2, 4, 8, 8)]
