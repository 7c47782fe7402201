"""Who computes what, and when: a few threads, urgent steps first, equal requests joined, a bounded queue.

Work is cut into small steps (about 30 ms). Steps of tiles that someone waits for go before the background's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import Any

import torch


class Workers:
    """Threads that do small steps, the urgent ones first.

    >>> workers = Workers(1)
    >>> workers.submit(lambda: 6 * 7).result()
    42
    >>> workers.close()
    """

    def __init__(self, threads: int | None = None) -> None:
        self.count = threads or max(1, min(os.cpu_count() or 1, 8))
        self._steps: deque[tuple[Callable[[], Any], Future]] = deque()
        self._background: OrderedDict[Hashable, Iterator[Callable[[], Any]]] = OrderedDict()
        self._ready = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"explorer-{i}", daemon=True) for i in range(self.count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, step: Callable[[], Any]) -> Future:
        """Do a step that someone waits for."""
        future: Future = Future()
        with self._ready:
            if self._closed:
                future.cancel()
                return future
            self._steps.append((step, future))
            self._ready.notify()
        return future

    def in_background(self, key: Hashable, steps: Iterator[Callable[[], Any]]) -> None:
        """Do these steps whenever nothing is urgent. What was asked for last is done first."""
        with self._ready:
            if key not in self._background:
                self._background[key] = steps
            self._background.move_to_end(key)
            self._ready.notify_all()

    def forget(self, belongs: Callable[[Hashable], bool]) -> None:
        """Drop background work that nobody needs any more."""
        with self._ready:
            for key in [key for key in self._background if belongs(key)]:
                del self._background[key]

    def close(self) -> None:
        """Finish the steps that run, drop the others, and end the threads."""
        with self._ready:
            self._closed = True
            for _, future in self._steps:
                future.cancel()
            self._steps.clear()
            self._background.clear()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        # One thread each: torch's own threads wait by spinning, and would stand in each other's way.
        torch.set_num_threads(1)
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._closed or self._steps or self._background)
                if self._closed:
                    return
                step, future = self._next()
            if step is None:
                continue
            if future is None:
                try:
                    step()
                except BaseException:  # a background step that fails is asked for again when its tile is
                    continue
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(step())
                except BaseException as error:
                    future.set_exception(_harmless(error))

    def _next(self) -> tuple[Callable[[], Any] | None, Future | None]:
        if self._steps:
            return self._steps.popleft()
        key = next(reversed(self._background))
        try:
            return next(self._background[key]), None
        except BaseException:  # there are no more, or whatever makes them is broken
            del self._background[key]
            return None, None


def _harmless(error: BaseException) -> Exception:
    """An error that a task may raise: others would end the server's loop (SystemExit), or never reach who waits."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    made = RuntimeError(f"a step raised {type(error).__name__}")
    made.__cause__ = error
    return made


class Busy(Exception):
    """The queue is full."""


class Flight:
    """One thing that is being made, and how many wait for it."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self.make, self.waiters = make, 0
        self.future: asyncio.Future = asyncio.get_running_loop().create_future()
        self.running: asyncio.Task | None = None


class SingleFlight:
    """Joins equal requests, lets few run at a time, and refuses when too many wait.

    A request whose clients have all gone is dropped if it still waits; if it runs, it finishes, and its result is
    kept by whoever made it.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self.at_once, self.limit = at_once, waiting
        self._flights: dict[Hashable, Flight] = {}
        self._waiting: OrderedDict[Hashable, Flight] = OrderedDict()
        self._running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `await make()`, made once for everyone who asks for the same key meanwhile."""
        flight = self._flights.get(key)
        if flight is None:
            if len(self._waiting) >= self.limit:
                raise Busy
            flight = self._flights[key] = self._waiting[key] = Flight(make)
            self._start()
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.future)
        finally:
            flight.waiters -= 1
            # By its key alone it could be a newer flight for the same, which others wait for.
            if not flight.waiters and self._waiting.get(key) is flight:
                del self._waiting[key]
                del self._flights[key]
                flight.future.cancel()

    def _start(self) -> None:
        while self._waiting and self._running < self.at_once:
            key, flight = self._waiting.popitem(last=False)
            self._running += 1
            flight.running = asyncio.ensure_future(self._run(key, flight))

    async def _run(self, key: Hashable, flight: Flight) -> None:
        try:
            result = await flight.make()
        except BaseException as error:
            if not flight.future.done():
                flight.future.set_exception(error)
                flight.future.exception()  # nobody may be left to fetch it
        else:
            if not flight.future.done():
                flight.future.set_result(result)
        finally:
            self._running -= 1
            if self._flights.get(key) is flight:
                del self._flights[key]
            self._start()
