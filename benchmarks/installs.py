"""The real install from the package index alone: seconds, size, and whether the tests run, for each Python.

    make installs PYTHONS="python3.11 python3.12 python3.13"

Every Python gets a clone of its own in a temporary folder, an environment made by the Makefile with local folders of
packages switched off, and runs a part of the tests there. It brings gigabytes of CUDA, and is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
from extras import bytes_in, packages

ROOT = Path(__file__).resolve().parent.parent
# The definition, the backends, the lens, the kernels and a trained model: a few minutes.
TESTS = [
    "tests/masks",
    "tests/backends",
    "tests/lens/test_api.py",
    "tests/kernels",
    "tests/models/test_real_models.py",
]


def alone() -> dict[str, str]:
    """The environment without any folder or second index that pip was told of; certificates stay."""
    local = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in local} | {"PIP_CONFIG_FILE": os.devnull}


def installed(python: str, tests: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sightline-install-") as place:
        clone = Path(place, "sightline")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        began = time.perf_counter()
        subprocess.run(["make", f"PYTHON={python}", ".venv/.stamp-dev"], cwd=clone, env=alone(), check=True)
        seconds = time.perf_counter() - began
        own = str(clone / ".venv" / "bin" / "python")
        asked = (
            "import platform, torch, triton; print(platform.python_version(), torch.__version__, triton.__version__)"
        )
        versions = subprocess.run([own, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
        found = {
            **dict(zip(("python", "torch", "triton"), versions, strict=True)),
            "seconds": round(seconds),
            "gigabytes": round(bytes_in(clone / ".venv") / 1e9, 1),
            "packages": len(list(packages(clone / ".venv").glob("*.dist-info"))),
        }
        print(json.dumps(found), flush=True)
        began = time.perf_counter()
        done = subprocess.run(
            [own, "-m", "pytest", "-q", *tests], cwd=clone, env={**alone(), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
        if done.returncode:
            print(done.stdout[-6000:])
        return found | {"tests": tests, "test_seconds": round(time.perf_counter() - began), **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", help="such as python3.12")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="which tests run in each environment")
    options = parser.parse_args()
    rows = []
    for python in options.pythons:
        rows.append(installed(python, options.tests))
        print(json.dumps(rows[-1]), flush=True)
        names = [row["python"] for row in rows]
        path = harness.write("installs", [*rows, *harness.kept("installs", "python", names)])
    print(f"written: {path}")
    sys.exit(any(row.get("failed") or row.get("error") for row in rows))


if __name__ == "__main__":
    main()
