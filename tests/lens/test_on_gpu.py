"""Which jobs go to the Triton kernels; what these give is tested in tests/kernels and tests/gpu."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sightline.lens import on_gpu


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    on_gpu._has_triton.cache_clear()
    yield
    on_gpu._has_triton.cache_clear()


@pytest.mark.parametrize(
    "version, tested", [("3.2.0", False), ("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True), ("4.0", True)]
)
def test_only_a_triton_that_was_tested_runs_kernels(
    version: str, tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("triton")
    monkeypatch.setattr(module, "__version__", version, raising=False)
    monkeypatch.setitem(sys.modules, "triton", module)
    assert on_gpu._has_triton() == tested


def test_without_triton_no_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not on_gpu._has_triton()
