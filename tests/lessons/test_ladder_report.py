"""The report: the same numbers in the table, the data and the picture."""

from __future__ import annotations

import json
from pathlib import Path

from sightline.lessons.ladder import Settings, climb, make_text, report

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
    assert report.summary(rungs) == (
        "From average to heads: -0.05 nats per character better. Not better than the rung below: heads."
    )
    assert report.best(rungs)["name"] == "average"
    assert report.not_better([{"name": "a", "loss": 1.0}, {"name": "b", "loss": float("nan")}]) == ["b"]


def test_nothing_in_a_sample_gives_orders_to_a_terminal() -> None:
    assert report.printable("a\x1b[31m\r\x07b\nc é") == "a�[31m��b\nc é"
