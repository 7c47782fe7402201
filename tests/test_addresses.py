"""The package names the pages of the repository it was built from, and makes none up."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import hatch_build  # noqa: E402

from sightline.kernels.native import build  # noqa: E402

HOME = "https://example.org/team/sightline"


@pytest.mark.parametrize(
    "remote",
    [HOME, f"{HOME}.git", f"{HOME}/", "git@example.org:team/sightline.git", "ssh://git@example.org/team/sightline"],
)
def test_a_remote_on_a_host_is_a_page(remote):
    assert hatch_build.address(f"{remote}\n") == HOME


def test_no_password_is_told():
    assert hatch_build.address("https://me:secret@example.org/team/sightline") == HOME


@pytest.mark.parametrize("remote", ["", "/tmp/sightline", "../sightline", "file:///tmp/sightline", "sightline"])
def test_a_folder_is_none(remote):
    assert hatch_build.address(remote) is None


def test_a_folder_without_history_says_nothing(tmp_path):
    assert hatch_build.urls(tmp_path) == {}


def test_a_source_archive_says_what_it_was_told(tmp_path):
    (tmp_path / "PKG-INFO").write_text(f"Name: sightline\nProject-URL: Repository, {HOME}\n\nText\n")
    assert hatch_build.urls(tmp_path) == {"Repository": HOME}


def test_a_wheel_has_them(tmp_path):
    """Of a small package with the same build step, in a repository that came from a host."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["urls"]' in text
    (tmp_path / "hatch_build.py").write_text((ROOT / "hatch_build.py").read_text("utf-8"))
    (tmp_path / "small.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "small"\nversion = "1"\ndynamic = ["urls"]\n'
        '[tool.hatch.metadata.hooks.custom]\npath = "hatch_build.py"\n'
        '[tool.hatch.build.targets.wheel]\ninclude = ["small.py"]\n'
    )
    for command in (["init", "-q"], ["remote", "add", "origin", "git@example.org:team/sightline.git"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        told = file.read("small-1.dist-info/METADATA").decode()
    assert f"Project-URL: Repository, {HOME}" in told
    assert f"Project-URL: Issues, {HOME}/issues" in told


def test_what_a_wheel_brings_along_is_what_is_looked_for():
    assert tuple(hatch_build.KINDS) == build.LANES
    assert [Path(hatch_build.NATIVE, "brought", f"tile-x86_64-{n}.so") for n in hatch_build.KINDS] == [
        (build.BROUGHT / build.brought_name(n)).relative_to(ROOT / "src") for n in build.LANES
    ]
