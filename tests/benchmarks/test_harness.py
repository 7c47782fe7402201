"""The harness: everybody in every round, ratios of the same round, and files that say where and how."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("harness")


def test_every_round_runs_all(harness: ModuleType) -> None:
    ran: list[str] = []
    result = harness.compare({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, repeats=3, warmups=1)
    assert [sorted(ran[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    assert result["a"]["runs"] == 3
    assert result["a"]["quartiles_ms"][0] <= result["a"]["median_ms"] <= result["a"]["quartiles_ms"][1]


def test_a_ratio_is_of_the_same_round(harness: ModuleType) -> None:
    """A moment in which everything takes ten times as long does not change it."""
    result = harness.Rounds({name: {"median_ms": 0.0} for name in "ab"})
    result.times = {"a": [2.0, 20.0, 2.2], "b": [1.0, 10.0, 1.0]}
    assert harness.ratio(result, "a", "b") == 2.0


def test_who_refuses_is_left_out_with_the_reason(harness: ModuleType) -> None:
    def unable() -> None:
        raise RuntimeError("no kernel\nmore of it")

    able, refused = harness.willing({"able": lambda: None, "unable": unable})
    assert list(able) == ["able"]
    assert refused == {"unable": "no kernel"}


def test_results_say_where_and_how(harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/thing.py", "--out", str(tmp_path), "--longest", "512"])
    path = harness.write("thing", [{"call": "x"}], tmp_path)
    found = json.loads(path.read_text())
    assert found["command"] == "python benchmarks/thing.py --longest 512"
    assert {"python", "torch", "processor", "threads"} <= found["machine"].keys()
    assert "quick" not in found
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_quick_results_are_marked(harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "QUICK", True)
    assert json.loads(harness.write("thing", [], tmp_path).read_text())["quick"] is True


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "results").glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_are_whole(path: Path) -> None:
    found = json.loads(path.read_text("utf-8"))
    assert found["results"]
    assert not found.get("quick")
    assert path.stem.endswith("-gpu") == ("gpu" in found["machine"])


def test_parts_that_are_not_measured_again_stay(
    harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "earlier", {"bertviz": "1.0"})
    harness.write("thing", [{"part": "a", "x": 1}, {"part": "b", "x": 2}], tmp_path)
    harness.earlier.clear()
    assert harness.kept("thing", "part", ["a"], tmp_path) == [{"part": "b", "x": 2, "sources": None}]
    assert harness.machine()["bertviz"] == "1.0"  # it took part in the rows that are kept
    path = harness.place("thing", tmp_path)
    path.write_text(path.read_text().replace('"processor": "', '"processor": "another '))
    assert harness.kept("thing", "part", ["a"], tmp_path) == []


def test_rows_say_of_which_code_they_are(harness: ModuleType, tmp_path: Path) -> None:
    now = harness.sources.sum_of("lens-cpu")
    path = harness.write("lens", [{"call": "a"}, {"call": "b", "sources": None}], tmp_path)
    found = json.loads(path.read_text("utf-8"))
    assert [row["sources"] for row in found["results"]] == [now, None], "what was kept is not of this code"
    assert found["commit"] == harness.sources.commit()
    assert harness.kept("lens", "call", ["b"], tmp_path) == [{"call": "a", "sources": now}]


def test_pooled_rounds_are_those_of_one_comparison(harness: ModuleType) -> None:
    found = harness.pooled(map(harness.Rounds.of, ({"a": [1.0, 2.0], "b": [2.0, 2.0]}, {"a": [3.0], "b": [1.0]})))
    assert found["a"]["median_ms"] == 2.0
    assert found["a"]["runs"] == 3
    assert harness.ratio(found, "a", "b") == 1.0  # of 0.5, 1 and 3
