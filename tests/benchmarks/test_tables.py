"""Every number of README and docs comes from a committed result: blocks are current, and claims stand in blocks."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A number with a unit of time, memory or comparison. `512 x 512` is a size, and `2 x` with nothing after it is not.
CLAIM = re.compile(
    r"(?<![\w.])\d[\d,.]*\s?(?:ns|µs|us|ms|s|seconds?|minutes?|hours?|[kKMG]i?B|%|×|x(?!\s*\d)|times|fold)(?![\w/])"
    r"|\b(?:twice|half|thrice|double) (?:as|the) (?:fast|quick|slow|time|memory)",
)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("tables")


def claims(text: str, block: re.Pattern[str]) -> list[str]:
    """What looks like a measured figure outside of blocks and code."""
    text = FENCE.sub("", block.sub("", text))
    return [match.group() for match in CLAIM.finditer(re.sub(r"`[^`\n]*`", "", text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_are_those_of_the_results(page: Path, tables: ModuleType) -> None:
    text = page.read_text("utf-8")
    assert tables.filled(text, tables.Results()) == text, "python benchmarks/tables.py --write"
    assert text.count("<!-- bench:") == text.count("<!-- /bench -->") == len(tables.BLOCK.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_is_typed_by_hand(page: Path, tables: ModuleType) -> None:
    assert claims(page.read_text("utf-8"), tables.BLOCK) == []


@pytest.mark.parametrize(
    "text, found",
    [
        ("It takes 1.5 s, or 20 % more", ["1.5 s", "20 %"]),
        ("3 times as fast, 2x", ["3 times", "2x"]),
        ("needs 64 MiB", ["64 MiB"]),
        ("twice as fast", ["twice as fast"]),
        ("a picture of 512 x 512 over 65,536 tokens with 8 heads", []),
        ("`sleep 5 s`", []),
        ("```sh\nsleep 5 s\n```", []),
        ("<!-- bench:peers -->\n5 s\n<!-- /bench -->", []),
    ],
)
def test_the_check_for_figures_itself(text: str, found: list[str], tables: ModuleType) -> None:
    assert claims(text, tables.BLOCK) == found


def test_pictures_are_drawn_from_the_results(tables: ModuleType) -> None:
    plot = importlib.import_module("plot")
    files = tables.Results().files
    for picture, name in plot.PICTURES.items():
        if name in files:
            assert plot.is_current(picture, files[name]), "python benchmarks/tables.py --write"
        else:
            assert not picture.exists()


def test_a_changed_result_changes_the_page(tables: ModuleType, tmp_path: Path) -> None:
    about_all = {"call": "everybody, forward", "tokens": 4096, "of_best_torch": 1.234}
    rows = [about_all | {"candidate": "sightline"}, {"call": "plain", "tokens": 4096, "ratio": 1.0}]
    about = {"processor": "a processor", "threads": 2, "torch": "2.0+cpu"}
    (tmp_path / "attention-cpu.json").write_text(json.dumps({"machine": about, "results": rows}))
    text = tables.filled("<!-- bench:peers -->\nold\n<!-- /bench -->", tables.Results(tmp_path, current=lambda _: None))
    assert "| attention, causal, 4,096 tokens | 1.23 |" in text
    assert "a processor, 2 threads" in text
    assert "not measured yet" in text


@pytest.mark.parametrize("values, verdict", [([], "not measured yet"), ([1.0], "goal"), ([1.0, 1.03], "first")])
def test_verdicts(values: list[float], verdict: str, tables: ModuleType) -> None:
    goals = importlib.import_module("goals")
    assert goals.verdict(values, goals.GOALS[0]) == verdict


def test_the_worst_call_decides_and_is_not_rounded(tables: ModuleType) -> None:
    goals = importlib.import_module("goals")
    assert goals.verdict([0.5, 1.0501], goals.GOALS[0]) == "**short**"


def test_quick_results_are_not_published(tables: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x-cpu.json").write_text(json.dumps({"quick": True, "machine": {}, "results": [{"call": "x"}]}))
    results = tables.Results(tmp_path)
    assert results.rows("x-cpu") == []
    assert results.quick == ["x-cpu.json"]


def test_exponents_are_fitted(tables: ModuleType) -> None:
    growth: Any = importlib.import_module("growth")
    assert growth.slope([256, 512, 1024], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert growth.slope([256, 512, 1024], [5.0, 5.0, 5.0]) == pytest.approx(0.0)
    assert growth.slope([256, 512], [1.0, 0.0]) is None


def test_an_explorer_row_of_another_name_is_an_error_not_a_gap(tables: ModuleType, tmp_path: Path) -> None:
    blocks: Any = importlib.import_module("blocks")
    results = tables.Results()
    assert blocks.MISSING not in blocks.explorer(results)
    about = json.loads((ROOT / "benchmarks" / "results" / "explorer-cpu.json").read_text("utf-8"))
    for row in about["results"]:
        row["name"] = row["name"].replace("further tiles while", "more tiles while")
    (tmp_path / "explorer-cpu.json").write_text(json.dumps(about))
    with pytest.raises(KeyError, match=r"further tiles while .* only rows of .*more tiles while"):
        blocks.explorer(tables.Results(tmp_path))
    (tmp_path / "explorer-cpu.json").unlink()
    assert blocks.MISSING in blocks.explorer(tables.Results(tmp_path))  # nothing was measured at all


def test_slow_levels_are_told_beside_the_median_over_all(tables: ModuleType) -> None:
    blocks: Any = importlib.import_module("blocks")
    levels = {"0": {"median_ms": 4.0}, "5": {"median_ms": 155.0}, "6": {"median_ms": 172.3}, "7": {"median_ms": 150.0}}
    row = {"median_ms": 47.0, "budget_ms": 150, "levels": levels}
    assert blocks._slow_levels(row, "median_ms") == " (172 ms at level 6, 155 ms at level 5)"
    assert blocks._slow_levels(row, "seconds") == blocks._slow_levels(None, "median_ms") == ""


def test_what_is_older_than_the_code_is_marked(tables: ModuleType, tmp_path: Path) -> None:
    blocks: Any = importlib.import_module("blocks")
    about = {"processor": "a processor", "threads": 2, "torch": "2.0+cpu"}
    row = {"call": "+ entropy, max_score, distance", "tokens": 4096, "of_best_forward": 1.7, "median_ms": 1.0}
    rows = [row | {"causal": causal, "sources": "now"} for causal in (True, False)]
    for last, old in (({}, False), ({"sources": "then"}, True), ({"sources": None}, True)):
        found = {"machine": about, "results": [rows[0], rows[1] | last]}
        (tmp_path / "lens-cpu.json").write_text(json.dumps(found))
        results = tables.Results(tmp_path, current=lambda name: "now")
        page = "<!-- bench:peers -->\n<!-- /bench --><!-- bench:scoreboard -->\n<!-- /bench -->"
        shown = tables.filled(page, results)
        assert ("| 1.70 / 1.70 † |" in shown) == ("| 1.700 | first † |" in shown) == (blocks.OLD_NOTE in shown) == old


def test_the_sum_is_of_what_code_means(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: Any = importlib.import_module("sources")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    monkeypatch.setattr(sources, "MEASURED", {"x": ("part",)})
    (tmp_path / "part").mkdir()
    (tmp_path / "lens" / "gpu").mkdir(parents=True)
    monkeypatch.setitem(sources.MEASURED, "y", ("part", "lens"))

    def of(text: str, name: str = "a.py") -> str:
        (tmp_path / "part" / name).write_text(text)
        sources._sum.cache_clear()
        return sources.sum_of("x-cpu")

    first = of('"""One."""\n\ndef f(x):\n    """Two."""\n    return x + 1  # three\n')
    assert of("def f(x):\n    return (x +\n        1)\n") == first
    assert of("def f(x):\n    return x + 2\n") != first
    assert of("/* one */", "b.c") != of("/* two */", "b.c")
    sums = [sources.sum_of(f"y-{kind}") for kind in ("cpu", "gpu")]
    (tmp_path / "lens" / "gpu" / "a.py").write_text("x = 1")
    sources._sum.cache_clear()
    assert [now == before for now, before in zip([sources.sum_of("y-cpu"), sources.sum_of("y-gpu")], sums)] == [
        True,
        False,
    ]
    # A newer Python has fields that older ones do not know, such as the types that a function is generic over.
    function = ast.parse("def f(x): ...").body[0]
    other = ast.parse("def f(x): ...").body[0]
    other.type_params, other._fields = [], (*other._fields, "type_params")
    assert sources._plain(function) == sources._plain(other)
    sources._sum.cache_clear()


def test_every_part_that_is_measured_is_there(tables: ModuleType) -> None:
    sources: Any = importlib.import_module("sources")
    sources._sum.cache_clear()
    assert all(len(sources.sum_of(f"{name}-{kind}")) == 12 for name in sources.MEASURED for kind in ("cpu", "gpu"))
    assert all(list(sources.PACKAGE.glob(pattern)) for patterns in sources.ELSEWHERE.values() for pattern in patterns)
