"""The report: the same numbers in the table, the data and the picture."""

from __future__ import annotations

import json
import math
from pathlib import Path

from sightline.lessons.ladder import RUNGS, Settings, climb, make_text, report

SETTINGS = Settings(steps=2, batch=2, context=8, width=8, heads=2, layers=1, sample=20)
TEXT = make_text("fox.txt", "the quick brown fox\x1b[2J jumps over the lazy dog. " * 9, SETTINGS.context)


def test_files_tell_the_same(tmp_path: Path) -> None:
    rungs = climb(TEXT, SETTINGS)
    made = report.write(tmp_path, rungs, TEXT, SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in made)
    data = json.loads((tmp_path / "ladder.json").read_text())
    assert [rung["loss"] for rung in data["rungs"]] == [rung["loss"] for rung in rungs]
    assert data["settings"]["steps"] == 2
    assert data["text"]["sha256"] == TEXT.digest
    words, picture = ((tmp_path / f"ladder.{ending}").read_text() for ending in ("txt", "svg"))
    for rung in rungs:
        assert f"{rung['loss']:.4f}" in words
        assert f"{rung['name']}  {rung['loss']:.3f}" in picture
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_no_times_in_it() -> None:
    rungs = climb(TEXT, SETTINGS)
    slower = [{**rung, "seconds": rung["seconds"] + 100} for rung in rungs]
    assert report.as_text(rungs) == report.as_text(slower)
    lines = report.as_text(rungs).splitlines()
    assert lines[0].split() == ["rung", "what", "it", "adds", "parameters", "loss", "better", "by"]
    assert len(lines) == 11


def test_the_summary_says_where_it_did_not_go_up() -> None:
    rungs = [{"name": name, "loss": loss} for name, loss in (("none", 2.5), ("average", 2.4), ("heads", 2.45))]
    assert report.summary(rungs).splitlines() == [
        "From average to heads: -0.05 nats per character better. Not better than the rung below: heads.",
        "Which step helped (nats per character; one seed; another changes it by ± 0.01):",
        "  average: +0.1000, helped",
        "  heads: -0.0500, worse",
    ]
    assert report.best(rungs)["name"] == "average"
    assert report.not_better([{"name": "a", "loss": 1.0}, {"name": "b", "loss": float("nan")}]) == ["b"]


def test_nothing_in_a_sample_gives_orders_to_a_terminal() -> None:
    assert report.printable("a\x1b[31m\r\x07b\nc é") == "a�[31m��b\nc é"


def test_a_step_helped_if_it_is_more_than_seeds_differ() -> None:
    def ladder(*losses: float) -> list[dict]:
        return [{"name": name, "loss": loss} for name, loss in zip(("none", "average", "weight-free"), losses)]

    lines = report.verdicts([ladder(2.5, 2.4, 2.401), ladder(2.52, 2.41, 2.408), ladder(2.51, 2.42, 2.42)])
    assert lines[0] == "Which step helped (nats per character; over 3 seeds, ± their spread):"
    assert lines[1] == "  average: +0.1000 ± 0.0100, helped"
    assert lines[2] == "  weight-free: +0.0003 ± 0.0015, no difference"
    assert lines[3].startswith("      why it may not: nothing in it can be learned but the embeddings")
    assert report.verdicts([ladder(2.5, math.nan, 2.4)])[1] == "  average: +nan, failed"
    assert report.gains([ladder(2.5, 2.4, 2.6)])[1].verdict == "worse"


def test_what_seeds_change_and_which_steps_help_is_what_was_measured() -> None:
    """The figures behind ALLOWED, and behind what the page on the ladder says."""
    results = Path(__file__).parents[2] / "benchmarks/results/ladder-cpu.json"
    found = report.gains([row["rungs"] for row in json.loads(results.read_text())["results"]])
    assert [gain.name for gain in found if gain.verdict != "helped"] == ["weight-free", "feed-forward"]
    assert max(gain.spread for gain in found[:6]) < report.ALLOWED
    assert {rung.name for rung in RUNGS} > set(report.WHY)
