"""The runs a server has: those it made, and saved folders, which are opened when someone looks at them."""

from __future__ import annotations

import threading
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


@dataclass
class Shelf:
    """A saved run: what is known without opening it, and how to open it."""

    about: dict[str, Any]
    open: Callable[[], Run]


class Library:
    """At most `limit` runs are open at a time. Saved ones are closed when others need the room; made ones never are.

    >>> Library(limit=8).listed()
    []
    """

    def __init__(self, limit: int = 8) -> None:
        self.limit = limit
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()
        self._open: OrderedDict[str, Run] = OrderedDict()
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
                self.make_room()
            self._open[run.id] = run  # a grown run takes the place of what it was
            self._open.move_to_end(run.id)

    def make_room(self) -> None:
        """See to it that one more run may be opened, or say why not."""
        with self._lock:
            if len(self._open) < self.limit:
                return
            for id in self._open:
                if id in self._shelves:
                    del self._open[id]
                    return
            raise Problem(
                429,
                f"{self.limit} runs are open, which is the most this server keeps",
                expected=f"fewer than {self.limit}",
                got=len(self._open),
                hint="close one: DELETE /api/runs/{id}",
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
                self.make_room()
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
        """Let go of a run. A saved folder stays on disk, and is listed again when the server starts again."""
        with self._lock:
            known = id in self
            run = self._open.pop(id, None)
            self._shelves.pop(id, None)
        if run is not None:
            run.close()
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
        for id in list(self._open):
            self.close(id)

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
