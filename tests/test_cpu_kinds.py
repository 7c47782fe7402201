"""The numbers do not depend on the CPU: a part of the tests runs again under every kind of kernels that torch has here.

Torch has its CPU kernels compiled for several kinds of processors and takes the widest; `ATEN_CPU_CAPABILITY` names
another one, in a new process. Tests of that part are marked `cpu_kernels`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent

# What the processor must be able to do for a kind, in the words of /proc/cpuinfo.
NEEDS = {
    "default": set(),
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"},
}

# The kind is asked for in the process that runs the tests: one that torch does not know is passed over in silence.
RUN = """
import sys, pytest, torch
found = torch.backends.cpu.get_cpu_capability().replace("NO AVX", "DEFAULT")  # as torch 2.6 says it
assert found.lower() == sys.argv[1], f"asked for {sys.argv[1]}, got {found}"
sys.exit(pytest.main(["-m", "cpu_kernels", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
"""


def kinds() -> list[str]:
    """The kinds of kernels that this CPU can run."""
    try:
        flags = set(re.findall(r"\S+", re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1]))
    except (OSError, TypeError):  # another system, or another family of processors
        return ["default"]
    return [kind for kind, needs in NEEDS.items() if needs <= flags]


def marked() -> list[str]:
    """The files with tests of that part; to look into all others would take longer than to run it."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    return [str(path) for path in sorted(files) if "pytest.mark.cpu_kernels" in path.read_text("utf-8")]


# All tests run under the kind that torch takes by itself, the marked ones among them.
OTHERS = [kind for kind in kinds() if kind != torch.backends.cpu.get_cpu_capability().lower()]


@pytest.mark.parametrize("kind", OTHERS)
def test_the_marked_tests_pass_under_every_kind(kind):
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"ATEN_CPU_CAPABILITY": kind, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, kind, *marked()],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 100, "the marked part is there"


def test_the_kind_that_torch_took_by_itself_is_among_them():
    took = torch.backends.cpu.get_cpu_capability().lower()
    assert took in kinds() or took not in NEEDS
