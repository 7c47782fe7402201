"""One version of a kernel does every length; a launch is taken for an earlier one only if the version is the same."""

from __future__ import annotations

import importlib
import inspect
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel

from sightline.kernels import launch as module
from sightline.kernels.launch import kernel as declared
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

    given, constants = ["X", "n", "amount"], ["FLAG", "BLOCK"]

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
GIVEN, CONSTANTS = {"X": MEMORY, "n": 5, "amount": 0.5}, {"FLAG": True, "BLOCK": 16}


def test_arguments_are_found_by_name(kernel):
    for _ in range(3):
        launch(
            kernel, (2, 3), {"amount": 0.5, "X": MEMORY, "n": 5, "unused": 7}, {"BLOCK": 16, "FLAG": True}, num_warps=4
        )
    assert len(kernel.made) == 1
    ((grid, arguments), _) = kernel.made[0].launches
    assert grid == (2, 3, 1)
    assert arguments[0] is MEMORY
    assert arguments[1:] == (5, 0.5, True, 16)


@pytest.mark.parametrize("numbers", [{"n": 16}, {"n": 1}, {"n": 1 << 40}, {"amount": 0.25}], ids=str)
def test_other_numbers_are_the_same_kernel(kernel, numbers):
    launch(kernel, (2,), GIVEN, CONSTANTS)
    launch(kernel, (7,), GIVEN | numbers, CONSTANTS)
    assert len(kernel.made) == 1


def test_other_memory_of_the_same_kind_is_the_same_kernel(kernel):
    for x in (MEMORY, torch.zeros(7), torch.zeros(3, 5).T):
        launch(kernel, (2,), GIVEN | {"X": x}, CONSTANTS)
    assert len(kernel.made) == 1


@pytest.mark.parametrize(
    "given, constants, options",
    [
        ({"X": MEMORY[1:]}, {}, {}),  # memory that is not aligned
        ({"X": MEMORY.half()}, {}, {}),
        ({}, {"FLAG": False}, {}),
        ({}, {}, {"num_warps": 8}),
    ],
)
def test_what_may_need_another_version_is_another_launch(kernel, given, constants, options):
    launch(kernel, (2,), GIVEN, CONSTANTS, num_warps=4)
    launch(kernel, (2,), GIVEN | given, CONSTANTS | constants, **{"num_warps": 4} | options)
    assert len(kernel.made) == 2
    assert not kernel.made[0].launches


def test_a_descriptor_of_other_tiles_is_another_launch(kernel):
    shapes = {"shape": [8, 8], "strides": [8, 1], "block_shape": [4, 8]}
    kernel.given = ["X", "TMA"]
    for about in (shapes, shapes | {"shape": [4, 8]}, shapes | {"strides": [16, 1]}, shapes | {"block_shape": [2, 8]}):
        launch(kernel, (2,), {"X": MEMORY, "TMA": SimpleNamespace(base=MEMORY, **about)}, CONSTANTS)
    assert len(kernel.made) == 2


def test_memory_that_is_not_there_is_not_asked_for(kernel):
    for _ in range(2):
        launch(kernel, (2,), {"Y": MEMORY} | GIVEN | {"X": None}, CONSTANTS)
    assert kernel.made[0].launches[0][1][0] is MEMORY


def test_another_kernel_is_another_launch(kernel):
    other = _Kernel()
    for which in (kernel, other):
        launch(which, (2,), GIVEN, CONSTANTS)
    assert (len(kernel.made), len(other.made)) == (1, 1)


def _every_kernel():
    for file in sorted(Path(module.__file__).parent.glob("*.py")):
        of_file = importlib.import_module(f"sightline.kernels.{file.stem}")
        for name, thing in vars(of_file).items():
            if hasattr(thing, "given") and hasattr(thing, "constants") and thing.fn.__module__ == of_file.__name__:
                yield pytest.param(thing, id=f"{file.stem}.{name}")


@pytest.mark.parametrize("which", list(_every_kernel()))
def test_the_type_of_every_number_is_declared(which):
    """Else there would be a version for multiples of 16, one for 1, and one for numbers beyond 32 bits."""
    for parameter in inspect.signature(which.fn).parameters.values():
        name, declared = parameter.name, str(parameter.annotation)
        if name.isupper():
            assert parameter.annotation is inspect.Parameter.empty or "constexpr" in declared, name
        else:
            assert declared in ("tl.int32", "tl.int64", "tl.float32"), name


def test_all_kernels_are_declared_so():
    assert len(list(_every_kernel())) == 17


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


@declared()
def _add(X, Y, n: tl.int32, amount: tl.float32, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i, mask=i < n, other=0.0) + amount, mask=i < n)


def test_the_interpreter_runs_every_launch():
    for n in (5, 40, 40):
        x, y = torch.randn(n), torch.zeros(n)
        launch(_add, (triton.cdiv(n, 16),), {"X": x, "Y": y, "n": n, "amount": 2.0}, {"BLOCK": 16})
        torch.testing.assert_close(y, x + 2)
