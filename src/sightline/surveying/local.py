"""The embedded engine: processes of this machine, each with a model of its own, which write the parts themselves.

A process that dies takes nothing with it but the part it was at: that is done again, by another one.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sightline.errors import InputError
from sightline.surveying.heads import Wanted
from sightline.surveying.parts import arrow, part_name
from sightline.surveying.work import Done, Order, Worker

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class _Process(NamedTuple):
    process: Any
    pipe: Connection
    ready: bool = False  # it has its model


def run(
    model: Any, tokenizer: Any, folder: Path, todo: Sequence[Order], wanted: Wanted, driver: str, workers: int
) -> Iterator[Done]:
    """Do all orders; what came of each, as it comes. With no workers this process does them."""
    if not workers:
        trained = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
        worker = None
        try:
            worker = Worker(model, folder, wanted, driver, threads=None, tokenizer=tokenizer)
            for order in todo:
                yield worker.do(order)
        finally:
            if worker is not None:
                os.close(worker.lock)
            for part in trained:  # the model is somebody's, and goes on as it was
                part.training = True
        return
    context = multiprocessing.get_context("spawn")
    waiting, tried = deque(todo), {}  # type: ignore[var-annotated]
    busy: dict[Connection, tuple[_Process, Order | None]] = {}
    try:
        while waiting or any(order is not None for _, order in busy.values()):
            while len(busy) < min(workers, len(waiting) + sum(order is not None for _, order in busy.values())):
                one = _start(context, model, folder, wanted, driver)
                busy[one.pipe] = (one, None)
            idle = [pipe for pipe, (process, order) in busy.items() if process.ready and order is None]
            for pipe in idle[: len(waiting)]:
                order = waiting.popleft()
                try:
                    pipe.send(order)
                    busy[pipe] = (busy[pipe][0], order)
                except OSError:
                    waiting.appendleft(order)
                    _end(busy.pop(pipe)[0])
            for heard in wait(list(busy)):
                assert isinstance(heard, Connection)
                process, doing = busy[heard]
                try:
                    said = heard.recv()
                except (EOFError, OSError):
                    del busy[heard]
                    _end(process)
                    if not process.ready:
                        _not_even_begun(tried)
                    if doing is not None and (written := _written(folder, doing)) is not None:
                        yield written
                    elif doing is not None:
                        waiting.extendleft(reversed(_again(doing, tried)))
                    continue
                if isinstance(said, BaseException):
                    raise said
                tried.pop("start", None)
                busy[heard] = (process._replace(ready=True), None)
                if said is not None:  # None: it has its model
                    yield said
    finally:
        for process, _ in busy.values():
            _end(process)


def _start(context: Any, model: str, folder: Path, wanted: Wanted, driver: str) -> _Process:
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, model, folder, wanted, driver, os.getpid()), daemon=True)
    # Ctrl-C goes to all processes of a terminal. A new one inherits what is held back here, and so it does not hear it
    # in the seconds that it imports either; here it is heard when the process has begun. What multiprocessing starts
    # for itself lets go of all signals: it comes before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Process(process, mine)


def _end(one: _Process) -> None:
    one.pipe.close()
    one.process.join(0.2)
    if one.process.is_alive():
        one.process.kill()
    one.process.join()
    one.process.close()


def _not_even_begun(tried: dict) -> None:
    """A process that ended before it had its model: once is bad luck, again is a fault."""
    tried["start"] = tried.get("start", 0) + 1
    if tried["start"] > 2:
        raise InputError(
            "workers end before they begin",
            expected="processes that load the model",
            got=f"{tried['start']} that ended",
            hint='in a script, call it under `if __name__ == "__main__":`; fewer workers, if memory is short',
        )


def _written(folder: Path, order: Order) -> Done | None:
    """What came of an order whose worker ended after it wrote the part, and before it said so."""
    path = folder / part_name(order.texts)
    if not path.exists():
        return None
    errors = arrow().parquet.read_table(path, columns=["error"])["error"]
    return Done(len(order.texts), len(errors) - errors.null_count)


def _again(order: Order, tried: dict) -> list[Order]:
    """An order whose worker ended: once more; then text by text; a text that ends a worker twice is given up."""
    if order.give_up:
        raise InputError(
            "a worker ended that had only to write down why a text was given up",
            expected="workers that live",
            got=order.texts[0].name,
            hint="look at what ends them (dmesg); the same call goes on",
        )
    key = tuple(text.key for text in order.texts)
    tried[key] = tried.get(key, 0) + 1
    if tried[key] < 2:
        return [order]
    if len(order.texts) > 1:
        return [Order([text]) for text in order.texts]
    return [order._replace(give_up=True)]


def _serve(pipe: Connection, model: str, folder: Path, wanted: Wanted, driver: str, parent: int) -> None:
    """The life of a worker: it ends with its driver, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    try:
        worker = Worker(model, folder, wanted, driver)
    except Exception as error:
        with suppress(OSError):  # a driver that is gone
            pipe.send(error)
        return
    with suppress(OSError):
        pipe.send(None)
    said: Any = None
    while not isinstance(said, Exception):
        try:
            order = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            said = worker.do(order, still=lambda: os.getppid() == parent)
        except KeyboardInterrupt:
            return
        except Exception as error:  # a full disk too: it is no fault of the texts, and ends the survey
            said = error
        with suppress(OSError):
            pipe.send(said)
