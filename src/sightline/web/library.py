"""The runs a server has: those it made, and saved folders, which are opened when someone looks at them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sightline.explore.reasons import left_out, plain
from sightline.explore.run import Run
from sightline.explore.saved import SavedRun, saved_runs
from sightline.web.problems import Problem

# Seconds for which a run counts as looked at: pages say so three times as often, hidden ones once a minute.
LOOKED = 90.0
# Of so many runs that made room it is remembered which they were; and so many may look at runs.
REMEMBERED, VIEWERS = 32, 256
# So many of those that were closed last can be opened again as they were.
UNDO = 2


@dataclass
class Shelf:
    """A saved run: what is known without opening it, and how to open it."""

    about: dict[str, Any]
    open: Callable[[], Run]


class Library:
    """At most `limit` runs are open at a time; others make room for one more.

    First the saved ones that nobody looks at, then the made one without viewers that was asked for longest ago:
    `closed` remembers it, and `drop` is told of it. A saved one can be opened again, whoever looks at it; of those that
    were closed, the last `UNDO`.

    >>> Library(limit=8).listed()
    []
    """

    def __init__(self, limit: int = 8, drop: Callable[[str], None] = lambda id: None) -> None:
        self.limit, self.drop = limit, drop
        self._looked: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by who looks: at what, and since when
        self._closed: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()
        self._open: OrderedDict[str, Run] = OrderedDict()
        self._away: OrderedDict[str, tuple[Run | None, Shelf | None]] = OrderedDict()  # closed, and not yet let go of
        self._lock = threading.RLock()

    def shelve(self, id: str, shelf: Shelf) -> None:
        """List a saved run."""
        with self._lock:
            self._shelves[id] = shelf

    def shelve_folder(self, folder: Path) -> list[str]:
        """List the saved runs of a folder; gives a line for each that cannot be read, which is left out."""
        found, skipped = saved_runs(folder)
        for saved in found:
            self.shelve(saved.id, Shelf(saved.about, partial(_open, saved)))
        return skipped

    def add(self, run: Run) -> None:
        """Keep a run that was made here."""
        with self._lock:
            if run.id not in self._open:
                self._make_room()
            self._open[run.id] = run  # a grown run takes the place of what it was
            self._open.move_to_end(run.id)
            self._closed.pop(run.id, None)
            self._let_go(run.id)

    def look(self, id: str, by: str = "") -> None:
        """Someone looks at a run, and no more at the one before: for a while it makes room for no other."""
        self.get(id)
        with self._lock:
            self._looked[by] = id, time.monotonic()
            self._looked.move_to_end(by)
            while len(self._looked) > VIEWERS:
                self._looked.popitem(last=False)

    def check_room(self) -> None:
        """Say, before any work, if no run could make room for one more."""
        with self._lock:
            if len(self._open) >= self.limit:
                self._least_wanted()

    def _make_room(self) -> None:
        if len(self._open) < self.limit:
            return
        id = self._least_wanted()
        run = self._open.pop(id)
        if id not in self._shelves:
            self._closed[id] = run.summary()
            while len(self._closed) > REMEMBERED:
                self._closed.popitem(last=False)
            self._put_away(id, run, None)
            self.drop(id)

    def _put_away(self, id: str, run: Run | None, shelf: Shelf | None) -> None:
        """Close a run so that it can be opened again; one that is being made will never be whole."""
        if run is not None and run.growing:
            run.close()
            return
        if run is not None:
            run.rest()
        self._let_go(id)
        self._away[id] = run, shelf
        while len(self._away) > UNDO:
            self._let_go(next(iter(self._away)))

    def _let_go(self, id: str) -> None:
        run, _ = self._away.pop(id, (None, None))
        if run is not None:
            run.close()

    def reopen(self, id: str) -> None:
        """Open a run again that was closed a moment ago."""
        with self._lock:
            if id in self:
                return
            if id not in self._away:
                raise Problem(
                    404,
                    "this run cannot be opened again",
                    expected=f"one of the last {UNDO} that were closed",
                    got=id[:40],
                    hint="run its text again",
                )
            run, shelf = self._away[id]
            if run is not None and len(self._open) >= self.limit:
                self._least_wanted()  # says if none can make room, while this one is still there
            self._away.pop(id)
            if run is not None:
                self._make_room()
            if shelf is not None:
                self._shelves[id] = shelf
                self._shelves.move_to_end(id, last=False)
            if run is not None:
                self._open[id] = run
            self._closed.pop(id, None)

    def _least_wanted(self) -> str:
        since = time.monotonic() - LOOKED
        looked = {id for id, when in self._looked.values() if when > since}
        saved = [id for id in self._open if id in self._shelves]
        made = [id for id, run in self._open.items() if id not in self._shelves and not run.growing]
        for id in (*saved, *made):
            if id not in looked:
                return id
        if saved:
            return saved[0]
        raise Problem(
            429,
            f"{self.limit} runs are open, which is the most this server keeps, and each is being looked at",
            expected="one that nobody looks at",
            got=f"{len(self._open)} open",
            hint="close one with the cross beside its name",
            retry_after=1,
        )

    def __contains__(self, id: str) -> bool:
        return id in self._open or id in self._shelves

    def get(self, id: str) -> Run:
        """An open run, or a saved one, which is opened now."""
        with self._lock:
            if id in self._open:
                self._open.move_to_end(id)
                return self._open[id]
            if id in self._shelves:
                self._make_room()
                run = self._shelves[id].open()
                self._open[id] = run
                return run
        raise Problem(
            404,
            "there is no such run",
            expected="an id out of GET /api/runs",
            got=id[:40],
            hint="it may have been closed, or the server started anew",
        )

    def close(self, id: str) -> None:
        """Close a run. A saved folder stays on disk, and is listed again when the server starts again."""
        with self._lock:
            known = id in self
            run, shelf = self._open.pop(id, None), self._shelves.pop(id, None)
            if known:
                self._put_away(id, run, shelf)
        if not known:
            raise Problem(404, "there is no such run", expected="an id", got=id[:40], hint="GET /api/runs")

    def discard(self, id: str) -> None:
        """Let go of a run that was made here, if it is there."""
        with self._lock:
            run = None if id in self._shelves else self._open.pop(id, None)
        if run is not None:
            run.close()

    def clear(self) -> None:
        """Close every run."""
        with self._lock:
            for run in self._open.values():
                run.close()
            self._open.clear()
            for id in list(self._away):
                self._let_go(id)

    def closed(self) -> list[dict[str, Any]]:
        """The runs that made room for others, in short, the last one last."""
        with self._lock:
            return list(self._closed.values())

    def listed(self) -> list[dict[str, Any]]:
        """Every run in short, the newest first."""
        with self._lock:
            made = [run.summary() for id, run in self._open.items() if id not in self._shelves]
            saved = [shelf.about for shelf in self._shelves.values()]
        return [*reversed(made), *saved]


def _open(saved: SavedRun) -> Run:
    name = saved.path.name
    try:
        return saved.open()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise Problem(
            500,
            f"the saved run {plain(name)} cannot be read any more",
            expected="the folder as it was when the server started",
            got=left_out(name, error),
            hint="start the server again",
        ) from error
