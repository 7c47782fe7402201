"""Whatever happens to one job, the next one is done: a run that breaks is a failed job that says why."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from explore_cases import sights, words
from model_files import llama_tensors, write_folder
from sightline.explore.model_runs import Models, Report, RunRequest
from sightline.explore.run import Run
from sightline.web.jobs import OVER, Job, JobQueue, performer
from sightline.web.scheduler import Workers
from sightline.web.service import Service
from web.conftest import Client


def panic() -> BaseException:
    """What a panic of a library in Rust looks like: a class of its own, right under BaseException."""
    return type("PanicException", (BaseException,), {})("called `Option::unwrap()` on a `None` value")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


BROKEN: dict[str, tuple[Callable[[], BaseException], str]] = {
    "panic": (panic, "PanicException: called `Option::unwrap()`"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "generator": (GeneratorExit, "GeneratorExit"),
    "memory": (MemoryError, "MemoryError"),
    "cancelled": (asyncio.CancelledError, "CancelledError"),
    "unspeakable": (Unspeakable, "Unspeakable"),
}


def perform(job: Job, report: Report) -> Run:
    if job.request.text in BROKEN:
        raise BROKEN[job.request.text][0]()
    return Run(job.id, sights(3, layers=1), words(3), text=job.request.text)


@pytest.fixture
def jobs() -> Iterator[JobQueue]:
    made = JobQueue(perform, finished=lambda run: None, dropped=lambda id: None)
    yield made
    made.close()


def over(job: Job) -> Job:
    end = time.monotonic() + 20
    while not job.over:
        assert time.monotonic() < end, f"the job stays {job.state}"
        time.sleep(0.005)
    return job


@pytest.mark.parametrize("end", OVER)
def test_the_last_word_is_told_though_it_comes_while_another_is_told(jobs: JobQueue, end: str) -> None:
    """A page whose stream ended before it would ask again only seconds later."""
    job = Job("one", RunRequest("good", "words"), state="running")

    async def listen() -> list[str]:
        told = []
        async for news in jobs.events(job):
            told.append(news["state"])
            if len(told) == 1:
                jobs._set(job, state=end)
        return told

    assert asyncio.run(listen()) == ["running", end]


# What would have ended the thread is shown by pytest as a warning, which is an error here.
@pytest.mark.parametrize("kind", BROKEN)
def test_the_queue_goes_on_after_whatever_a_run_raises(jobs: JobQueue, kind: str) -> None:
    broken, good = jobs.put(RunRequest(kind, "words")), jobs.put(RunRequest("good", "words"))
    assert over(broken).state == "failed"
    assert broken.problem is not None
    assert broken.problem["got"].startswith(BROKEN[kind][1])
    assert set(broken.problem) == {"error", "expected", "got", "try"}
    assert over(good).state == "done"


@pytest.mark.parametrize("where", ["finished", "dropped"])
def test_the_queue_goes_on_where_a_run_cannot_be_put_away(where: str) -> None:
    def broken(_: object) -> None:
        raise panic()

    parts: dict[str, Callable[..., None]] = {"finished": lambda run: None, "dropped": lambda id: None, where: broken}
    jobs = JobQueue(perform, **parts)
    try:
        first = over(jobs.put(RunRequest("panic" if where == "dropped" else "good", "words")))
        assert first.state == "failed"
        assert over(jobs.put(RunRequest("memory", "words"))).state == "failed"
    finally:
        jobs.close()


def test_a_panic_of_a_tokenizer_is_a_failed_job(tmp_path: Path) -> None:
    """A pattern that tries every way to cut a text gives up by a panic, which is no Exception."""
    folder = write_folder(tmp_path / "model", llama_tensors())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    vocabulary = {"[UNK]": 0, "kids": 1}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    tokenizer |= {"pre_tokenizer": split, "post_processor": None, "decoder": None}
    tokenizer |= {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    models = Models([str(folder)])
    service = Service(performer(models, lambda run: None), models, threads=1)
    try:
        broken = service.order(RunRequest("a" * 40 + "b", "model"))
        good = service.order(RunRequest("kids", "model"))
        assert over(broken).state == "failed"
        assert broken.problem["error"] == "the tokenizer of model breaks on this text"
        assert "retry-limit" in broken.problem["got"]
        assert over(good).state == "done"
        assert [run["title"] for run in Client(service).get("/api/runs").json()["runs"]] == ["kids"]
    finally:
        service.close()


def test_a_model_without_a_tokenizer_is_a_failed_job(tmp_path: Path) -> None:
    models = Models([str(write_folder(tmp_path / "model", llama_tensors()))])
    service = Service(performer(models, lambda run: None), models, threads=1)
    try:
        job = over(service.order(RunRequest("kids", "model")))
        assert job.problem is not None
        assert job.problem["error"] == "model cannot read texts"
    finally:
        service.close()


def test_a_step_that_panics_ends_no_thread() -> None:
    """Neither one that somebody waits for, nor one in the background, nor what makes those."""
    workers = Workers(1)
    done = threading.Event()

    def broken() -> None:
        raise panic()

    def steps() -> Iterator[Callable[[], None]]:
        yield broken
        raise panic()

    try:
        workers.in_background("a", steps())
        workers.in_background("b", iter([broken, done.set]))
        assert done.wait(10)
        assert workers.submit(lambda: 7).result(10) == 7
    finally:
        workers.close()


@pytest.mark.parametrize("kind", ["panic", "interrupt", "exit", "stop"])
def test_what_a_step_raises_reaches_its_request_and_not_the_server(
    client: Client, run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KeyboardInterrupt and SystemExit would leave the loop of the server, StopIteration would never arrive."""

    def broken(*_: object) -> None:
        raise StopIteration if kind == "stop" else BROKEN[kind][0]()

    monkeypatch.setattr(run.view(0, 0), "row", broken)
    answer = client.get(f"/api/runs/{run.id}/rows/0/0?q=3")
    assert answer.status_code == 500
    assert set(answer.json()) == {"error", "expected", "got", "try"}
    assert client.get(f"/api/runs/{run.id}/rows/0/1?q=3").status_code == 200


def test_a_growing_run_that_is_closed_is_taken_back_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Its folder goes with it, and whatever is written there next raises."""
    handed, closed = threading.Event(), threading.Event()

    def writing(job: Job, report: Report) -> Run:
        handed.set()
        assert closed.wait(20)
        raise FileNotFoundError("the folder is gone")

    jobs = JobQueue(writing, finished=lambda run: None, dropped=lambda id: None)
    try:
        job = jobs.put(RunRequest("a text", "words"))
        assert handed.wait(20)
        jobs.cancel(job.id)
        closed.set()
        assert over(job).state == "cancelled"
        assert job.problem is None
        assert not caplog.records
    finally:
        jobs.close()


def test_a_text_that_was_taken_back_can_be_run_again_at_once() -> None:
    """The first job ends at its next layer: whoever asks again until then is not given one that will never be whole."""
    handed, go = threading.Event(), threading.Event()

    def slow(job: Job, report: Report) -> Run:
        handed.set()
        assert go.wait(20)
        report(stage="running")
        return perform(job, report)

    jobs = JobQueue(slow, finished=lambda run: None, dropped=lambda id: None)
    try:
        first = jobs.put(RunRequest("a text", "words"))
        assert handed.wait(20)
        jobs.cancel(first.id)
        again = jobs.put(RunRequest("a text", "words"))
        go.set()
        assert over(again).state == "done"
        assert over(first).state == "cancelled"
    finally:
        go.set()
        jobs.close()


def test_a_run_is_taken_back_before_its_folder_goes() -> None:
    """Else what it misses there would be shown as its failure."""
    handed, closed = threading.Event(), threading.Event()

    def writing(job: Job, report: Report) -> Run:
        def cleanup() -> None:
            closed.set()
            end = time.monotonic() + 0.3
            while not job.over and time.monotonic() < end:  # until the other thread has missed the folder
                time.sleep(0.005)

        run = Run(job.id, sights(3, layers=1), words(3), text=job.request.text, cleanup=cleanup)
        run.growing = True
        service.library.add(run)
        handed.set()
        assert closed.wait(20)
        raise FileNotFoundError("the folder is gone")

    service = Service(writing)
    try:
        job = service.jobs.put(RunRequest("a text", "words"))
        assert handed.wait(20)
        service.close_run(job.id)
        assert over(job).state == "cancelled"
        assert job.id not in service.library
    finally:
        service.close()
