"""Orders of every kind, taken back wherever they say how far they are: nothing is left, and the next one goes on."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sightline.web.jobs import Job, performer
from sightline.web.service import Service
from web.conftest import Client
from web.test_effects import AIM, TEXT, Tiny, done

# Where it is asked for, with what, and how often at least it says how far it is: by layers, heads or tokens.
ORDERS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "text": ("", {"text": "one two three four", "model": "tiny"}, {"running": 3}),
    "edits": ("", {"text": TEXT, "model": "tiny", "edits": ["ablate:0.1", "cut:1.2:q9:k3"]}, {"running": 3}),
    "generation": ("", {"text": TEXT, "model": "tiny", "generate": 5}, {"reading the text": 3, "generating": 5}),
    "reading": ("/{base}/readings", AIM, {"reading the text": 3, "running": 3, "going back": 3, "measuring": 2}),
    "effects": ("/{base}/effects", AIM, {"reading the text": 12, "taking heads out": 3}),
}


class Ended(Client):
    """A client whose orders are taken back as they say something, by the route that a page uses."""

    def __init__(self, folder: Path) -> None:
        self.tiny, self.folder = Tiny(), folder
        inner = performer(self.tiny, lambda run: self.service.library.add(run))

        def perform(job: Job, report: Any) -> Any:
            def told(**changes: Any) -> None:
                self.told.append((changes.get("stage", job.stage), changes.get("done", 0)))
                if len(self.told) == self.last:
                    assert self.request("DELETE", f"/api/runs/{job.id}").status_code == 204
                report(**changes)

            return inner(job, told)

        super().__init__(Service(perform, self.tiny, threads=1))
        self.last = 0
        self.told: list[tuple[str, int]] = []
        self.base = done(self, self.post("/api/runs", json={"text": TEXT, "model": "tiny"}))[0]
        self.threads = set(threading.enumerate())

    def order(self, kind: str, last: int = 0, state: str = "done") -> str:
        """Ask for it, and take it back as it says its `last` word."""
        path, body, _ = ORDERS[kind]
        self.told, self.last = [], last
        return done(self, self.post("/api/runs" + path.format(base=self.base), json=body), state)[0]

    def forget(self) -> None:
        """Let go of all but the first run."""
        run = self.service.run(self.base)
        run.readings.clear()
        run.effects.clear()
        for one in self.service.library.listed():
            if one["id"] != self.base:
                assert self.request("DELETE", f"/api/runs/{one['id']}").status_code == 204

    @property
    def left(self) -> tuple[Any, ...]:
        """All that somebody may leave behind."""
        grown = [parameter.grad is not None for parameter in self.tiny.model.parameters()]
        run = self.service.run(self.base)
        return (
            self.tiny.hooks,
            any(grown),
            sorted(thread.name for thread in set(threading.enumerate()) - self.threads),
            sorted(path.name for path in self.folder.iterdir()),
            len(run.readings),
            len(run.effects),
            sorted(one["id"] for one in self.service.library.listed()),
        )

    def leaves(self, before: tuple[Any, ...], word: object = "") -> None:
        """Nothing more is there than before; a thread of the web's own that answered may need a moment to end."""
        end = time.monotonic() + 10
        while self.left[2] != before[2] and time.monotonic() < end:
            time.sleep(0.01)
        assert self.left == before, word


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setattr("sightline.web.library.UNDO", 0)  # what is closed is gone at once
        made = Ended(folder)
        yield made
        made.service.close()
    assert not list(folder.iterdir()), "of runs that were closed"


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_is_taken_back_at_every_word_it_says(client: Ended, kind: str) -> None:
    before = client.left
    client.order(kind)
    words = client.told
    for stage, most in ORDERS[kind][2].items():
        assert len({at for name, at in words if name == stage} - {0}) >= most, f"{stage} says how far it is: {words}"
    client.forget()
    client.leaves(before)
    for last, word in enumerate(words, start=1):
        client.order(kind, last, "cancelled")
        assert client.told == words[:last], "it ends with the word at which it was taken back"
        client.leaves(before, word)
    client.order(kind)
    assert client.told == words, "what was taken back can be asked for again"
    client.forget()


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_that_waits_is_taken_back_before_it_begins(client: Ended, kind: str) -> None:
    held, started, inner = threading.Event(), threading.Event(), client.service.jobs.perform

    def perform(job: Job, report: Any) -> Any:
        if job.request.text == "held":
            started.set()
            assert held.wait(30)
        return inner(job, report)

    before = client.left
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.service.jobs, "perform", perform)
        first = client.post("/api/runs", json={"text": "held", "model": "tiny"})
        assert started.wait(30)
        path, body, _ = ORDERS[kind]
        body = {**body, "token": " the"} if "token" in body else {**body, "text": "a text that waits"}
        client.told, client.last = [], 0
        waits = client.post("/api/runs" + path.format(base=client.base), json=body)
        after = client.post("/api/runs", json={"text": "after it", "model": "tiny"})
        assert (waits.json()["position"], after.json()["position"]) == (1, 2)
        assert client.request("DELETE", f"/api/runs/{waits.json()['id']}").status_code == 204
        assert client.service.jobs.position(client.service.jobs.by_id[after.json()["id"]]) == 1
        held.set()
        for ordered in (first, after):
            done(client, ordered)
    client.forget()
    client.leaves(before)
