"""One version: the package, the command and what is built from both say the same."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import sightline
from sightline.version import __version__

ROOT = Path(__file__).resolve().parent.parent


def test_the_package_knows_its_version() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert sightline.__version__ == __version__ == built


def test_the_page_has_the_version_of_the_package() -> None:
    assert json.loads((ROOT / "web" / "package.json").read_text("utf-8"))["version"] == __version__
