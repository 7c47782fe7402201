"""Texts that wait for the model: one runs at a time, a few wait, and each says where it stands."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from sightline.errors import SightlineError
from sightline.web.problems import Problem, from_error, told
from sightline.web.runs import Run

log = logging.getLogger("sightline.web")


@dataclass(frozen=True)
class Order:
    """What was asked for."""

    text: str
    model: str
    layers: str | None = None
    generate: int = 0


class Cancelled(Exception):
    """Nobody wants this run any more."""


@dataclass
class Ticket:
    """One order and where it stands: queued, running, done, failed or cancelled."""

    id: str
    order: Order
    state: str = "queued"
    stage: str = "waiting"
    done: int = 0
    total: int = 0
    problem: dict[str, str] | None = None
    made: float = field(default_factory=time.time)
    version: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def about(self, position: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "stage": self.stage,
            "done": self.done,
            "total": self.total,
            "position": position,
            "problem": self.problem,
            "model": self.order.model,
            "title": self.order.text[:80],
        }

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


Report = Callable[..., None]
# Does one order, reporting its progress; gives the run, and may hand out a growing one before.
Perform = Callable[[Ticket, Report], Run]


class Orders:
    """The queue of orders and the one thread that does them."""

    def __init__(
        self,
        perform: Perform,
        finished: Callable[[Run], None],
        dropped: Callable[[str], None],
        waiting: int = 4,
        kept: int = 32,
    ) -> None:
        self.perform, self.finished, self.dropped = perform, finished, dropped
        self.limit, self.kept = waiting, kept
        self.tickets: dict[str, Ticket] = {}
        self._queue: queue.Queue[Ticket | None] = queue.Queue()
        self._changed: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False

    def put(self, id: str, order: Order) -> Ticket:
        """Take an order; the same one twice is one."""
        with self._lock:
            known = self.tickets.get(id)
            if known is not None and not known.over:
                return known
            waiting = [ticket for ticket in self.tickets.values() if ticket.state == "queued"]
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
            ticket = self.tickets[id] = Ticket(id, order)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="runner", daemon=True)
                self._thread.start()
            self._queue.put(ticket)
        return ticket

    def done(self, id: str, order: Order) -> Ticket:
        """The ticket of a run that is there already."""
        return self.tickets.get(id) or Ticket(id, order, state="done", stage="done")

    def position(self, ticket: Ticket) -> int:
        """0 for the one that runs or is over, 1 for the next."""
        if ticket.state != "queued":
            return 0
        ahead = [t for t in self.tickets.values() if t.state == "queued" and t.made <= ticket.made]
        return len(ahead)

    def cancel(self, id: str) -> None:
        """Take an order back; one that runs stops at its next layer."""
        ticket = self.tickets.get(id)
        if ticket is not None and not ticket.over:
            ticket.cancelled.set()
            if ticket.state == "queued":
                self._set(ticket, state="cancelled")

    def forget(self, id: str) -> None:
        """Take an order back, and say no more about it."""
        self.cancel(id)
        ticket = self.tickets.get(id)
        if ticket is not None and ticket.over:
            self.tickets.pop(id, None)

    async def events(self, ticket: Ticket) -> AsyncIterator[dict[str, Any]]:
        """What happens to an order, as it happens, until it is over."""
        changed = asyncio.Event()
        entry = (asyncio.get_running_loop(), changed)
        self._changed.append(entry)
        last = None
        try:
            while True:
                changed.clear()
                now = ticket.about(self.position(ticket))
                if now != last:
                    yield now
                    last = now
                if ticket.over or self._ending:
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
        """Stop: the running order is cancelled, the others are dropped."""
        for id in list(self.tickets):
            self.cancel(id)
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _work(self) -> None:
        while (ticket := self._queue.get()) is not None:
            if not ticket.cancelled.is_set():
                self._do(ticket)

    def _do(self, ticket: Ticket) -> None:
        """One order, to whatever end. A panic of a library in Rust is no Exception, and ends no more than its order."""
        self._set(ticket, state="running", stage="starting")
        try:
            run = self.perform(ticket, lambda **changes: self._report(ticket, **changes))
            if ticket.cancelled.is_set():
                raise Cancelled
            self.finished(run)
            self._set(ticket, state="done", stage="done")
        except Cancelled:
            self._set(ticket, state="cancelled")
        except Problem as problem:
            self._set(ticket, state="failed", problem=problem.body)
        except SightlineError as error:
            self._set(ticket, state="failed", problem=from_error(error).body)
        except BaseException as error:
            body = Problem(500, "the run failed", expected="a run", got=told(error), hint="another text").body
            self._set(ticket, state="failed", problem=body)
            log.error("a run failed: %s", told(error), exc_info=error)
        if ticket.state != "done":
            try:
                self.dropped(ticket.id)  # a growing run that was handed out already
            except BaseException as error:
                log.error("a run could not be put away: %s", told(error), exc_info=error)

    def _report(self, ticket: Ticket, **changes: Any) -> None:
        if ticket.cancelled.is_set():
            raise Cancelled
        self._set(ticket, **changes)

    def _set(self, ticket: Ticket, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(ticket, name, value)
        ticket.version += 1
        self._tell()

    def _tell(self) -> None:
        for loop, event in list(self._changed):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop is closed

    def _trim(self) -> None:
        over = [id for id, ticket in self.tickets.items() if ticket.over]
        for id in over[: max(0, len(over) - self.kept)]:
            del self.tickets[id]
