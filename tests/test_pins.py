"""What we pin can be installed: from the public package index alone, by every Python we name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = ROOT / "constraints.txt"
PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
# Peers of the benchmarks take part in the version that is there.
NOT_INSTALLED = {"peers"}


def requirements() -> list[str]:
    """All that `make demo`, `make test` and `make docs` ask for by name, the model packages left out."""
    extras = {name: asked for name, asked in PROJECT["optional-dependencies"].items() if name not in NOT_INSTALLED}
    asked = [*PROJECT["dependencies"], *(one for extra in extras.values() for one in extra)]
    return [one for one in asked if not one.startswith("sightline[")]


def models() -> list[str]:
    """The packages with weights, which are installed without what they depend on."""
    (found,) = re.findall(r"^MODELS *:= *(.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return found.split()


def versions(listed: str) -> dict[str, str]:
    """What a list of `name==version` says, with names as the index writes them."""
    pairs = re.findall(r"^([\w.-]+)==([^\s;]+)", listed, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def resolved(python: str, asked: list[str], *options: str, pins: Path = PINS, **more: str) -> str:
    """What the index would give a Linux machine with this Python: nothing is installed, no local folder is asked.

    By uv, which reads what a wheel depends on without fetching it: pip's dry run takes a minute for each Python.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    if "PIP_CERT" in os.environ:
        environment.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    if "PIP_INDEX_URL" in os.environ:
        environment["UV_DEFAULT_INDEX"] = os.environ["PIP_INDEX_URL"]
    command = f"pip compile - --python-version {python} --python-platform linux --only-binary :all: --no-config"
    command += " --no-cache --no-header --no-annotate --quiet --constraints"
    done = subprocess.run(
        [sys.executable, "-m", "uv", *command.split(), str(pins), *options],
        input="\n".join(asked),
        env={**environment, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to fetch" in done.stderr:
        raise AssertionError(f"the package index cannot be reached:\n{done.stderr}")
    assert done.returncode == 0, f"Python {python} cannot install what is pinned:\n{done.stderr}"
    return done.stdout


def test_what_is_pinned_is_what_every_python_finds_in_the_index(tmp_path: Path) -> None:
    """Nothing is left to choose, nothing is pinned in vain, and pins that clash are found.

    One test, because all of it is waiting for the index, side by side.
    """
    wrong = tmp_path / "constraints.txt"
    # As when Triton was not the one that torch of the index asks for.
    wrong.write_text(re.sub(r"^triton==.*$", "triton==3.6.0", PINS.read_text("utf-8"), flags=re.MULTILINE))
    with ThreadPoolExecutor(max_workers=len(PYTHONS) + 2) as side_by_side:
        clash = side_by_side.submit(resolved, "3.12", ["torch"], pins=wrong)
        weights = side_by_side.submit(resolved, PYTHONS[0], models(), "--no-deps")
        found = list(side_by_side.map(lambda python: versions(resolved(python, requirements())), PYTHONS))
    assert len(found) == 3
    pinned = versions(PINS.read_text("utf-8"))
    for python, chosen in zip(PYTHONS, found, strict=True):
        assert chosen.items() <= pinned.items(), f"not pinned for Python {python}: {chosen.items() - pinned.items()}"
    used = set().union(*found, versions(weights.result()))
    assert used == pinned.keys(), f"pinned and never installed: {pinned.keys() - used}"
    with pytest.raises(AssertionError, match=r"(?s)cannot install.*triton"):
        clash.result()


def test_an_index_that_cannot_be_reached_is_the_reason() -> None:
    with pytest.raises(AssertionError, match="index cannot be reached"):
        resolved("3.12", ["numpy"], UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0")
