"""The page of families is what the results say, and the results are what we promise."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def families(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("families")


def results():
    return json.loads((ROOT / "benchmarks" / "results" / "families-cpu.json").read_text("utf-8"))


def test_the_page_is_what_the_results_say(families):
    assert families.PAGE.read_text("utf-8") == families.page(results()), "python benchmarks/families.py --page"
    changed = results()
    changed["results"][0]["seen"] += 1
    assert families.page(changed) != families.page(results())


def test_every_family_has_its_own_bits_and_weights():
    rows = results()["results"]
    assert {"transformers", "timm", "diffusers", "x-transformers"} <= {row["library"] for row in rows}
    for row in rows:
        assert row["version"]
        assert row["same_bits"], row["family"]
        assert row["largest_difference"] is None or row["largest_difference"] < 1e-5, row["family"]
        assert (row["unseen"] > 0) == bool(row["reasons"])
