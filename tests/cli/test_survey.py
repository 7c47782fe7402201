"""`sightline survey` and `sightline atlas`: a folder of texts in, a Parquet data set and a page out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from sightline.cli import survey as command
from sightline.cli.app import app
from sightline.surveying import Survey


def test_a_survey_and_its_atlas(tmp_path: Path) -> None:
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    (folder / "a.txt").write_text("The kids were scared of the lions.")
    (folder / "b.txt").write_bytes(b"\xff")
    asked = ["survey", str(folder), "--out", str(out), "--model", "minilm", "--workers", "0"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0
    assert "2 texts in" in done.stdout
    assert "1 could not be run" in done.stdout
    assert pyarrow.parquet.read_table(sorted(out.glob("part-*.parquet"))).num_rows == 73
    made = CliRunner().invoke(app, ["atlas", str(out)], catch_exceptions=False)
    assert made.stdout.strip() == f"Atlas: {(out / 'atlas' / 'index.html').resolve().as_uri()}"
    assert "minilm" in (out / "atlas" / "data.js").read_text()
    refused = CliRunner().invoke(app, ["atlas", str(folder)])
    assert refused.exit_code != 0


def test_the_bar_tells_rate_and_time_left_however_slow_parts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker whose parts take a minute each; the second half of a survey that was begun before."""
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])

    def slow(*_: object, report: object, **__: object) -> Survey:
        for done in (40, 48, 56):
            report(done, 80, 0)  # type: ignore[operator]
            clock[0] += 60
        return Survey(tmp_path, 80, 0)

    monkeypatch.setattr(command, "run_survey", slow)
    asked = ["survey", str(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, asked, catch_exceptions=False, env={"FORCE_COLOR": "1", "COLUMNS": "120"})
    assert "56/80" in done.stderr
    assert "8.0 a minute, 0:03:00 left" in done.stderr


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_ctrl_c_while_workers_begin_is_heard_once(seconds: float, tmp_path: Path) -> None:
    """As a terminal sends it, to the command and to its workers, which are importing or have their model."""
    (tmp_path / "texts.jsonl").write_text('{"text": "The kids were scared."}\n{"text": "So they left."}\n')
    asked = ["survey", str(tmp_path / "texts.jsonl"), "--out", str(tmp_path / "out"), "--model", "minilm"]
    survey = subprocess.Popen(
        [sys.executable, "-m", "sightline", *asked, "--workers", "2"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever the tests were started by
    )
    end = time.monotonic() + 60
    while not _workers(survey.pid) and survey.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(seconds)
    os.killpg(survey.pid, signal.SIGINT)
    _, said = survey.communicate(timeout=60)
    assert (survey.returncode, said) == (130, "")
    assert not (tmp_path / "out").exists(), "nothing was written"


def _workers(driver: int) -> list[int]:
    """The workers of a survey: processes of Python's own way to start them."""
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [int(child) for child, command in commands.items() if b"spawn_main" in command]
