"""The compiled kernel against numpy, and what happens where it cannot be compiled. The tests need a C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.kernels.native import build
from sightline.kernels.native import tile as native_tile

# Where a kernel comes from is the same however well it is compiled, and at its best that takes a second.
QUICK = tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS)
FLAGS = (*QUICK, f"-DLANES={build.lanes()}")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of its own, and nothing remembered before or after."""
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", QUICK)
    native_tile.found.cache_clear()
    yield tmp_path / f"compiled-{os.getuid()}"
    native_tile.found.cache_clear()


@pytest.fixture(scope="module", params=build.LANES)
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> native_tile.Kernel:
    """The kernel, compiled here and now, for some number of lanes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGHTLINE_LANES", str(request.param))
        patch.setenv("SIGHTLINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        native_tile.found.cache_clear()
        found = native_tile.kernel()
    native_tile.found.cache_clear()
    assert found is not None
    return found


@settings(max_examples=100)
@given(
    st.integers(1, 12), st.integers(1, 70), st.integers(1, 4), st.floats(0.1, 140.0), st.integers(0, 2**32 - 1),
    st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_all_that_is_made_of_a_tile(kernel, groups, width, each, steep, seed, shaded, rows, pixels, keep, sinks):
    draw, height = np.random.default_rng(seed), groups * each
    logs = draw.uniform(-steep, 0, (height, width)).astype(np.float32)
    first, stop = np.sort(draw.integers(-3, width + 4, (2, height)), 0).astype(np.int32)
    places = draw.integers(-50, 100, height).astype(np.float32)
    before = draw.uniform(0, 1, (4, height)).astype(np.float32)
    before[0] = np.where(draw.random(height) < 0.5, -1e30, -steep / 2)
    result, strip = before.copy(), np.full((groups, width + 2), 7, np.float32)
    weights = np.full((height, width + 3), 7, np.float32)
    factors = draw.uniform(0, 1, height).astype(np.float32)
    kernel(
        logs.ctypes.data, height, width, *((first.ctypes.data, stop.ctypes.data) if shaded else (None, None)),
        places.ctypes.data, result.ctypes.data if rows else None, height,
        strip.ctypes.data if pixels else None, width + 2, each, weights.ctypes.data if keep else None,
        width + 3, factors.ctypes.data if sinks else None,
    )  # fmt: skip
    column = np.arange(width)
    seen = (column >= first[:, None]) & (column < stop[:, None]) if shaded else np.ones_like(logs, bool)
    exact = np.where(seen, np.exp2(logs.astype(np.float64)), 0.0)
    far = np.abs(places[:, None].astype(np.float64) - column)
    largest = np.maximum(before[0], np.where(seen, logs, -np.inf).max(-1))
    sums = [largest, *(b + (exact * x).sum(-1) for b, x in zip(before[1:], (logs, far, 1.0), strict=True))]
    close = {"rtol": 2e-6, "atol": 1e-36}
    for got, want in zip(result, sums if rows else before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    exact = exact * factors[:, None] if sinks else exact
    np.testing.assert_allclose(strip[:, :width], exact.reshape(groups, each, width).sum(1) if pixels else 7, **close)
    assert (strip[:, width:] == 7).all()
    np.testing.assert_allclose(weights[:, :width], exact if keep else 7, **close)
    assert (weights[:, width:] == 7).all()


def test_powers_are_right_to_the_last_bits(kernel):
    logs = np.linspace(-125, 1, 100_000, dtype=np.float32)[None]
    weights, places = np.empty_like(logs), np.zeros(1, np.float32)
    seen = (None, None, places.ctypes.data)
    given = (logs.ctypes.data, 1, logs.size, *seen, None, 0, None, 0, 1, weights.ctypes.data, 0, None)
    kernel(*given)
    np.testing.assert_allclose(weights, np.exp2(logs.astype(np.float64)), rtol=2.5e-7)
    for log, weight in ((-1e30, 0.0), (-np.inf, 0.0), (200.0, np.inf), (np.inf, np.inf), (np.nan, np.nan)):
        logs[:] = log
        kernel(*given)
        np.testing.assert_array_equal(weights, weight, str(log))


def test_lanes_are_a_number_that_there_is(folder, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_LANES", "5")
    with pytest.raises(InputError, match="expected: 4, 8 or 16"):
        native_tile.kernel()


def test_it_is_compiled_once(folder, monkeypatch):
    assert native_tile.kernel() is not None
    (made,) = folder.iterdir()
    written = made.stat().st_mtime_ns
    native_tile.found.cache_clear()
    monkeypatch.setattr(build, "_compiled", lambda *_: pytest.fail("there is one already"))
    assert native_tile.kernel() is not None
    assert made.stat().st_mtime_ns == written


@pytest.mark.parametrize("damage", [b"", b"not a library"], ids=["empty", "foreign"])
def test_a_damaged_file_is_made_anew(folder, damage):
    folder.mkdir(mode=0o700)
    path = folder / f"cpu_tile-{build._sum(build._compiler(), FLAGS)}.so"
    path.write_bytes(damage)
    assert native_tile.kernel() is not None
    assert [x.name for x in folder.iterdir()] == [path.name]
    assert path.stat().st_size > 1000


@pytest.fixture
def wrong(tmp_path):
    """A source that computes something else."""
    source = tmp_path / "wrong.c"
    source.write_text(build.SOURCE.read_text().replace("all(1.53375768e-4f)", "all(1.0f)"))
    assert source.read_text() != build.SOURCE.read_text()
    return source


def test_a_kernel_that_computes_wrongly_is_not_used(folder, monkeypatch, wrong):
    monkeypatch.setattr(build, "SOURCE", wrong)
    kernel, said = native_tile.found()
    assert kernel is None
    assert said.endswith("computes wrongly")
    assert not list(folder.iterdir())


def test_a_wrong_one_that_lies_there_is_replaced(folder, wrong):
    folder.mkdir(mode=0o700)
    path = folder / f"cpu_tile-{build._sum(build._compiler(), FLAGS)}.so"
    subprocess.run([build._compiler(), *FLAGS, "-o", path, wrong], check=True)
    before = path.read_bytes()
    assert native_tile.kernel() is not None
    assert path.read_bytes() != before


@pytest.mark.parametrize("whose", ["the folder", "the file"])
def test_what_others_could_have_written_is_not_run(folder, monkeypatch, whose):
    assert native_tile.kernel() is not None
    (made,) = folder.iterdir()
    native_tile.found.cache_clear()
    (folder if whose == "the folder" else made).chmod(0o777)
    loaded = []
    load = native_tile._load
    monkeypatch.setattr(native_tile, "_load", lambda path: loaded.append(path) or load(path))
    found = native_tile.kernel()
    assert made not in loaded
    assert (found is None) == (whose == "the folder"), "a file is made anew, a folder is not"
    assert made.stat().st_mode & 0o022 == 0 or whose == "the folder"


def test_without_a_compiler_there_is_none(folder, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert native_tile.found() == (None, "there is no C compiler")
    assert not folder.exists()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel brings along, made by the compiler of this machine."""
    place = tmp_path_factory.mktemp("brought")
    for count, march in zip(build.LANES, ("x86-64", "x86-64-v3", "x86-64-v4"), strict=True):
        flags = [f"-march={march}" if flag == "-march=native" else flag for flag in build.FLAGS]
        made = place / build.brought_name(count)
        subprocess.run([build._compiler(), *flags, f"-DLANES={count}", "-o", made, build.SOURCE], check=True)
    return place


@pytest.fixture
def brought(monkeypatch, libraries):
    """The wheel's libraries, and no compiler."""
    monkeypatch.setattr(build, "BROUGHT", libraries)
    monkeypatch.setattr(shutil, "which", lambda _: None)


def test_without_a_compiler_the_wheel_s_own_runs(folder, brought):
    kernel, said = native_tile.found()
    assert kernel is not None
    wide = max(count for count in build.LANES if set().union(*map(build.NEEDS.get, (4, count))) <= build.instructions())
    assert said == f"from the wheel, {wide} numbers at once (there is no C compiler)"
    assert not folder.exists(), "nothing is written for it"


@pytest.mark.parametrize("has, wide", [((), 4), (("avx2", "avx512f"), 4), (build.NEEDS[8], 8)])
def test_only_what_the_processor_has(folder, brought, monkeypatch, has, wide):
    monkeypatch.setattr(build, "instructions", lambda: frozenset(has))
    monkeypatch.setenv("SIGHTLINE_LANES", "16")
    assert native_tile.found().said.startswith(f"from the wheel, {wide} numbers")


def test_a_library_of_the_wheel_that_computes_wrongly_is_passed_over(folder, wrong, monkeypatch, tmp_path):
    place = tmp_path / "brought"
    place.mkdir()
    first, *others = (place / build.brought_name(count) for count in build.LANES)
    subprocess.run([build._compiler(), *FLAGS, "-o", first, wrong], check=True)
    for path in others:
        shutil.copy(first, path)
    monkeypatch.setattr(build, "BROUGHT", place)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert native_tile.found() == (None, "there is no C compiler")


def test_a_compiler_that_fails_leaves_nothing(folder, monkeypatch):
    monkeypatch.setattr(build, "_compiler", lambda: shutil.which("false"))
    assert native_tile.found() == (None, "false failed: exit code 1")
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_to(monkeypatch, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(occupied))
    native_tile.found.cache_clear()
    assert native_tile.kernel() is None
    native_tile.found.cache_clear()


def test_a_home_that_cannot_be_found(folder, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "cache_folder", nowhere)
    assert native_tile.kernel() is None


def test_it_can_be_switched_off(folder, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_COMPILE", "0")
    assert native_tile.found() == (None, "SIGHTLINE_COMPILE=0 leaves it to torch's operations")
    assert not folder.exists()
