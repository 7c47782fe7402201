"""Every extra alone, as if nothing else were installed: it does what it says, or names the extra that is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from by_path import module_at

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ROOT / "benchmarks" / "extras.py"
PARTS = ("none", "models", "watch", "plots", "cli", "web", "notebook", "triton", "survey", "ray")
TOGETHER = ("cli+models", "cli+web")


def test_an_extra_alone_works_or_names_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, str(EXTRAS), "--blocked", *PARTS, *TOGETHER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = module_at(EXTRAS).wrong
    tried = (*PARTS, *TOGETHER)
    assert {extra: wrong(extra, found[extra]) for extra in tried} == {extra: {} for extra in tried}
    assert found["cli"]["`sightline look`"] == "names models", "no web framework: the weights are all it lacks"
    assert found["cli+models"]["`sightline look`"] == "works"


def test_every_extra_is_tried_and_has_lower_bounds() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    tools = {"all", "dev", "docs", "peers", "wheel", "jupyter"}  # of ours, or of those who read our notebooks
    assert extras.keys() - tools == set(PARTS) - {"none"} == module_at(EXTRAS).BRINGS.keys()
    for name in extras.keys() - tools:
        assert [one for one in extras[name] if not re.match(r"[\w-]+(\[\w+\])?>=\d", one)] == [], name


def test_a_fault_is_found() -> None:
    extras = module_at(EXTRAS)
    found = dict.fromkeys(extras.ASKED, "works")
    assert extras.wrong("none", found) == {}
    fault = {"pictures": "ModuleNotFoundError: No module named 'matplotlib'"}
    assert extras.wrong("cli", {**found, **fault}) == fault
    assert extras.wrong("cli", {**found, "pictures": "names plots"}) == {}
    assert extras.wrong("plots", {**found, "pictures": "names plots"}) == {"pictures": "names plots"}
    assert extras.wrong("cli", {**found, "`sightline look`": "names plots"}) != {}
    assert extras.wrong("cli+models", {**found, "`sightline look`": "names models"}) != {}
