"""What every test gets: a fixed seed, reproducible Hypothesis cases, and one thread per worker."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import pytest
import torch

from quick_interpreter import quicken

GPU_TESTS = Path(__file__).parent / "gpu"

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
# `HYPOTHESIS_PROFILE=default` draws new cases every time.
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if not torch.cuda.is_available():
    # Triton reads this when it is first imported: kernels then run on the CPU, in its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Importing everything makes half a million objects that stay: nothing to collect among them, now or later.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported out of all later garbage collections."""
    gc.freeze()
    gc.enable()
    # The compiler makes millions of objects: to look for garbage among them as often as Python does by itself took a
    # tenth of the time.
    gc.set_threshold(20_000, 10, 10)
    quicken()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Collect the GPU tests everywhere, and run them only where there is a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers whichever tests run, and in whichever order."""
    if torch.cuda.is_available():
        try:
            torch.manual_seed(0)
        except RuntimeError as error:
            # What the test that did it has said is not said again by all that follow.
            pytest.fail(f"a test before this one has lost the GPU: {str(error).splitlines()[0]}", pytrace=False)
    else:
        # The same for the CPU, without noting a traceback for a GPU that may come later: that takes milliseconds.
        torch.default_generator.manual_seed(0)
