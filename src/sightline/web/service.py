"""Everything behind the API: the runs, who computes what, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

from sightline.explore import effects, readings
from sightline.explore.atlas import KEPT, Atlas
from sightline.explore.cache import Cache
from sightline.explore.model_runs import Models, RunRequest
from sightline.explore.run import Run
from sightline.web.jobs import Job, JobQueue, Made, Perform
from sightline.web.library import Library
from sightline.web.problems import Problem
from sightline.web.scheduler import Busy, SingleFlight, Workers

TILES_KEPT = 64 << 20
WAITING_TILES = 64


class Service:
    """One explorer: made once for a server, closed when it stops."""

    def __init__(
        self,
        perform: Perform,
        models: Models | None = None,
        runs: int = 8,
        threads: int | None = None,
    ) -> None:
        self.models = models
        self.library = Library(runs, self._drop)
        self.jobs = JobQueue(perform, self._finished, self.library.discard)
        self.workers = Workers(threads)
        # Rollout, steps and exports take seconds: they have a thread of their own, so that no tile waits for them.
        self.patient = Workers(1)
        self.flights = SingleFlight(at_once=self.workers.count, waiting=WAITING_TILES)
        self.slow_flights = SingleFlight(at_once=1, waiting=16)
        self.tiles: Cache[bytes] = Cache(TILES_KEPT)
        self.others: Cache[Any] = Cache(KEPT)
        self.atlas = Atlas(models, self.others)
        self.waiters: set[asyncio.Future] = set()  # one for each request that waits for a result
        self.skipped: list[str] = []  # a line on each saved run and model that could not be read

    def leave(self) -> None:
        """The server is about to stop: whoever waits is told so, and streams end."""
        self.jobs.end_streams()
        for waiter in list(self.waiters):
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Stop all threads; the folders of runs that were made here are removed."""
        self.jobs.close()
        self.workers.close()
        self.patient.close()
        self.library.clear()

    def listed_models(self) -> list[dict[str, Any]]:
        """The models that can be run here."""
        return [] if self.models is None else self.models.listed()

    # Runs

    def _finished(self, made: Made) -> None:
        if isinstance(made, effects.HeadEffects):
            effects.keep(made)
        elif made.base is None:
            self.library.add(made)
        else:
            readings.keep(made)

    def run(self, id: str) -> Run:
        """A finished or growing run, or a reading of one; one that is not there yet is a 409."""
        base, _, reading = id.partition("_")
        if reading and id not in self.library and base in self.library:
            key, _, of = reading.partition("_")
            found = readings.find(self.library.get(base), key, of)
            if found is not None:
                return found
            if (job := self.jobs.by_id.get(f"{base}_{key}")) is None or job.over:
                raise Problem(
                    404,
                    "this reading is not there",
                    expected=f"one of {', '.join(readings.SHOWN)}, made by POST /api/runs/{base}/readings",
                    got=id[:80],
                    hint="make it again: a few are kept for each run",
                )
            id = job.id
        if id not in self.library and (job := self.jobs.by_id.get(id)) is not None:
            raise self.unfinished(job)
        return self.library.get(id)

    def unfinished(self, job: Job) -> Problem:
        """What whoever asks too early is told."""
        return Problem(
            409,
            f"this run is {job.state}",
            expected="a finished run",
            got=f"{job.stage}, {job.done} of {job.total}",
            hint=f"GET /api/runs/{job.id}/events",
            retry_after=1,
        )

    def order_reading(self, request: readings.ReadingRequest) -> Job:
        """Take a request to read a run once more, or for its effects; what is there already is not done again."""
        reason = readings.why_not(request.run, self.models)
        if reason is not None:
            raise Problem(
                422, "this run cannot be read once more", expected="a run made here", got=reason, hint="what was kept"
            )
        if isinstance(request, effects.EffectsRequest):
            known: Any = effects.find(request.run, request.aim)
        else:
            known = readings.find(request.run, request.key, readings.SHOWN[-1])
        if known is not None:
            return self.jobs.done(request)
        return self.jobs.put(request)

    def order(self, request: RunRequest) -> Job:
        """Take a request for a run; a run that is there already is not done again."""
        known = [model["name"] for model in self.listed_models()]
        if request.model not in known:
            raise Problem(
                422,
                "this server does not run that model",
                expected=f"one of {', '.join(known) or 'none: start it with --model'}",
                got=request.model,
                hint="GET /api/limits",
            )
        reads_images = any(model["name"] == request.model and model.get("image") for model in self.listed_models())
        if reads_images != bool(request.image):
            raise Problem(
                422,
                "this model reads pictures" if reads_images else "this model reads no pictures",
                expected="a PNG or JPEG as `image`" if reads_images else "a text",
                got="a text" if reads_images else "a picture",
                hint="GET /api/limits says which models read pictures",
            )
        if request.id in self.library:
            return self.jobs.done(request)
        self.library.check_room()
        return self.jobs.put(request)

    def close_run(self, id: str) -> None:
        """Close a run or take its job back, and drop what was kept of it."""
        job = self.jobs.by_id.get(id)
        if job is not None and not job.over:
            self.jobs.cancel(id)  # before its folder goes: what it misses there is no failure
            self.library.discard(id)
        elif id in self.library or job is None:
            self.library.close(id)  # says if there is none
        self._drop(id)

    def _drop(self, id: str) -> None:
        """Keep nothing of a run that is closed, and read it no further."""
        for order in [order for order in list(self.jobs.by_id) if order == id or order.startswith(f"{id}_")]:
            self.jobs.forget(order)
        self.tiles.forget(lambda key: _belongs(key, id))
        self.others.forget(lambda key: _belongs(key, id))
        self.workers.forget(lambda key: _belongs(key, id))

    def events(self, id: str) -> AsyncIterator[dict[str, Any]]:
        """What happens to a job."""
        job = self.jobs.by_id.get(id)
        if job is None:
            self.library.get(id)
            raise Problem(404, "this run has no events", expected="an order", got="a saved run", hint="it is finished")
        return self.jobs.events(job)

    # Numbers

    async def tile(
        self, run: Run, layer: int, head: int, levels: tuple[int, int], y: int, x: int, pool: str
    ) -> tuple[bytes | None, bool]:
        """One tile as bytes, None if the mask hides all of it; and whether it is exact."""
        key = (run.key, "tile", layer, head, *levels, y, x, pool)
        kept = self.tiles.get(key)
        if kept is not None:
            return kept, True
        pyramid = run.view(layer, head).pyramid
        pyramid.check(levels, y, x, pool)
        if pyramid.is_hidden(levels, y, x):
            return None, True

        async def make() -> tuple[bytes, bool]:
            plan = pyramid.plan(levels, y, x, pool)
            if plan.is_estimate:
                self.open_head(run, layer, head)
            await asyncio.gather(*(asyncio.wrap_future(self.workers.submit(step)) for step in plan.steps))
            body = await asyncio.wrap_future(self.workers.submit(lambda: plan.finish().astype("<f4").tobytes()))
            if not plan.is_estimate:
                self.tiles.put(key, body, len(body))
            return body, not plan.is_estimate

        made: tuple[bytes, bool] = await self._at(self.flights, key, make)
        self.open_head(run, layer, head)
        return made

    def open_head(self, run: Run, layer: int, head: int) -> None:
        """Fill the overview of a head that someone looks at, whenever nothing else is to be done."""
        pyramid = run.view(layer, head).pyramid
        if pyramid.fine is not None and not pyramid.fine.complete:
            self.workers.in_background((run.key, layer, head), pyramid.background())

    async def quick(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something small, done by the threads that do tiles."""
        return await self._once(self.flights, self.workers, key, make)

    async def slow(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something that takes seconds, done by a thread of its own."""
        return await self._once(self.slow_flights, self.patient, key, make)

    async def _once(self, flights: SingleFlight, workers: Workers, key: Hashable, make: Callable[[], Any]) -> Any:
        kept = self.others.get(key)
        if kept is not None:
            return kept

        async def work() -> Any:
            result = await asyncio.wrap_future(workers.submit(make))
            if isinstance(result, bytes):
                self.others.put(key, result, len(result))
            elif isinstance(result, tuple) and result[-1] is True:
                self.others.put(key, result, len(result[0]) if isinstance(result[0], bytes) else 1 << 20)
            return result

        return await self._at(flights, key, work)

    async def _at(self, flights: SingleFlight, key: Hashable, make: Callable[[], Any]) -> Any:
        try:
            return await flights.get(key, make)
        except Busy:
            raise Problem(
                503,
                "too much is waiting already",
                expected=f"at most {flights.limit} waiting requests",
                got=flights.waiting,
                hint="again in a second",
                retry_after=1,
            ) from None


def _belongs(key: Any, id: str) -> bool:
    """Whether something is of a run, or of a reading of it."""
    if not (isinstance(key, tuple) and key and isinstance(key[0], tuple) and key[0]):
        return False
    return key[0][0] == id or str(key[0][0]).startswith(f"{id}_")
