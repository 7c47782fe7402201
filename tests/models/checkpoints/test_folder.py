"""Checkpoint folders: whole or in shards, in any dtype, from a hub cache; what leads out of the folder is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model_files import LLAMA, llama_tensors, write_folder, write_index
from sightline.models.checkpoints.base import CheckpointError
from sightline.models.checkpoints.opening import open_checkpoint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_those_that_were_written(dtype: torch.dtype, shards: int, tmp_path: Path) -> None:
    tensors = llama_tensors(dtype=dtype)
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", tensors, shards=shards))
    assert checkpoint.names == sorted(tensors)
    assert checkpoint.config == LLAMA
    assert checkpoint.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert checkpoint.tokenizer is None
    for name, tensor in tensors.items():
        assert name in checkpoint
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.dtype(name) == dtype
        assert torch.equal(checkpoint.read(name), tensor)
        assert torch.equal(checkpoint.read(name, torch.float64), tensor.double())


def test_an_unknown_tensor_is_a_clear_error(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, llama_tensors()))
    assert "lm_head.weight" not in checkpoint
    for ask in (checkpoint.read, checkpoint.shape, checkpoint.dtype):
        with pytest.raises(CheckpointError, match=r"has no tensor 'lm_head\.weight'"):
            ask("lm_head.weight")


def test_text_paths_and_the_home_folder_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "model", llama_tensors())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_checkpoint("~/model").config["model_type"] == "llama"
    assert open_checkpoint(str(tmp_path / "model")).config["model_type"] == "llama"


def test_a_weights_file_of_another_name_is_taken_if_it_is_the_only_one(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_tensors())
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert "model.norm.weight" in open_checkpoint(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / "third.safetensors")
    with pytest.raises(CheckpointError, match="no weights that can be read"):
        open_checkpoint(tmp_path)


def hub_snapshot(cache: Path, source: Path) -> Path:
    """The files of a folder as the hub's cache keeps them: links in `snapshots`, contents in `blobs`."""
    model = cache / "models--org--name"
    snapshot = model / "snapshots" / "0123abcd"
    (model / "blobs").mkdir(parents=True)
    for i, path in enumerate(sorted(path for path in source.rglob("*") if path.is_file())):
        link = snapshot / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        (model / "blobs" / f"blob{i}").write_bytes(path.read_bytes())
        link.symlink_to(os.path.relpath(model / "blobs" / f"blob{i}", link.parent))
    return snapshot


@pytest.mark.parametrize("shards", [1, 2])
def test_a_hub_snapshot_works_as_it_is(shards: int, tmp_path: Path) -> None:
    tensors = llama_tensors()
    source = write_folder(tmp_path / "source", tensors, shards=shards)
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    snapshot = hub_snapshot(tmp_path / "hub", source)
    checkpoint = open_checkpoint(snapshot)
    assert torch.equal(checkpoint.read("model.norm.weight"), tensors["model.norm.weight"])
    assert checkpoint.beside("1_Pooling/config.json") == {"pooling_mode_mean_tokens": True}
    (tmp_path / "shortcut").symlink_to(snapshot)
    assert open_checkpoint(tmp_path / "shortcut").names == sorted(tensors)
    with pytest.raises(CheckpointError, match=f"the weights lie: {snapshot}"):
        open_checkpoint(snapshot.parent.parent)


# What must not be followed


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/outside.safetensors",
        "deeper/outside.safetensors",
        "..\\outside.safetensors",
        "C:outside.safetensors",
        "..",
        "",
        "model.bin",
        "a\0.safetensors",
        7,
        None,
        ["a.safetensors"],
    ],
)
def test_an_index_that_points_elsewhere_is_refused(shard: object, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_folder(folder, llama_tensors(), shards=2)
    for place in (tmp_path, folder / "deeper"):
        place.mkdir(exist_ok=True)
        save_file({"model.norm.weight": torch.ones(32)}, place / "outside.safetensors")
    if shard == "/outside.safetensors":
        shard = str(tmp_path / "outside.safetensors")
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    write_index(folder, {**weight_map, "model.norm.weight": shard})
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert "model.safetensors.index.json cannot be followed" in str(error.value)
    assert "in the same folder" in str(error.value)


@pytest.mark.parametrize("weight_map", [None, {}, [], "model.safetensors", 3])
def test_an_index_without_a_map_is_refused(weight_map: object, tmp_path: Path) -> None:
    write_folder(tmp_path, llama_tensors(), shards=2)
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="no weight_map"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_and_a_missing_tensor_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_tensors(), shards=2)
    weight_map = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    write_index(tmp_path, {**weight_map, "lm_head.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match="which does not hold it"):
        open_checkpoint(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors"]
)
def test_links_that_lead_out_of_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", llama_tensors(), shards=2 if "-of-" in name else 1)
    (folder / "tokenizer.json").write_text("{}")
    (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to("../secret")
    with pytest.raises(CheckpointError, match="is a link that leads out of the folder"):
        _ = open_checkpoint(folder).tokenizer


def test_links_out_of_a_snapshot_are_refused(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", write_folder(tmp_path / "source", llama_tensors()))
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "source" / "config.json")
    with pytest.raises(CheckpointError, match="is a link that leads out of the folder"):
        open_checkpoint(snapshot)


def test_small_files_are_looked_for_inside_of_the_folder_only(tmp_path: Path) -> None:
    """Files of the checkpoint say where others are (modules.json of sentence-transformers): that may be a lie."""
    folder = write_folder(tmp_path / "model", llama_tensors())
    (tmp_path / "secret.json").write_text('{"a": 1}')
    (folder / "inside").mkdir()
    (folder / "inside" / "x.json").write_text("[1]")
    (folder / "link").symlink_to(tmp_path)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.beside("inside/x.json") == [1]
    assert checkpoint.beside("nowhere/x.json") is None
    for name in ("../secret.json", str(tmp_path / "secret.json"), "inside/../../secret.json", "link/secret.json"):
        with pytest.raises(CheckpointError, match="leads out of the folder"):
            checkpoint.beside(name)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path)
    assert "no pickle is ever loaded" in str(error.value)
    assert "save_pretrained" in str(error.value)


# What is not there, or not what it should be


def test_a_folder_without_a_config_lists_what_there_is(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path)
    assert "config.json is missing" in str(error.value)
    assert "got: model.safetensors" in str(error.value)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"{", "config.json cannot be understood"),
        (b"[]", "a JSON list"),
        (b"", "config.json cannot be understood"),
        (b"\xff\xfe{}", "config.json cannot be understood"),
        (b'{"model_type": "llama", "rms_norm_eps": NaN}', "rms_norm_eps=nan"),
        (b'{"model_type": "llama", "rope_theta": 1e999}', "rope_theta=inf"),
        (b'{"model_type": "llama", "num_attention_heads": 1000000}', "num_attention_heads of at most 64"),
        (b" " * (16 << 20) + b" {}", "too large for what it is"),
    ],
    ids=range(8),
)
def test_a_config_that_cannot_be_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    write_folder(tmp_path, llama_tensors())
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path)
    assert message in str(error.value)


def test_other_kinds_of_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        open_checkpoint(tmp_path / "model.onnx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="an empty folder"):
        open_checkpoint(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="nothing is downloaded"):
        open_checkpoint("sentence-transformers/all-MiniLM-L6-v2")
    with pytest.raises(TypeError, match="by name or by path"):
        open_checkpoint(3)  # type: ignore[arg-type]
