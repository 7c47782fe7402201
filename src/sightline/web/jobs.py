"""Texts that wait for a model: one runs at a time, a few wait, and each says where it stands."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sightline.errors import SightlineError
from sightline.explore import effects
from sightline.explore.effects import EffectsRequest, HeadEffects
from sightline.explore.image_runs import watched_image
from sightline.explore.model_runs import Models, RunRequest, watched
from sightline.explore.once_more import Report
from sightline.explore.readings import ReadingRequest, compute
from sightline.explore.reasons import told
from sightline.explore.run import Run, as_run
from sightline.explore.writing import Pace
from sightline.watching import Seen
from sightline.watching import load as load_run
from sightline.web.problems import Problem, from_error

log = logging.getLogger("sightline.web")
Asked = RunRequest | ReadingRequest | EffectsRequest


OVER = ("done", "failed", "cancelled")


class Cancelled(Exception):
    """Nobody wants this run any more."""


@dataclass
class Job:
    """One request and where it stands: queued, running, done, failed or cancelled."""

    id: str
    request: Asked
    state: str = "queued"
    stage: str = "waiting"
    done: int = 0
    total: int = 0
    problem: dict[str, str] | None = None
    made: float = field(default_factory=time.time)
    version: int = 0
    looks: int = 0  # how often the run was handed out before it was there
    cancelled: threading.Event = field(default_factory=threading.Event)
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.cancelled)

    def about(self, position: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "stage": self.stage,
            "done": self.done,
            "total": self.total,
            "position": position,
            "problem": self.problem,
            "model": self.request.model,
            "title": self.request.text[:80],
        }

    @property
    def makes_run(self) -> bool:
        """Whether a run comes of it that whoever looks at this server may open, and not a reading of one."""
        return not isinstance(self.request, ReadingRequest)

    @property
    def over(self) -> bool:
        return self.state in OVER


# What a job gives.
Made = Run | HeadEffects
# Does one job, reporting its progress; gives what was made, and may hand out a growing run before.
Perform = Callable[[Job, Report], Made]


class JobQueue:
    """The queue of jobs and the one thread that does them."""

    def __init__(
        self,
        perform: Perform,
        finished: Callable[[Made], None],
        dropped: Callable[[str], None],
        waiting: int = 4,
        kept: int = 32,
    ) -> None:
        self.perform, self.finished, self.dropped = perform, finished, dropped
        self.limit, self.kept = waiting, kept
        self.by_id: dict[str, Job] = {}
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._changed: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False

    def put(self, request: Asked) -> Job:
        """Take a request; the same one twice is one job, unless the first was taken back and has still to end."""
        id = request.id
        with self._lock:
            known = self.by_id.get(id)
            if known is not None and not known.over and not known.cancelled.is_set():
                return known
            waiting = [job for job in self.by_id.values() if job.state == "queued"]
            if len(waiting) >= self.limit:
                raise Problem(
                    429,
                    "too many texts wait already",
                    expected=f"at most {self.limit} waiting",
                    got=f"{len(waiting)} waiting, one running",
                    hint="again in a little while",
                    retry_after=5,
                )
            self._trim()
            job = self.by_id[id] = Job(id, request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="runner", daemon=True)
                self._thread.start()
            self._queue.put(job)
        return job

    def done(self, request: Asked) -> Job:
        """The job of a run that is there already."""
        return self.by_id.setdefault(request.id, Job(request.id, request, state="done", stage="done"))

    def position(self, job: Job) -> int:
        """0 for the one that runs or is over, 1 for the next."""
        if job.state != "queued":
            return 0
        ahead = [t for t in self.by_id.values() if t.state == "queued" and t.made <= job.made]
        return len(ahead)

    def cancel(self, id: str) -> None:
        """Take a job back; one that runs stops at its next layer."""
        job = self.by_id.get(id)
        if job is not None and not job.over:
            job.cancelled.set()
            job.pace.wake()
            if job.state == "queued":
                self._set(job, state="cancelled")

    def forget(self, id: str) -> None:
        """Take a job back, and say no more about it."""
        self.cancel(id)
        job = self.by_id.get(id)
        if job is not None and job.over:
            self.by_id.pop(id, None)

    async def events(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """What happens to a job, as it happens, until it is over."""
        changed = asyncio.Event()
        entry = (asyncio.get_running_loop(), changed)
        self._changed.append(entry)
        last = None
        try:
            while True:
                changed.clear()
                now = job.about(self.position(job))
                if now != last:
                    yield now
                    last = now
                if now["state"] in OVER or self._ending:  # as it was told: it may have ended since
                    return
                await changed.wait()
                await asyncio.sleep(0.05)  # a browser needs no more than twenty a second
        finally:
            self._changed.remove(entry)

    def end_streams(self) -> None:
        """Let everyone who listens go: the server is about to stop."""
        self._ending = True
        self._tell()

    def close(self) -> None:
        """Stop: the running job is cancelled, the others are dropped."""
        for id in list(self.by_id):
            self.cancel(id)
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if not job.cancelled.is_set():
                self._do(job)

    def _do(self, job: Job) -> None:
        """One job, to whatever end. A panic of a library in Rust is no Exception, and ends no more than its job."""
        self._set(job, state="running", stage="starting")
        try:
            made = self.perform(job, lambda **changes: self._report(job, **changes))
            if job.cancelled.is_set():
                raise Cancelled
            self.finished(made)
            self._set(job, state="done", stage="done")
        except BaseException as error:
            self._drop(job)  # before anybody hears that it is over
            self._ended(job, error)

    def _drop(self, job: Job) -> None:
        """Put a growing run away that was handed out already."""
        try:
            self.dropped(job.id)
        except BaseException as error:
            log.error("a run could not be put away: %s", told(error), exc_info=error)

    def _ended(self, job: Job, error: BaseException) -> None:
        # One that was taken back may end by any error: the folder of a growing run is gone already.
        if isinstance(error, Cancelled) or job.cancelled.is_set():
            self._set(job, state="cancelled")
        elif isinstance(error, Problem):
            self._set(job, state="failed", problem=error.body)
        elif isinstance(error, SightlineError):
            self._set(job, state="failed", problem=from_error(error).body)
        else:
            body = Problem(500, "the run failed", expected="a run", got=told(error), hint="another text").body
            self._set(job, state="failed", problem=body)
            log.error("a run failed: %s", told(error), exc_info=error)

    def _report(self, job: Job, **changes: Any) -> None:
        if job.cancelled.is_set():
            raise Cancelled
        self._set(job, **changes)

    def _set(self, job: Job, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(job, name, value)
        job.version += 1
        self._tell()

    def _tell(self) -> None:
        for loop, event in list(self._changed):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop is closed

    def _trim(self) -> None:
        over = [id for id, job in self.by_id.items() if job.over]
        for id in over[: max(0, len(over) - self.kept)]:
            del self.by_id[id]


def performer(models: Models, grown: Callable[[Run], None]) -> Perform:
    """What a server does with a job: a watched run in a folder of its own, which is removed with the run."""

    def perform(job: Job, report: Report) -> Made:
        torch.set_num_threads(os.cpu_count() or 1)  # this thread's; those that make tiles have one each
        folder = Path(tempfile.mkdtemp(prefix="sightline-"))

        def cleanup() -> None:
            shutil.rmtree(folder, ignore_errors=True)

        def growing(seen: Seen) -> None:
            if job.cancelled.is_set():
                raise Cancelled
            for name in seen.layers:
                seen.shares(name)  # read now, by the thread that also writes: later the files may be newer
            run = as_run(job.id, seen, cleanup=cleanup)
            job.looks += 1
            run.growing, run.revision = True, job.looks
            grown(run)

        try:
            report(stage=f"loading {job.request.model}")
            model, tokenizer = models.get(job.request.model)
            if isinstance(job.request, EffectsRequest):
                cleanup()
                return effects.compute(job.request, model, tokenizer, report)
            if isinstance(job.request, ReadingRequest):
                cleanup()
                return compute(job.request, model, tokenizer, report)
            if job.request.image:
                watched_image(model, job.request, folder, report, growing)
            else:
                watched(model, tokenizer, job.request, folder, report, growing, job.pace)
            return as_run(job.id, load_run(folder), cleanup=cleanup)
        except BaseException:
            cleanup()
            raise

    return perform
