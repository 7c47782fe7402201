"""Other tools asked the same: whoever is not there keeps the last figures, and wrong numbers are no figures."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers")


def rows(part: str, tokens: int = 256, **more: Any) -> list[dict]:
    about = {"part": part, "call": f"asked of {part}", "tokens": tokens, "median_ms": 200.0, "runs": 5}
    about["mebibytes"] = 50.0
    ours = about | {"by": "Sightline", "of_ours": 1.0, "apart": 2e-6}
    return [ours, about | {"by": "another 1.0", "of_ours": 1.5, "apart": None} | more]


def test_a_peer_that_is_not_there_keeps_its_figures(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness: Any = importlib.import_module("harness")
    harness.write("peers", [*rows("lxt"), *rows("heads")], tmp_path)
    there, absent = ("json",), ("no_such_peer",)
    parts = {"heads": (lambda tokens: rows("heads", tokens), (64, 128), there), "lxt": (None, (64,), absent)}
    monkeypatch.setattr(peers, "PARTS", parts)
    monkeypatch.setattr("sys.argv", ["peers.py", "--threads", "1", "--out", str(tmp_path)])
    peers.main()
    assert "lxt: kept as it was, because no_such_peer is not installed here" in capsys.readouterr().out
    found = json.loads(harness.place("peers", tmp_path).read_text("utf-8"))["results"]
    assert [(row["part"], row["tokens"]) for row in found] == [
        *[("heads", 64)] * 2,
        *[("heads", 128)] * 2,
        *[("lxt", 256)] * 2,
    ]
    assert all(row["sources"] == harness.sources.sum_of("peers-cpu") for row in found)


def test_other_numbers_are_no_figures(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "peak", lambda run, given: 0.0)
    runs = {peers.OURS: lambda: 0.0, "another": lambda: 1.0}
    with pytest.raises(AssertionError, match=r"a call, 8 tokens: not the numbers of float64, \{'another': 1.0\}"):
        peers.measured("heads", "a call", 8, runs, lambda found: found)
    nan = {peers.OURS: lambda: 0.0, "another": lambda: float("nan")}
    with pytest.raises(AssertionError, match="nan"):
        peers.measured("heads", "a call", 8, nan, lambda found: found)
    assert [row["by"] for row in peers.measured("heads", "a call", 8, runs)] == list(runs)


def test_the_table_names_a_question_once(peers: ModuleType, tmp_path: Path) -> None:
    tables: Any = importlib.import_module("tables")
    blocks: Any = importlib.import_module("blocks")
    about = {"processor": "a processor", "threads": 2, "torch": "2.0+cpu"}
    (tmp_path / "peers-cpu.json").write_text(json.dumps({"machine": about, "results": rows("heads")}))
    shown = blocks.other_tools(tables.Results(tmp_path, current=lambda _: None))
    assert shown.startswith("a processor, 2 threads, float32, torch 2.0; rounds: 5.")
    assert "| asked of heads | 256 | Sightline | 1.00 | 200 ms | 50 MiB | 2e-06 |" in shown
    assert "|  |  | another 1.0 | 1.50 | 200 ms | 50 MiB |  |" in shown
