"""The documentation is whole: every page is in the menu, every public name and every command has its place."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from by_path import module_at

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def nav() -> list[str]:
    """The pages of the menu; read as text, because building needs mkdocs and the tests do not."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    return re.findall(r"([\w/-]+\.md)\s*$", text[text.index("\nnav:") :], re.MULTILINE)


def hooks() -> ModuleType:
    return module_at(DOCS / "hooks.py")


def test_every_page_is_in_the_menu_once() -> None:
    assert sorted(nav()) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_every_public_name_is_in_the_reference() -> None:
    import sightline
    from sightline import caches, lookup, models, nn, parallel, plots, positions, steps, targets

    told = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: sightline\.([\w.]+)$", told, re.MULTILINE))
    last = {name.rpartition(".")[2] for name in listed}
    parts = {
        "nn": nn,
        "positions": positions,
        "lookup": lookup,
        "steps": steps,
        "models": models,
        "plots": plots,
        "caches": caches,
        "parallel": parallel,
        "targets": targets,
    }
    missing = [
        f"{part}.{name}" for part, owner in parts.items() for name in owner.__all__ if f"{part}.{name}" not in listed
    ]
    missing += [name for name in sightline.__all__ if name not in last | parts.keys() | {"errors"}]
    assert not missing


def test_every_name_of_the_reference_exists() -> None:
    told = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    for name in re.findall(r"^::: (sightline\.[\w.]+)$", told, re.MULTILINE):
        owner, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(owner), last), name


def test_commands_document_themselves() -> None:
    from sightline.cli.app import COMMANDS

    page = hooks().on_page_markdown("# Commands\n\n<!-- commands -->\n")
    assert [name for name in COMMANDS if f"## sightline {name}\n" not in page] == []
    assert "--out" in page
    assert hooks().on_page_markdown("nothing to do") == "nothing to do"


@pytest.mark.parametrize("page", ["README.md", *(str(path.relative_to(ROOT)) for path in PAGES)])
def test_commands_of_the_pages_exist(page: str) -> None:
    """Every `sightline …` of a shell block names a command and options that it has."""
    from typer.main import get_command

    from sightline.cli.app import COMMANDS, app

    known = get_command(app)
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^sightline (.*)$", "".join(blocks), re.MULTILINE):
        words = re.sub(r'"[^"]*"', "TEXT", line.partition("#")[0]).split()
        assert words[0] in COMMANDS, line
        options = {name for option in known.commands[words[0]].params for name in option.opts}  # type: ignore[attr-defined]
        assert {word for word in words if word.startswith("--")} <= options, line


def test_pictures_are_used_and_small() -> None:
    told = "\n".join(path.read_text("utf-8") for path in [ROOT / "README.md", *PAGES])
    for path in (DOCS / "images").iterdir():
        assert path.stat().st_size < 1_500_000, path.name
        if not path.name.startswith("explorer-"):
            assert path.name in told, f"{path.name} is shown nowhere"
