"""Ray is outside of the environment of these tests: `make ray-test` runs its own, and writes down how they ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sightline as sl
from sightline.errors import MissingExtraError
from sightline.surveying import on_ray

ROOT = Path(__file__).resolve().parents[2]


def test_the_recorded_run_was_of_the_pinned_version_and_passed() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "ray-cpu.json").read_text("utf-8"))
    assert found["command"] == "make ray-test"
    for package in ("ray", "pyarrow"):
        assert f"\n{package}=={found['machine'][package]}\n" in (ROOT / "constraints.txt").read_text("utf-8")
    (run,) = found["results"]
    tests = (Path(__file__).with_name("survey_on_ray.py")).read_text("utf-8").count("\ndef test_")
    assert (run["passed"], run["failed"], run["skipped"]) == (tests, 0, 0)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"(?s)needs ray.*sightline\[ray\]"):
        sl.survey("minilm", ["a text"], tmp_path / "out", "ray")


@pytest.mark.parametrize("address, running", [(None, False), (None, True), ("10.0.0.1:6379", True)])
def test_a_cluster_that_is_there_is_joined(monkeypatch: pytest.MonkeyPatch, address: str | None, running: bool) -> None:
    """Ray refuses to be told the size of one that `ray start` began, and looks for it itself."""

    class Ray:
        joined: bool | None = None

        def init(self, num_cpus: int | None = None, **_: object) -> None:
            if running and num_cpus is not None:
                raise ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")
            assert running or num_cpus == 3
            self.joined = running

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    ray = Ray()
    on_ray._join(ray, 3)
    assert ray.joined is running
