"""The page for coding assistants and llms.txt: every public name, twenty snippets, the same in both."""

from __future__ import annotations

import re
from pathlib import Path

import sightline as sl

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/assistants.md").read_text("utf-8")
TEXT = (ROOT / "docs/llms.txt").read_text("utf-8")


def test_every_public_name_is_there() -> None:
    for text in (PAGE, TEXT):
        assert set(re.findall(r"^- `?sl\.(\w+)`?: ", text, re.MULTILINE)) == set(sl.__all__)


def test_the_snippets_of_the_page_run_and_are_those_of_the_text() -> None:
    """That they run is tested with all pages; here, that the two files have the same twenty."""
    titles = re.findall(r"^## \d+\. (.+)$", PAGE, re.MULTILINE)
    assert len(titles) == 20
    (block,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    of_page = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    of_text = re.split(r"^# \d+\. .+$", block, flags=re.MULTILINE)
    assert [one.strip() for one in of_page] == [one.strip() for one in of_text]


def test_traps_are_the_same() -> None:
    traps = PAGE.split("## Traps\n\n")[1].strip()
    assert traps in TEXT
    assert traps.count("\n- ") >= 10
