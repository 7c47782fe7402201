"""Work spread over the cores by Python threads, each with its own share of torch's threads.

A pass over tiles is some thousand short operations. Torch could spread each of them over the cores, but then all
cores wait for the slowest after every one. A thread that goes its own way waits for nobody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch

from sightline import caches

T = TypeVar("T")

# Python itself runs on one core at a time: with more threads than these, they would wait for it.
_MOST = 8
# Numbers of threads that are had ready.
_MOST_POOLS = 4

_lock = threading.Lock()
# By their number and torch's threads of each. Those that are let go end when nobody uses them any more.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = caches.held("lens.threads", {}, _MOST_POOLS, lambda: _let_go())


def spread(tasks: Iterable[Callable[[], T]], alone: bool = False) -> list[T]:
    """The results of all tasks, in their order; run by as many threads as torch may use, or here if `alone`.

    Tasks run in inference mode: tensors that outlive them are to be made before.

    >>> spread([lambda: 1, lambda: 2])
    [1, 2]
    """
    tasks = list(tasks)
    threads = torch.get_num_threads()
    if alone or threads == 1 or len(tasks) < 2:
        with torch.inference_mode():
            return [task() for task in tasks]

    results: list[Any] = [None] * len(tasks)
    waiting = iter(range(len(tasks)))

    def work() -> None:
        # What torch is told about gradients is told to one thread only.
        with torch.inference_mode():
            for i in waiting:
                results[i] = tasks[i]()

    # Each thread takes what is next, and nobody has to be told: that would be one more who waits for Python's lock.
    workers = min(threads, _MOST)
    pool = _pool(workers, max(1, threads // _MOST))
    threads_done = [pool.submit(work) for _ in range(workers)]
    wait(threads_done)
    for done in threads_done:
        done.result()
    return results


def _pool(workers: int, each: int) -> ThreadPoolExecutor:
    """Threads that are kept, because telling torch how many cores one may use is slow."""
    with _lock:
        if (workers, each) not in _pools:
            ready = threading.Barrier(workers + 1)

            def start() -> None:
                torch.get_num_threads()  # a new thread first takes over what holds for all: what is said before is lost
                torch.set_num_threads(each)
                ready.wait()

            pool = ThreadPoolExecutor(workers, "sightline", start)
            # A thread is started for each task that finds all others busy: these wait until all are there.
            for _ in range(workers):
                pool.submit(int)
            threads = torch.get_num_threads()
            ready.wait()
            # It holds for the thread that says it, and for all that start later: for these it is taken back.
            torch.set_num_threads(threads)
            caches.put(_pools, (workers, each), pool, _MOST_POOLS)
        return _pools[workers, each]


def _let_go() -> None:
    with _lock:
        _pools.clear()


def _forget() -> None:
    """After a fork the threads are gone, and a lock that was held stays so."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
