"""The copy in the cache: equal to its source, whole or not there, and never in anybody's way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from model_files import llama_tensors, write_folder, write_gguf
from sightline.models.checkpoints import copies
from sightline.models.checkpoints.base import Checkpoint
from sightline.models.checkpoints.opening import open_checkpoint

SUM = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    tokens = [*(f"<{i}>" for i in range(37)), "a", "b", "ab"]
    settings = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [3] * 37 + [1] * 3,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 7,
        "tokenizer.chat_template": "{{ messages }} ü",
    }
    return open_checkpoint(write_gguf(tmp_path / "x.gguf", llama_tensors(), kind=Kind.Q4_1, settings=settings))


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(f"{copies.PART}*")]


def test_the_copy_is_the_source_in_another_form(source: Checkpoint, folder: Path) -> None:
    assert copies.find("model", SUM) is None
    stored = copies.store("model", SUM, source)
    assert stored == copies.find("model", SUM) == folder / "model-0123456789ab-1"
    copy = open_checkpoint(stored)
    assert copy.config == source.config
    assert copy.special == source.special
    assert copy.names == source.names
    for name in source.names:
        assert copy.dtype(name) == source.dtype(name)
        assert torch.equal(copy.read(name), source.read(name)), name
    assert copy.tokenizer is not None
    assert source.tokenizer is not None
    assert copy.tokenizer.to_str() == source.tokenizer.to_str()
    assert copies.wrong_files(stored, SUM) == []
    assert leftovers(folder) == []
    # The library reads it as well.
    assert torch.equal(load_file(stored / "model.safetensors")["model.norm.weight"], copy.read("model.norm.weight"))


def test_any_dtype_can_be_copied(tmp_path: Path) -> None:
    tensors = {
        **llama_tensors(dtype=torch.bfloat16),
        "a.half": torch.ones(3, dtype=torch.float16),
        "b.empty": torch.zeros(0, 3),
        "c.number": torch.tensor(7),
        "d.bool": torch.tensor([True, False, True]),
    }
    stored = copies.store("model", SUM, open_checkpoint(write_folder(tmp_path / "x", tensors)))
    assert stored is not None
    for name, tensor in load_file(stored / "model.safetensors").items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name])


def test_other_sums_have_other_copies(source: Checkpoint) -> None:
    copies.store("model", SUM, source)
    assert copies.find("model", "f" * 64) is None
    assert copies.find("other", SUM) is None


def _truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def _touch(folder: Path) -> None:
    os.utime(folder / "config.json", (1, 1))


def _forget(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _garble(folder: Path) -> None:
    (folder / copies.LIST).write_text("{")


def _relist(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        said = json.loads((folder / copies.LIST).read_text())
        (folder / copies.LIST).write_text(json.dumps({**said, **changes}))

    return change


DAMAGE = [
    _truncate,
    _touch,
    _forget,
    _garble,
    _relist(format=2),
    _relist(source="f" * 64),
    _relist(files=[]),
    _relist(files={}),
    _relist(files={"model.safetensors": 3}),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_copy_is_not_used_and_is_replaced(
    damage: Callable[[Path], None], source: Checkpoint, folder: Path
) -> None:
    stored = copies.store("model", SUM, source)
    assert stored is not None
    damage(stored)
    assert copies.find("model", SUM) is None
    assert copies.store("model", SUM, source) == stored == copies.find("model", SUM)
    assert copies.wrong_files(stored, SUM) == []
    assert leftovers(folder) == []


def test_the_full_check_reads_every_byte(source: Checkpoint) -> None:
    stored = copies.store("model", SUM, source)
    assert stored is not None
    path = stored / "model.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert copies.find("model", SUM) == stored  # sizes and times alone cannot know
    assert copies.wrong_files(stored, SUM) == ["model.safetensors"]
    assert copies.wrong_files(stored / "nowhere", SUM) == [copies.LIST]


# A cache that cannot be used


def test_no_folder_can_be_made(source: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="model is loaded, but not cached"):
        assert copies.store("model", SUM, source) is None
    assert copies.find("model", SUM) is None


def test_no_room(source: Checkpoint, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.warns(UserWarning, match="would hardly fit"):
        assert copies.store("model", SUM, source) is None
    assert list(folder.iterdir()) == []


def test_the_disk_fills_up_on_the_way(source: Checkpoint, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert copies.store("model", SUM, source) is None
    assert list(folder.iterdir()) == []


def test_somebody_presses_ctrl_c_on_the_way(source: Checkpoint, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "read", stopped)
    with pytest.raises(KeyboardInterrupt):
        copies.store("model", SUM, source)
    assert list(folder.iterdir()) == []


def test_there_is_no_home(source: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SIGHTLINE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nobody)
    assert copies.find("model", SUM) is None
    with pytest.warns(UserWarning, match="home directory"):
        assert copies.store("model", SUM, source) is None


def test_what_others_left_behind_is_removed_after_a_while(source: Checkpoint, folder: Path) -> None:
    old, new = folder / f"{copies.PART}old", folder / f"{copies.PART}new"
    for path in (old, new):
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(b"half")
    os.utime(old, (time.time() - 2 * copies.ABANDONED_S,) * 2)
    copies.store("model", SUM, source)
    assert leftovers(folder) == [new.name]


# Two at once


def test_many_threads_at_once(source: Checkpoint, folder: Path) -> None:
    def store(i: int) -> Path | None:
        if i % 3 == 0 and (stored := copies.find("model", SUM)) is not None:
            _touch(stored)  # damaged while others look at it
        return copies.store("model", SUM, source)

    with ThreadPoolExecutor(8) as threads:
        stored = set(threads.map(store, range(24)))
    assert stored == {folder / "model-0123456789ab-1"}
    assert copies.store("model", SUM, source) == copies.find("model", SUM)
    assert leftovers(folder) == []


def test_two_processes_at_once(source: Checkpoint, folder: Path) -> None:
    code = f"""
import sys, time
from sightline.models.checkpoints import copies as cache
from sightline.models.checkpoints.opening import open_checkpoint

source = open_checkpoint({source.source!r})
sys.stdin.read()  # both begin when both are ready
for _ in range(4):
    assert cache.store("model", {SUM!r}, source) is not None
assert cache.wrong_files(cache.find("model", {SUM!r}), {SUM!r}) == []
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    results = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], results
    assert [path.name for path in folder.iterdir()] == ["model-0123456789ab-1"]
