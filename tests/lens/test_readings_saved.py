"""What keys carry and how cells mattered is saved, copied and loaded with a sight; a damaged file is refused."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import sightline as sl
from cases import generator, inputs
from sightline.errors import InputError, SightFileError

ALL = slice(None)
STATS = (sl.Top(2, of="influence"), sl.Picture(3, 2, of="pull", reduce="max"), sl.Received(of="norms", reduce="max"))


def made(stats: tuple = ()) -> sl.Sight:
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=7, keys=9, value_dim=3, dtype=torch.float32)
    g = torch.randn(2, 4, 7, 3, generator=generator(4))
    return sl.look(q, k, v, grad=g, mask=sl.causal(), stats=stats)


def alike(one: sl.Sight, other: sl.Sight) -> None:
    for of in ("norms", "influence", "pull"):
        assert torch.equal(one.tile(ALL, ALL, of=of), other.tile(ALL, ALL, of=of))
        assert torch.equal(one.received(of=of, reduce="max"), other.received(of=of, reduce="max"))
    assert torch.equal(one.influence, other.influence)
    assert one.norms_of == other.norms_of


def test_saved_copied_and_pickled(tmp_path: Path) -> None:
    sight = made(STATS)
    sight.save(tmp_path / "x.sight")
    again = sl.Sight.load(tmp_path / "x.sight")
    assert list(again.kept) == list(sight.kept) == list(STATS)
    alike(sight, again)
    for other in (copy.deepcopy(sight), pickle.loads(pickle.dumps(sight)), copy.copy(sight)):
        alike(sight, other)


def test_without_q_and_k_there_is_what_was_computed(tmp_path: Path) -> None:
    sight = made(STATS)
    rows = sight.influence
    sight.save(tmp_path / "x.sight", keep_qk=False)
    again = sl.Sight.load(tmp_path / "x.sight")
    assert again.extra.v is again.extra.grad is None
    assert torch.equal(again.influence, rows)
    assert torch.equal(again.top(2, of="influence").keys, sight.top(2, of="influence").keys)
    with pytest.raises(InputError, match=r"needs q and k, which were not kept|is not known here"):
        again.top(3, of="influence")


def test_values_alone_are_saved_as_their_sizes(tmp_path: Path) -> None:
    q, k, v = inputs(queries=5, keys=5, dtype=torch.float32)
    _, sight = sl.observe(q, k, v)
    sight.save(tmp_path / "x.sight")
    again = sl.Sight.load(tmp_path / "x.sight")
    assert again.extra.v is None
    assert torch.equal(again.tile(ALL, ALL, of="norms"), sight.tile(ALL, ALL, of="norms"))
    sl.look(q, k).save(tmp_path / "y.sight")
    assert sl.Sight.load(tmp_path / "y.sight").norms_of is None


DAMAGED: dict[str, Any] = {
    "words that are a number": ({"norms_of": 3}, {}, "norms_of: 3"),
    "sizes of nothing": ({"norms_of": None}, {}, "norms_of|sizes"),
    "a gradient alone": ({}, {"v": None}, "v"),
    "a gradient of another shape": ({}, {"grad": torch.ones(2, 4, 7, 2)}, "grad"),
    "rows of whole numbers": ({}, {"along": torch.ones(2, 4, 7, dtype=torch.int64)}, "along"),
    "sizes of more keys": ({}, {"sizes": torch.ones(2, 4, 10)}, "sizes"),
    "an unknown reading": ({"kept": [{"top": 2, "of": "weights"}]}, {}, "kept.0.of"),
    "an unknown reduction": ({"kept": [{"received": "mean", "of": "norms"}]}, {}, "kept.0.received"),
    "two kinds at once": ({"kept": [{"top": 2, "picture": 3}]}, {}, "kept.0"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sight"
    sight = made(STATS)
    sight.prepare(sl.Received(of="pull"))  # so that g.o is known
    sight.save(path)
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["sightline"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    said, changed, words = DAMAGED[name]
    assert set(changed) <= set(tensors)
    tensors = {key: x for key, x in (tensors | changed).items() if x is not None}
    save_file(tensors, path, metadata={"sightline": json.dumps(about | said)})
    with pytest.raises(SightFileError, match=words):
        sl.Sight.load(path)
