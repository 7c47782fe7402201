"""Everything behind the API: the runs, who computes what, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

import numpy as np

from sightline.web import export, facts, report, thumbs, worked
from sightline.web.cache import Cache
from sightline.web.jobs import Order, Orders, Perform
from sightline.web.library import Library
from sightline.web.links import strongest_link
from sightline.web.parse import span
from sightline.web.problems import Problem
from sightline.web.running import Models
from sightline.web.runs import Run
from sightline.web.scheduler import Busy, Desk, Workers

TILES_KEPT = 64 << 20
OTHERS_KEPT = 32 << 20
WAITING_TILES = 64


class Service:
    """One explorer: made once for a server, closed when it stops."""

    def __init__(
        self,
        perform: Perform,
        name_order: Callable[[Order], str],
        models: Models | None = None,
        runs: int = 8,
        threads: int | None = None,
    ) -> None:
        self.models = models
        self.library = Library(runs)
        self.orders = Orders(perform, self.library.add, self.library.discard)
        self.workers = Workers(threads)
        # Rollout, steps and exports take seconds: they have a thread of their own, so that no tile waits for them.
        self.patient = Workers(1)
        self.desk = Desk(at_once=self.workers.count, waiting=WAITING_TILES)
        self.slow_desk = Desk(at_once=1, waiting=16)
        self.tiles: Cache[bytes] = Cache(TILES_KEPT)
        self.others: Cache[Any] = Cache(OTHERS_KEPT)
        self.waiters: set[asyncio.Future] = set()  # one for each request that waits for a result
        self.skipped: list[str] = []  # a line on each saved run and model that could not be read
        self._name_order = name_order

    def leave(self) -> None:
        """The server is about to stop: whoever waits is told so, and streams end."""
        self.orders.end_streams()
        for waiter in list(self.waiters):
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Stop all threads; the folders of runs that were made here are removed."""
        self.orders.close()
        self.workers.close()
        self.patient.close()
        self.library.clear()

    def listed_models(self) -> list[dict[str, Any]]:
        """The models that can be run here."""
        return [] if self.models is None else self.models.listed()

    # Runs

    def run(self, id: str) -> Run:
        """A finished or growing run; one that is not there yet is a 409."""
        if id not in self.library and (ticket := self.orders.tickets.get(id)) is not None:
            raise Problem(
                409,
                f"this run is {ticket.state}",
                expected="a finished run",
                got=f"{ticket.stage}, {ticket.done} of {ticket.total}",
                hint=f"GET /api/runs/{id}/events",
                retry_after=1,
            )
        return self.library.get(id)

    def order(self, order: Order) -> Any:
        """Take an order for a run; a run that is there already is not done again."""
        known = [model["name"] for model in self.listed_models()]
        if order.model not in known:
            raise Problem(
                422,
                "this server does not run that model",
                expected=f"one of {', '.join(known) or 'none: start it with --model'}",
                got=order.model,
                hint="GET /api/limits",
            )
        id = self._name_order(order)
        if id in self.library:
            ticket = self.orders.done(id, order)
        else:
            self.library.make_room()
            ticket = self.orders.put(id, order)
        return ticket

    def close_run(self, id: str) -> None:
        """Close a run or take its order back, and drop what was kept of it."""
        if id in self.library:
            self.library.close(id)
            self.orders.forget(id)
        elif id in self.orders.tickets:
            self.orders.forget(id)
        else:
            self.library.close(id)  # says that there is none
        self.tiles.forget(lambda key: _belongs(key, id))
        self.others.forget(lambda key: _belongs(key, id))
        self.workers.forget(lambda key: _belongs(key, id))

    def events(self, id: str) -> AsyncIterator[dict[str, Any]]:
        """What happens to an order."""
        ticket = self.orders.tickets.get(id)
        if ticket is None:
            self.library.get(id)
            raise Problem(404, "this run has no events", expected="an order", got="a saved run", hint="it is finished")
        return self.orders.events(ticket)

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

        made: tuple[bytes, bool] = await self._at(self.desk, key, make)
        self.open_head(run, layer, head)
        return made

    def open_head(self, run: Run, layer: int, head: int) -> None:
        """Fill the overview of a head that someone looks at, whenever nothing else is to be done."""
        pyramid = run.view(layer, head).pyramid
        if pyramid.fine is not None and not pyramid.fine.complete:
            self.workers.in_background((run.key, layer, head), pyramid.background())

    async def quick(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something small, done by the threads that do tiles."""
        return await self._once(self.desk, self.workers, key, make)

    async def slow(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something that takes seconds, done by a thread of its own."""
        return await self._once(self.slow_desk, self.patient, key, make)

    def portraits(self, run: Run) -> tuple[dict[str, Any], bool]:
        """Every head's measures, the heads that are alike, and the head to look at first."""
        heads, complete = facts.facts(run)
        pictures, exact = self._thumbs(run)
        first = facts.first_choice(heads)
        body = {"heads": heads, "similar": facts.similar(pictures), "first": first, "complete": complete and exact}
        return body, complete and exact

    def thumbs(self, run: Run) -> tuple[bytes, bool]:
        """The thumbnails of all heads, one after the other."""
        pictures, complete = self._thumbs(run)
        return b"".join(picture.tobytes() for picture in pictures), complete

    def link(self, run: Run, layer: int, head: int) -> dict[str, Any]:
        """The strongest link of a head that is not a matter of course."""
        view = run.view(layer, head)
        link = strongest_link(view, run.special_keys(run.layer(layer)))
        return {"link": None if link is None else list(link)}

    def rollout(self, run: Run, queries: list[int]) -> np.ndarray:
        """How much every token fed some positions, through all layers."""
        follow = getattr(run.account, "rollout", None)
        if follow is None:
            raise Problem(422, "this run has no rollout", expected="a watched run", got="single sights", hint="rows")
        # The mean, so that the shares of one or of several positions sum to 1.
        return np.mean([follow(query)[run.batch].numpy() for query in queries], axis=0, dtype=np.float64).astype("<f4")

    def steps(self, run: Run, layer: int, head: int, query: int, top: int, key: int | None) -> dict[str, Any]:
        """The table of one query."""
        run.view(layer, head).inside("query", [query], run.layer(layer).queries)
        if key is not None:
            run.view(layer, head).inside("key", [key], run.layer(layer).keys)
        runs_here = self.models is not None and run.model in self.models and worked.has_ids(run, layer)
        place = (run.key, "steps of", layer, None if runs_here else head)
        kept = self.others.get(place)
        if kept is None:
            if self.models is not None and runs_here:
                kept = worked.of_model(run, self.models.get(str(run.model))[0], layer)
            else:
                kept = worked.of_sight(run, layer, head)
            self.others.put(place, kept, sum(x.numel() * x.element_size() for x in (kept.done.q, kept.done.k)))
        number = run.layer(layer).numbers[head] if runs_here else 0
        return worked.table(kept, number, query, top, key, with_values=runs_here)

    def export(
        self, run: Run, format: str, layer: int, head: int, rows: str | None, columns: str | None
    ) -> tuple[str, str, bytes]:
        """A file to take away: its name, its type, its content."""
        about = run.layer(layer)
        band = slice(0, about.queries) if rows is None else span("rows", rows)
        across = slice(0, about.keys) if columns is None else span("cols", columns)
        name = f"sightline-{run.id[:8]}-layer{layer}-head{head}"
        if format == "html":
            return f"sightline-{run.id[:8]}.html", "text/html; charset=utf-8", report.report(run)
        if format == "csv":
            return f"{name}.csv", "text/csv; charset=utf-8", export.csv(run, layer, head, band, across)
        return f"{name}.npz", "application/octet-stream", export.npz(run, layer, head, band, across)

    def _thumbs(self, run: Run) -> tuple[list[np.ndarray], bool]:
        """For every layer `[heads, 64, 64]`, and whether all are exact."""
        key = (run.key, "thumb arrays")
        kept = self.others.get(key)
        if kept is not None:
            return kept, True
        complete, pictures = True, []
        for layer in run.layers:
            made = [thumbs.thumb(run.view(layer.index, head).pyramid) for head in range(layer.heads)]
            pictures.append(np.stack([picture for picture, _ in made]))
            complete &= all(exact for _, exact in made)
        if complete:
            self.others.put(key, pictures, sum(p.nbytes for p in pictures))
        return pictures, complete

    async def _once(self, desk: Desk, workers: Workers, key: Hashable, make: Callable[[], Any]) -> Any:
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

        return await self._at(desk, key, work)

    async def _at(self, desk: Desk, key: Hashable, make: Callable[[], Any]) -> Any:
        try:
            return await desk.get(key, make)
        except Busy:
            raise Problem(
                503,
                "too much is waiting already",
                expected=f"at most {desk.limit} waiting requests",
                got=desk.waiting,
                hint="again in a second",
                retry_after=1,
            ) from None


def _belongs(key: Any, id: str) -> bool:
    return isinstance(key, tuple) and bool(key) and isinstance(key[0], tuple) and key[0][:1] == (id,)
