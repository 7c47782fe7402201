"""The models that may be run: one that cannot be read is left out by one line that names it, and ends nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from model_files import LLAMA, llama_tensors, write_folder, write_gguf
from sightline.cli import app as cli
from sightline.errors import InputError, SightlineError
from sightline.explore.model_runs import Models

WRONG: list[Any] = [5, -1, "x", [5], [None], {}, {"a": [1]}, True, float("nan"), 1e308, 10**30, "\ud800"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", llama_tensors())


def written(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return folder


@pytest.mark.parametrize("key", [*LLAMA, "architectures", "rope_scaling", "rope_theta", "head_dim", "hidden_act"])
def test_wrong_values_anywhere_are_clear_errors(folder: Path, key: str) -> None:
    for value in WRONG:
        models = Models([str(written(folder, **{key: value}))])
        assert len(models.listed()) + len(models.skipped) == 1
        for listed in models.listed():
            with suppress(SightlineError):  # what only a family knows is found when the model is loaded
                models.get(listed["name"])


CONFIGS: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda path: None,
    "a list": lambda path: path.write_text("[1]"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe"),
    "brackets": lambda path: path.write_text("[" * 100_000),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_a_config_that_is_none_is_left_out(folder: Path, what: str) -> None:
    (folder / "config.json").unlink()
    CONFIGS[what](folder / "config.json")
    models = Models([str(folder), "minilm"])
    assert [model["name"] for model in models.listed()] == ["minilm"]
    assert len(models.skipped) == 1
    assert models.skipped[0].isprintable()


def test_which_models_go_on_writing(folder: Path, tmp_path: Path) -> None:
    models = Models([str(written(folder, architectures=["LlamaForCausalLM"])), "minilm", "smollm2"])
    assert [model["causal"] for model in models.listed()] == [True, False, True]
    assert [model["causal"] for model in Models([str(written(folder, architectures=None))]).listed()] == [False]
    file = write_gguf(tmp_path / "small.gguf", llama_tensors())
    assert [model["causal"] for model in Models([str(file)]).listed()] == [True]


def test_without_any_model_the_reason_is_said(folder: Path) -> None:
    with pytest.raises(InputError, match="architectures=5"):
        Models([str(written(folder, architectures=5))]).first()


@pytest.mark.parametrize("arguments", [["look", "a text"], ["serve", "--port", "0", "--text", "a text"]])
def test_commands_that_need_a_model_say_so_in_one_line(folder: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run([*arguments, "--model", str(written(folder, architectures=5))])
    assert "there is no model to run" in str(stopped.value.code)
    assert "architectures=5" in str(stopped.value.code)
    assert "\n" not in str(stopped.value.code)
