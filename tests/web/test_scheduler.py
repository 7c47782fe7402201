"""Who computes what: urgent before background, equal requests joined, whoever has gone dropped, a bounded queue."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from sightline.web.scheduler import Busy, SingleFlight, Workers


@pytest.fixture
def workers():
    made = Workers(1)
    yield made
    made.close()


def test_urgent_steps_go_before_the_background(workers: Workers) -> None:
    order: list[str] = []
    gate = threading.Event()
    blocked = workers.submit(gate.wait)
    workers.in_background("a", iter([lambda: order.append("a1"), lambda: order.append("a2")]))
    workers.in_background("b", iter([lambda: order.append("b1")]))
    futures = [workers.submit(lambda i=i: order.append(f"urgent {i}")) for i in range(3)]
    gate.set()
    blocked.result(5)
    for future in futures:
        future.result(5)
    while len(order) < 6:
        time.sleep(0.01)
    assert order == ["urgent 0", "urgent 1", "urgent 2", "b1", "a1", "a2"]


def test_a_step_that_fails_tells_whoever_waits_and_harms_nobody_else(workers: Workers) -> None:
    def broken() -> None:
        raise ValueError("no")

    workers.in_background("broken", iter([broken, broken]))
    with pytest.raises(ValueError, match="no"):
        workers.submit(broken).result(5)
    assert workers.submit(lambda: 3).result(5) == 3


def test_each_thread_uses_one_core_and_others_keep_theirs(workers: Workers) -> None:
    before = torch.get_num_threads()
    assert workers.submit(torch.get_num_threads).result(5) == 1
    assert torch.get_num_threads() == before


def test_closing_drops_what_waits() -> None:
    workers = Workers(1)
    gate = threading.Event()
    workers.submit(gate.wait)
    waiting = workers.submit(lambda: 1)
    closer = threading.Thread(target=workers.close)
    closer.start()
    gate.set()
    closer.join(5)
    assert not closer.is_alive()
    assert waiting.cancelled() or waiting.result() == 1
    assert workers.submit(lambda: 1).cancelled()


def test_background_work_can_be_forgotten(workers: Workers) -> None:
    done: list[int] = []
    gate = threading.Event()
    blocked = workers.submit(gate.wait)
    workers.in_background(("run", 1), iter([lambda: done.append(1)]))
    workers.in_background(("other", 1), iter([lambda: done.append(2)]))
    workers.forget(lambda key: key[0] == "run")
    gate.set()
    blocked.result(5)
    while not done:
        time.sleep(0.01)
    workers.submit(lambda: None).result(5)
    assert done == [2]


def test_equal_requests_are_one() -> None:
    made: list[int] = []

    async def main() -> list[int]:
        flights, gate = SingleFlight(at_once=1, waiting=4), asyncio.Event()

        async def make() -> int:
            made.append(1)
            await gate.wait()
            return 7

        tasks = [asyncio.create_task(flights.get("key", make)) for _ in range(5)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()  # one of them leaves: the others still get it
        gate.set()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(main()) == [7] * 4
    assert made == [1]


def test_whoever_waits_and_leaves_is_dropped_and_what_runs_is_finished() -> None:
    made: list[str] = []

    async def main() -> int:
        flights, gate = SingleFlight(at_once=1, waiting=4), asyncio.Event()

        async def make(name: str) -> None:
            await gate.wait()
            made.append(name)

        running = asyncio.create_task(flights.get("running", lambda: make("running")))
        waiting = asyncio.create_task(flights.get("waiting", lambda: make("waiting")))
        await asyncio.sleep(0.01)
        assert flights.waiting == 1
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        gate.set()
        await asyncio.sleep(0.01)
        return flights.waiting

    assert asyncio.run(main()) == 0
    assert made == ["running"]


def test_a_full_flights_refuses() -> None:
    async def main() -> None:
        flights, gate = SingleFlight(at_once=1, waiting=2), asyncio.Event()
        tasks = [asyncio.create_task(flights.get(i, gate.wait)) for i in range(3)]
        await asyncio.sleep(0.01)
        with pytest.raises(Busy):
            await flights.get("one more", gate.wait)
        joined = asyncio.create_task(flights.get(1, gate.wait))  # not one more: the same
        gate.set()
        await asyncio.gather(*tasks, joined)

    asyncio.run(main())


def test_an_error_reaches_everyone_who_waits() -> None:
    async def main() -> list:
        flights = SingleFlight(at_once=1, waiting=2)

        async def make() -> None:
            await asyncio.sleep(0.01)
            raise ValueError("no")

        return await asyncio.gather(*(flights.get("key", make) for _ in range(3)), return_exceptions=True)

    assert [str(error) for error in asyncio.run(main())] == ["no"] * 3


def test_whoever_had_an_answer_takes_no_newer_job_away() -> None:
    async def main() -> None:
        flights = SingleFlight(at_once=1, waiting=8)
        blocked = asyncio.Event()

        async def now() -> str:
            return "first"

        async def later() -> str:
            await blocked.wait()
            return "other"

        async def again() -> str:
            return "second"

        first = asyncio.ensure_future(flights.get("same", now))
        await asyncio.sleep(0)  # it waits at the flights
        other = asyncio.ensure_future(flights.get("other", later))
        # In the moment in which the first job is over and its waiter was not told yet, the same is asked for again.
        while "same" in flights._flights:
            await asyncio.sleep(0)
        assert not first.done()
        second = asyncio.ensure_future(flights.get("same", again))
        assert await first == "first"
        await asyncio.sleep(0)
        blocked.set()
        assert await other == "other"
        assert await asyncio.wait_for(second, 5) == "second"
        assert not flights._flights

    asyncio.run(main())
