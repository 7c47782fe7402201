"""A launch is taken for an earlier one only if a kernel's version could not differ; and gives what Triton gives."""

from __future__ import annotations

from contextlib import contextmanager
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
    ],
)
def test_what_may_need_another_version_is_another_launch(kernel, tensors, numbers, settings, options):
    launch(kernel, GRID, (MEMORY,), (5, 0.5), (True, 16), (("num_warps", 4),))
    launch(kernel, GRID, tensors, numbers, settings, options)
    assert len(kernel.made) == 2
    assert not kernel.made[0].launches


def test_a_descriptor_of_other_tiles_is_another_launch(kernel):
    shapes = {"shape": [8, 8], "strides": [8, 1], "block_shape": [4, 8]}
    others = [
        shapes,
        shapes | {"shape": [4, 8]},
        shapes | {"strides": [16, 1]},
        shapes | {"block_shape": [2, 8]},
        shapes,
    ]
    for about in others:
        launch(kernel, GRID, (MEMORY, SimpleNamespace(base=MEMORY, **about)), (), ())
    assert len(kernel.made) == 4


def test_another_kernel_is_another_launch(kernel):
    other = _Kernel()
    for which in (kernel, other):
        launch(which, GRID, (MEMORY,), (), ())
    assert (len(kernel.made), len(other.made)) == (1, 1)


def test_only_so_many_are_remembered(kernel):
    for number in range(3 * module._MOST):
        launch(kernel, GRID, (MEMORY,), (number,), ())
        assert len(module._known) <= module._MOST
    launch(kernel, GRID, (MEMORY,), (number,), ())
    assert len(kernel.made) == 3 * module._MOST


@pytest.mark.parametrize("lies_on, entered", [(-1, []), (0, []), (1, ["cuda:1"])])
def test_kernels_go_to_the_device_of_their_tensors(lies_on, entered, monkeypatch):
    """Of a model over several GPUs most layers lie on another device than the current one."""
    went: list[str] = []

    @contextmanager
    def device(which):
        went.append(which)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    first = SimpleNamespace(is_cuda=lies_on >= 0, get_device=lambda: lies_on, device=f"cuda:{lies_on}")
    assert module.on_its_device(lambda *given, **options: (given[1:], options))(first, 1, two=2) == ((1,), {"two": 2})
    assert went == entered


@triton.jit
def _add(X, Y, n, amount, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i, mask=i < n, other=0.0) + amount, mask=i < n)


def test_the_interpreter_runs_every_launch():
    for n in (5, 40, 40):
        x, y = torch.randn(n), torch.zeros(n)
        launch(_add, (triton.cdiv(n, 16), 1, 1), (x, y), (n, 2.0), (16,))
        torch.testing.assert_close(y, x + 2)
