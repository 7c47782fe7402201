"""The pages say what is true: their code runs, their links lead somewhere, their commands exist."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


DOCS = tuple(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))
PAGES_WITH_CODE = ("README.md", "CONTRIBUTING.md", *(page for page in DOCS if FENCE.search(read(page))))
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "DESIGN.md", *DOCS)
# Extras that are tools of ours, not parts of the library.
TOOLS = {"all", "dev", "docs", "peers", "wheel"}
# Large, and few need them.
APART = {"ray", "jupyter"}


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Each python block of a page with the line it begins on."""
    for match in FENCE.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """A module of its own for a page; what its recipes register is forgotten afterwards."""
    from sightline.backends.choose import BACKENDS
    from sightline.lens.statistics import STATISTICS
    from sightline.models.families import FAMILIES
    from sightline.normalizers import NORMALIZERS

    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    tables: list[dict[str, Any]] = [BACKENDS, FAMILIES, NORMALIZERS, STATISTICS]
    saved = [dict(table) for table in tables]
    yield vars(module)
    for table, entries in zip(tables, saved, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_of_the_page_runs(
    page: str, namespace: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # pages save pictures and runs
    blocks = list(python_blocks(read(page)))
    assert blocks, f"{page} shows no code"
    for line, block in blocks:
        # Blank lines in front, so that a traceback gives the line in the page.
        exec(compile("\n" * (line - 1) + block, ROOT / page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", read(page))
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    broken = [target for target in local if not (ROOT / page).parent.joinpath(target).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_make_commands_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", read(page), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("page", [*PAGES, "docs/llms.txt"])
def test_a_model_is_named_as_what_it_is(page: str) -> None:
    """Instructed, and 4-bit: a page that speaks of SmolLM2 says so once. (A changelog speaks to who knows.)"""
    text = read(page)
    if page != "CHANGELOG.md" and re.search(r"SmolLM2|\"smollm2\"", text):
        assert re.search(r"SmolLM2-135M-Instruct\W.{0,40}4-bit", text, re.DOTALL)


def test_newest_changelog_entry_is_the_version_of_the_package() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    headings = re.findall(r"^## \[?([^\]\s]+)\]?", read("CHANGELOG.md"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == version


def test_every_extra_is_in_all() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.removeprefix("sightline[").removesuffix("]").split(",")
    assert sorted(named) == sorted(extras.keys() - TOOLS - APART)


def test_everything_installed_is_pinned() -> None:
    """`pip install -c constraints.txt` may not choose a version of anything we ask for by name."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    installed = [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *project["optional-dependencies"]["docs"],
        *project["optional-dependencies"]["triton"],
    ]
    asked = {re.match(r"[A-Za-z0-9._-]+", requirement).group().lower() for requirement in installed}
    pinned = set(re.findall(r"^([A-Za-z0-9._-]+)==", read("constraints.txt").lower(), re.MULTILINE))
    assert asked <= pinned
