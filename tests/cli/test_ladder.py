"""`sightline ladder`: the table, killed and gone on with, and clear words for what cannot work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.cli import app as cli

TEXT = "The quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 30


# The program, which says when its twentieth checkpoint is written, and then waits for what comes.
DOOMED = """
import itertools, sys, time
from sightline.cli import main
from sightline.lessons.ladder.checkpoint import Checkpoint

save, count = Checkpoint.save, itertools.count(1)

def slow(self, folder):
    save(self, folder)
    if next(count) == 20:
        print("in the middle", file=sys.stderr, flush=True)
        time.sleep(3600)

Checkpoint.save = slow
main()
"""


def run(*arguments: str) -> None:
    cli.run(["ladder", "--quick", "--steps", "2", "--device", "cpu", *arguments])


def error(*arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)
    assert isinstance(stopped.value.code, str)
    return stopped.value.code


def test_killed_and_started_again_it_ends_with_the_same_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out, straight = tmp_path / "fox.txt", tmp_path / "killed", tmp_path / "straight"
    text.write_text(TEXT)
    arguments = ["ladder", "--quick", "--steps", "40", "--device", "cpu", "--text", str(text)]
    doomed = subprocess.Popen(
        [sys.executable, "-c", DOOMED, *arguments, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert doomed.stderr is not None
    assert doomed.stderr.readline() == b"in the middle\n"
    os.kill(doomed.pid, signal.SIGKILL)
    assert doomed.wait() == -signal.SIGKILL
    doomed.stderr.close()
    assert not (out / "ladder.json").exists()
    for folder in (out, straight):
        with pytest.raises(SystemExit) as stopped:
            cli.run([*arguments, "--out", str(folder)])
        assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.count("several layers") >= 2
    assert shown.count("As the rung") == 2
    assert (out / "ladder.txt").read_text() == (straight / "ladder.txt").read_text()
    # Not only to the digits of the table: every loss of every curve is the same number.
    curves = [
        [rung["curve"] for rung in json.loads((folder / "ladder.json").read_text())["rungs"]]
        for folder in (out, straight)
    ]
    assert curves[0] == curves[1]


def test_the_text_of_python_and_a_second_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # finished, it is only shown again
        with pytest.raises(SystemExit) as stopped:
            run("--out", str(tmp_path))
        assert stopped.value.code in (0, None)
    shown = capsys.readouterr().out
    assert shown.count("pydoc_data.topics: 40,000 characters") == 2
    tables = shown.split("what it adds")[1:]
    assert len(tables) == 2
    assert tables[0].split("Written")[0] == tables[1].split("Written")[0]
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".json", ".png", ".svg", ".safetensors"}


def test_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    message = error("--text", str(tmp_path / "empty.txt"), "--out", str(tmp_path / "out"))
    assert message.startswith("sightline: empty.txt is too short for a ladder")
    assert not (tmp_path / "out").exists()


def test_ten_megabytes_of_text(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_bytes(b"word " * 2_000_000)
    assert error("--text", str(tmp_path / "long.txt")).startswith("sightline: long.txt is too long for a ladder")


def test_a_text_that_is_not_there(tmp_path: Path) -> None:
    assert "no.txt: No such file or directory" in error("--text", str(tmp_path / "no.txt"))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in ("file", "file/below"):
        message = error("--out", str(tmp_path / folder))
        assert message.startswith(f"sightline: {tmp_path / 'file'}")
        assert "\n" not in message


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    message = error("--device", "cuda:999", "--out", str(tmp_path))
    assert message.startswith("sightline: this device is not there")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_it_says_so_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert error("--out", str(tmp_path / "out")).startswith("sightline: pictures need matplotlib")
    assert not (tmp_path / "out").exists()


def test_another_ladder_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "fox.txt"
    text.write_text(TEXT)
    arguments = ("--text", str(text), "--out", str(tmp_path / "out"))
    with pytest.raises(SystemExit):
        run(*arguments)
    capsys.readouterr()
    assert "holds another ladder; expected: seed 0; got: seed 1" in error(*arguments, "--seed", "1")
    assert not capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(*arguments, "--seed", "1", "--fresh")
    assert json.loads((tmp_path / "out" / "ladder.json").read_text())["settings"]["seed"] == 1


@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--seed", "-1"), ("--threads", "0"), ("--steps", "many")])
def test_numbers_that_cannot_be(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(*wrong)
    assert stopped.value.code == 2
    assert wrong[0] in capsys.readouterr().err
