"""Surveys on Ray: the rows of the local engine, on one cluster of two workers; `make ray-test` runs this.

Ray is large and slow to start, and no part of the environment of the other tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sightline as sl
from sightline.surveying import parts
from surveys import PLAY

DRIVER = """
import os, signal
import sightline as sl

def report(done, total, errors):
    print(done, flush=True)
    if done >= 2 and {kill}:
        os.kill(os.getpid(), signal.SIGKILL)

sl.survey("minilm", {texts!r}, {out!r}, "ray", workers=2, per_part=1, report=report)
"""


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["key"], row["number"] or 0, row["head"] or 0))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ordered(sl.survey("minilm", PLAY, tmp_path_factory.mktemp("alone") / "out", workers=0).rows())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def test_rows_are_those_of_the_local_engine(cluster: Any, alone: list, tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    texts = [*PLAY, {"name": "bad", "text": 3}]
    found = sl.survey("minilm", texts, tmp_path / "out", "ray", workers=2, report=lambda *said: seen.append(said))
    assert (found.texts, found.errors) == (9, 1)
    assert seen[-1] == (9, 9, 1)
    assert [row for row in ordered(found.rows()) if row["error"] is None] == alone
    again = sl.survey("minilm", texts, tmp_path / "out", "ray", workers=2)  # nothing left to do
    assert len(again.rows()) == len(alone) + 1


def test_a_worker_that_is_killed_loses_nothing(cluster: Any, alone: list, tmp_path: Path) -> None:
    killed: list[int] = []

    def report(done: int, total: int, errors: int) -> None:
        if done and not killed:
            for process in _workers():
                killed.append(process)
                os.kill(process, signal.SIGKILL)
                break

    found = sl.survey("minilm", PLAY, tmp_path / "out", "ray", workers=2, per_part=1, report=report)
    assert killed
    assert ordered(found.rows()) == alone


def _workers() -> list[int]:
    """The processes that hold a survey's lock, other than this one."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                files = [os.readlink(file) for file in (process / "fd").iterdir()]
            except OSError:
                continue
            if any(file.endswith(".workers.lock") for file in files):
                found.append(int(process.name))
    return found


def test_a_driver_that_is_killed_goes_on_where_it_was(cluster: Any, alone: list, tmp_path: Path) -> None:
    code = DRIVER.format(texts=PLAY, out=str(tmp_path / "out"), kill=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == -9, done.stderr
    assert "INFO" not in done.stderr, "the plans of Ray are nobody's business"
    assert "WARNING" not in done.stderr, done.stderr
    assert 0 < len(parts.done(tmp_path / "out")) <= len(PLAY)
    found = sl.survey("minilm", PLAY, tmp_path / "out", workers=0)  # the other engine goes on
    assert ordered(found.rows()) == alone


def test_ctrl_c_ends_the_survey_and_its_cluster(cluster: Any, tmp_path: Path) -> None:
    code = DRIVER.format(
        texts=[f"{line} {i}" for i in range(40) for line in PLAY], out=str(tmp_path / "out"), kill=False
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert driver.stdout is not None
    assert driver.stdout.readline().strip() == "0"
    driver.stdout.readline()
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) != 0
    driver.stdout.close()
    end = time.monotonic() + 30
    while any(str(tmp_path) in one for one in map(_lock, _workers())) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [one for one in map(_lock, _workers()) if str(tmp_path) in one]


def _lock(process: int) -> str:
    try:
        return " ".join(os.readlink(file) for file in (Path("/proc") / str(process) / "fd").iterdir())
    except OSError:
        return ""
