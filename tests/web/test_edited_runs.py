"""What is told of an edited run is told of it with its edits, and of nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser

from sightline.explore import model_runs
from sightline.explore.run import Run
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import Live, Visit
from web.conftest import Client
from web.test_effects import TEXT, Tiny, done


@pytest.fixture(scope="module")
def asked() -> Iterator[Client]:
    tiny = Tiny()
    service = Service(performer(tiny, lambda run: service.library.add(run)), tiny, threads=1)
    yield Client(service)
    service.close()


def row(asked: Client, run: str, place: str, query: int) -> np.ndarray:
    return np.nan_to_num(np.frombuffer(asked.get(f"/api/runs/{run}/rows/{place}?q={query}").content, "<f4"))


@pytest.mark.parametrize("place", ["0/1", "1/2", "2/0"])
def test_the_worked_table_of_an_edited_run_has_its_weights(asked: Client, place: str) -> None:
    """Those of the head that is changed, and of the layers behind it."""
    edits = ["cut:0.1:k3", "boost:0.1:q9:k2-4:x3", "ablate:0.2", "scale:1.1:x0.5", "cut:2.0:q9:k0-5"]
    plain, _ = done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "tiny"}))
    edited, _ = done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "tiny", "edits": edits}))
    shown = row(asked, edited, place, 9)
    assert abs(shown - row(asked, plain, place, 9)).max() > 0.01
    found = asked.get(f"/api/runs/{edited}/steps/{place}?q=9&top=20").json()
    lines = {line["key"]: line["weight"] or 0.0 for line in found["lines"] if line["key"] is not None}
    for key in range(10):
        assert lines.get(key, 0.0) == pytest.approx(shown[key], abs=1e-6)
    there: dict[str, float] = {}
    exec(found["python"], there)
    assert there["weight"] == pytest.approx(shown[found["python_key"]], abs=1e-6)


class Held:
    """Within it, a run that grows gets no further than its first layers."""

    def __init__(self) -> None:
        self.grown, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def __enter__(self) -> None:
        self.grown.clear()
        self.goes_on.clear()

    def __exit__(self, *why: object) -> None:
        self.goes_on.set()

    def add(self, service: Service, run: Run) -> None:
        service.library.add(run)
        self.grown.set()
        assert self.goes_on.wait(30)


@pytest.fixture(scope="module")
def held() -> Held:
    return Held()


@pytest.fixture(scope="module")
def live(held: Held) -> Iterator[Live]:
    tiny = Tiny()
    service = Service(performer(tiny, lambda run: held.add(service, run)), tiny)
    server = Live(service)
    yield server
    server.close()
    service.close()


@pytest.fixture
def http(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.base) as client:
        yield client


def test_what_was_written_is_edited_token_by_token(browser: Browser, live: Live, http: Any) -> None:
    """Cut as text once more, it would have one token more: what comes after two different places was compared."""
    written, _ = done(http, http.post("/api/runs", json={"text": TEXT, "model": "tiny", "generate": 6}))
    visit = Visit(browser, live.base)
    page = visit.open(f"#v=2&run={written}&L=1&H=2&q=9&k=4&edits=ablate:1.2,cut:0.1:k3")
    page.locator(".outcome:not([hidden])").wait_for()
    edited = page.url.split("with=")[1].split(",")[0]
    runs = [live.service.run(id) for id in (written, edited)]
    assert runs[0].account.ids == runs[1].account.ids  # type: ignore[attr-defined]
    assert [token["id"] for run in runs for token in run.meta["written"]["tokens"]] == 2 * [
        token["id"] for token in runs[0].meta["written"]["tokens"]
    ]
    before = http.get(f"/api/runs/{written}/next").json()
    words = {"token": before["tokens"][0]["text"], "than": before["tokens"][1]["text"]}
    was, now = (http.get(f"/api/runs/{run}/next", params=words).json() for run in (written, edited))
    assert was["after"] == now["after"] == 18
    said = page.locator(".outcome").inner_text()
    assert f"difference of their logits {was['value']:.2f} → {now['value']:.2f}" in said
    visit.close()


def test_an_edited_run_that_grows_is_waited_for(
    browser: Browser, live: Live, http: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is there as the page asks: it is put beside the run when it is whole, and the sentence is said."""
    monkeypatch.setattr(model_runs, "EVERY", 0.0)  # what is there is handed out at once
    plain, _ = done(http, http.post("/api/runs", json={"text": TEXT, "model": "tiny"}))
    with held:
        ordered = http.post("/api/runs", json={"text": TEXT, "model": "tiny", "edits": ["ablate:1.2"]})
        assert held.grown.wait(30)
        visit = Visit(browser, live.base)
        page = visit.open(f"#v=2&run={plain}&L=1&H=2&q=9&k=4&edits=ablate:1.2")
        page.locator(".edit-chip").wait_for()
        visit.until("document.querySelector('.why-progress')?.hidden === false")
        assert "with=" not in page.url
        assert page.locator(".outcome").is_hidden()
    page.locator(".outcome:not([hidden])").wait_for()
    edited = page.url.split("with=")[1].split(",")[0]
    assert edited == ordered.json()["id"]
    assert not live.service.run(edited).growing
    visit.close()


def test_of_some_layers_the_same_one_is_beside_it(browser: Browser, live: Live, http: Any) -> None:
    some, _ = done(http, http.post("/api/runs", json={"text": TEXT, "model": "tiny", "layers": "1-2"}))
    visit = Visit(browser, live.base)
    page = visit.open(f"#v=2&run={some}&L=2&H=3&q=9&k=4&edits=ablate:1.2")
    page.locator(".outcome:not([hidden])").wait_for()
    assert page.url.split("with=")[1].split("&")[0].split(",")[1:] == ["2", "3"]
    titles = page.locator(".compare-side h2").all_inner_texts()
    assert all("layer 2 head 3" in title for title in titles), titles
    visit.close()
