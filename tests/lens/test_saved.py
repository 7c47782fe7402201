"""Sights that earlier versions saved still load, and give the numbers they gave; see tests/data/make_*.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import sightline as sl
from lens_cases import gap
from sightline.errors import InputError

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("format-*/sights/*.safetensors"))
# Without q and k only what was computed before the file was written.
COMPUTED = ("lse", "entropy", "max_score", "distance", "total", "sink_share", "received", "top.weights")
COMPUTED += ("influence.magnitude", "top.influence")
# Beside -1e9 float64 still tells scores apart. Float32, in which the kernel counted, does not: its weights are uniform.
ROUNDED = {"hidden-by-a-large-bias": ("lse", "max_score", "sink_share")}


def expected(path: Path) -> dict[str, torch.Tensor]:
    prefix = f"sights/{path.stem}/"
    with safe_open(str(path.parents[1] / "expected.safetensors"), framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def asked(sight: sl.Sight, name: str) -> torch.Tensor:
    match name:
        case "received":
            return sight.received()
        case "weights":
            return sight.tile(slice(None), slice(None))
        case "top.weights":
            return sight.top(3).weights
        case "picture.size":
            return sight.picture(size=(4, 5))
        case "picture.cell":
            return sight.picture(cell=(2, 3), reduce="max")
        case "influence" | "pull" | "norms":
            return sight.tile(slice(None), slice(None), of=name)
        case "influence.rows":
            return sight.influence
        case "influence.magnitude":
            return sight.received(of="influence", reduce="magnitude")
        case "top.influence":
            return sight.top(3, of="influence").weights
    return getattr(sight, name)


def test_the_files_are_there() -> None:
    assert len(FILES) >= 37


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parents[1].name}-{p.stem}")
def test_a_sight_saved_by_an_earlier_version(path: Path) -> None:
    sight, truth = sl.Sight.load(path), expected(path)
    whole = "without-qk" not in path.stem
    names = set(truth) if whole else {*COMPUTED, "picture.size", "picture.cell"} & set(truth)
    names &= set(ROUNDED.get(path.stem, names))
    assert len(names) >= 3
    limit = 1e-12 if path.stem == "float64" else 2e-6
    for name in sorted(names):
        assert gap(asked(sight, name), truth[name], name) <= limit, name
    assert sight.shape == tuple(truth["weights"].shape)
    if "top.weights" in names and whole:
        keys = sight.top(3).keys
        weights = truth["weights"].gather(-1, keys.clamp_min(0)).masked_fill(keys < 0, 0.0)
        assert gap(weights, truth["top.weights"]) <= limit
    if not whole:
        with pytest.raises(InputError, match="needs q and k, which were not kept"):
            sight.tile(slice(0, 1), slice(0, 1))
