"""`sightline bench`: what can be measured, a run in a process of its own, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sightline.cli import bench as command
from sightline.errors import InputError

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "harness.py"
SUBJECT = '''"""What nothing costs.

More of it.
"""

import argparse
from pathlib import Path

from harness import compare, ratio, write

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
options = parser.parse_args()
result = compare({"sightline": lambda: None, "torch": lambda: None})
print("nothing was done", flush=True)
write("nothing", [{"call": "nothing", "tokens": 1024, "ratio": 1.0, **result}], options.out)
'''

app = typer.Typer()
app.command()(command.bench)
runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Benchmarks of two files: one that works, one that fails."""
    place = tmp_path / "benchmarks"
    place.mkdir()
    for path in (HARNESS, HARNESS.with_name("sources.py")):
        (place / path.name).write_text(path.read_text("utf-8"))
    (place / "nothing.py").write_text(SUBJECT)
    # What ends before the harness is imported needs no torch, and is over at once.
    (place / "broken.py").write_text('"""What fails."""\nraise SystemExit("it broke")\nimport harness\n')
    (place / "helper.py").write_text('"""Not a benchmark."""\n')
    monkeypatch.setattr(command, "PLACES", (place,))
    monkeypatch.setattr(command, "find", lambda: place)
    return place


def test_without_a_subject_they_are_listed(folder: Path) -> None:
    done = runner.invoke(app, [])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()[:2]] == ["broken", "nothing"]
    assert "What nothing costs." in done.output
    assert "helper" not in done.output


def test_a_subject_is_measured(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = runner.invoke(app, ["nothing", "--quick", "--out", str(out)], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    assert "nothing: nothing was done" in done.output
    assert "1.00 of the peer" in done.output
    (path,) = out.glob("nothing-*.json")
    found = json.loads(path.read_text())
    assert found["quick"] is True
    assert found["results"][0]["torch"]["runs"] == 2


def test_what_fails_is_said_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    done = runner.invoke(app, ["all", "--quick", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "broken failed:\nit broke" in done.output
    assert "1.00 of the peer" in done.output
    assert "failed: broken" in done.output


def test_a_missing_peer_is_named_with_its_extra(folder: Path, tmp_path: Path) -> None:
    (folder / "needy.py").write_text('"""Needs more."""\nimport no_such_peer\nimport harness\n')
    done = runner.invoke(app, ["needy", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "needy needs no_such_peer: pip install 'sightline[all,peers]'" in done.output
    assert "broken failed" not in done.output


def test_an_unknown_subject_is_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    done = runner.invoke(app, ["nothing", "nope", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert "there is no benchmark 'nope'" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    done = runner.invoke(app, ["nothing", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)


def test_without_benchmarks_it_says_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="benchmarks are not installed"):
        command.find((tmp_path,))


def test_the_real_ones_are_found() -> None:
    known = command.listed(command.find())
    assert {"attention", "lens", "modules", "models", "watch", "growth", "page_size"} <= known.keys()
    assert not {"harness", "tables", "blocks", "goals", "plot"} & known.keys()
    assert all(known.values())


@pytest.mark.parametrize(
    "row, said",
    [
        ({"call": "x", "refused": "no"}, "refused"),
        ({"call": "x", "fits": False}, "does not fit"),
        ({"of_best_forward": 1.5, "median_ms": 12.0}, "1.50 of the best plain forward, 12 ms"),
        ({"time": 1.98, "memory": None}, "time grows as n^1.98"),
    ],
)
def test_figures_in_words(row: dict, said: str) -> None:
    assert command.figures(row) == said
