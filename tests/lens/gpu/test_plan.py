"""Which jobs go to the Triton kernels; what these give is tested in tests/kernels and tests/gpu."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sightline.backends.call import make_call
from sightline.lens.gpu import plan as gpu_plan


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    gpu_plan._has_triton.cache_clear()
    yield
    gpu_plan._has_triton.cache_clear()


@pytest.mark.parametrize(
    "version, tested", [("3.2.0", False), ("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True), ("4.0", True)]
)
def test_only_a_triton_that_was_tested_runs_kernels(
    version: str, tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("triton")
    monkeypatch.setattr(module, "__version__", version, raising=False)
    monkeypatch.setitem(sys.modules, "triton", module)
    assert gpu_plan._has_triton() == tested


def test_without_triton_no_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not gpu_plan._has_triton()


@pytest.mark.parametrize("batch, heads, fit", [(65535, 1, True), (32768, 2, False), (8192, 12, False)])
def test_more_maps_than_a_launch_has_go_to_the_walk(
    batch: int, heads: int, fit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small windows of a picture, for a large batch of them: the second axis of a CUDA grid ends at 65,535."""
    monkeypatch.setattr(gpu_plan, "_has_triton", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    q = torch.zeros(1, 1, 1, 1).expand(batch, heads, 4, 8)
    call = SimpleNamespace(device=torch.device("cuda"), q=q, sizes=make_call(q, q, q).sizes)
    assert gpu_plan.for_kernels(call) == fit  # type: ignore[arg-type]
