"""A launch is taken for an earlier one only if a kernel's version could not differ; and gives what Triton gives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel

from sightline.kernels import launch as module
from sightline.kernels.launch import launch


class _Compiled(CompiledKernel):
    """What a compiled kernel shows of itself, with the launches that came to it."""

    module = None

    def __init__(self) -> None:
        self.launches: list[tuple] = []

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class _Kernel:
    """Compiles anew whenever it is asked, as Triton does for arguments that it tells apart."""

    def __init__(self) -> None:
        self.made: list[_Compiled] = []

    def __getitem__(self, grid):
        def compile(*arguments, **options):
            self.made.append(_Compiled())
            return self.made[-1]

        return compile


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(module, "_known", {})
    return _Kernel()


MEMORY = torch.zeros(64)
TILES = SimpleNamespace(base=MEMORY, shape=[8, 8], strides=[8, 1], block_shape=[4, 8])
GRID = (2, 3, 1)


def test_the_same_launch_is_looked_at_once(kernel):
    for _ in range(3):
        launch(kernel, GRID, (MEMORY,), (5, 0.5), (True, 16), (("num_warps", 4),))
    assert len(kernel.made) == 1
    ((grid, arguments), _) = kernel.made[0].launches
    assert grid == GRID
    assert arguments[1:] == (5, 0.5, True, 16)


@pytest.mark.parametrize(
    "tensors, numbers, settings, options",
    [
        ((MEMORY[1:],), (5, 0.5), (True, 16), (("num_warps", 4),)),  # memory that is not aligned
        ((MEMORY.half(),), (5, 0.5), (True, 16), (("num_warps", 4),)),
        ((MEMORY,), (16, 0.5), (True, 16), (("num_warps", 4),)),
        ((MEMORY,), (1, 0.5), (True, 16), (("num_warps", 4),)),
        ((MEMORY,), (1 << 40, 0.5), (True, 16), (("num_warps", 4),)),
        ((MEMORY,), (5, 0.25), (True, 16), (("num_warps", 4),)),
        ((MEMORY,), (5, 0.5), (False, 16), (("num_warps", 4),)),
        ((MEMORY,), (5, 0.5), (True, 16), (("num_warps", 8),)),
        ((TILES,), (5, 0.5), (True, 16), (("num_warps", 4),)),
    ],
)
def test_what_may_need_another_version_is_another_launch(kernel, tensors, numbers, settings, options):
    launch(kernel, GRID, (MEMORY,), (5, 0.5), (True, 16), (("num_warps", 4),))
    launch(kernel, GRID, tensors, numbers, settings, options)
    assert len(kernel.made) == 2
    assert not kernel.made[0].launches


def test_another_kernel_is_another_launch(kernel):
    other = _Kernel()
    for which in (kernel, other):
        launch(which, GRID, (MEMORY,), (), ())
    assert (len(kernel.made), len(other.made)) == (1, 1)


def test_only_so_many_are_remembered(kernel):
    for number in range(2 * module._MOST):
        launch(kernel, GRID, (MEMORY,), (number,), ())
    assert len(module._known) == module._MOST


@triton.jit
def _add(X, Y, n, amount, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i, mask=i < n, other=0.0) + amount, mask=i < n)


def test_the_interpreter_runs_every_launch():
    for n in (5, 40, 40):
        x, y = torch.randn(n), torch.zeros(n)
        launch(_add, (triton.cdiv(n, 16), 1, 1), (x, y), (n, 2.0), (16,))
        torch.testing.assert_close(y, x + 2)
