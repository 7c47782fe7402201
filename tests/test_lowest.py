"""The oldest torch: said the same everywhere, and run with `make test-lowest`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from record import counts, main

ROOT = Path(__file__).resolve().parent.parent


def pins(name: str) -> dict[str, Version]:
    lines = (line.partition("==") for line in (ROOT / name).read_text("utf-8").splitlines() if line[:1] != "#")
    return {package: Version(number) for package, _, number in lines}


@pytest.fixture(scope="module")
def lowest() -> str:
    """What pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (torch,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "torch")
    (bound,) = torch.specifier
    assert bound.operator == ">="
    return bound.version


def test_the_same_version_is_said_everywhere(lowest: str) -> None:
    assert pins("constraints-lowest.txt")["torch"] == Version(lowest)
    assert f"({lowest} or newer)" in (ROOT / "README.md").read_text("utf-8")
    assert f"torch {lowest}," in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_only_what_must_be_older_is_pinned_apart() -> None:
    usual, older = pins("constraints.txt"), pins("constraints-lowest.txt")
    assert {"torch", "triton"} <= older.keys()
    for package, number in older.items():
        assert number < usual[package], package


def test_the_extra_takes_the_triton_that_comes_with_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (triton,) = map(Requirement, extras["triton"])
    assert pins("constraints-lowest.txt")["triton"] in triton.specifier


def test_the_recorded_run_was_of_that_version_and_passed(lowest: str) -> None:
    """`make test-lowest` leaves this test out, because it writes what is read here."""
    found = json.loads((ROOT / "benchmarks" / "results" / "lowest-cpu.json").read_text("utf-8"))
    assert found["command"] == "make test-lowest"
    for package, number in pins("constraints-lowest.txt").items():
        if package in found["machine"]:
            assert Version(found["machine"][package].partition("+")[0]) == number
    assert Version(found["machine"]["torch"].partition("+")[0]) == Version(lowest)
    (run,) = found["results"]
    assert run["failed"] == 0
    assert run["skipped"] == 0
    assert run["passed"] > 5000


XML = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}" time="12.6"/></testsuites>'


@pytest.mark.parametrize(
    "numbers, passed, failed, status", [((9, 0, 0, 2), 7, 0, 0), ((9, 2, 1, 0), 6, 3, 1), ((0, 0, 0, 0), 0, 0, 1)]
)
def test_a_run_is_written_down(tmp_path: Path, capsys, numbers, passed, failed, status) -> None:
    run, result = tmp_path / "run.xml", tmp_path / "result.json"
    run.write_text(XML.format(*numbers))
    assert counts(run) == {"passed": passed, "failed": failed, "skipped": numbers[3], "seconds": 13}
    assert main(str(run), str(result), "make test-lowest") == status
    found = json.loads(result.read_text())
    assert found["results"] == [counts(run)]
    assert found["command"] == "make test-lowest"
    assert {"python", "processor", "torch", "triton", "numpy", "transformers"} <= found["machine"].keys()
    assert re.fullmatch(rf"torch \S+: {passed} passed, .*\n", capsys.readouterr().out)


def test_each_file_of_tests_may_be_counted_by_itself(tmp_path: Path) -> None:
    ends = {"test_b.py": ["", "<failure/>", "<error/>"], "test_a.py": ["<skipped/>", ""]}
    cases = "".join(
        f'<testcase classname="tests.gpu.{f[:-3]}">{x}</testcase>' for f, all_ in ends.items() for x in all_
    )
    run, result = tmp_path / "run.xml", tmp_path / "result.json"
    counted = 'tests="5" failures="1" errors="1" skipped="1" time="1"'
    run.write_text(f"<testsuites><testsuite {counted}>{cases}</testsuite></testsuites>")
    assert main(str(run), str(result), "", by_file=True) == 1
    whole, *files = json.loads(result.read_text())["results"]
    assert (whole["passed"], whole["failed"], whole["skipped"]) == (2, 2, 1)
    assert [(row["file"], row["passed"], row["failed"]) for row in files] == [("test_a.py", 1, 0), ("test_b.py", 1, 2)]
