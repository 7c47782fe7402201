"""Generation as it happens, in a real browser: held, stepped through, let go on, and gone on from another token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Route

from sightline.web.jobs import Job, performer
from sightline.web.service import Service
from web.browser import Live, Visit
from web.test_effects import TEXT, Tiny

TOKENS = 6


@pytest.fixture
def live() -> Iterator[Live]:
    """A server whose texts wait after two tokens."""
    tiny = Tiny()
    inner = performer(tiny, lambda run: service.library.add(run))

    def perform(job: Job, report: Any) -> Any:
        if not job.request.begun:
            job.pace.set("step")
        return inner(job, report)

    service = Service(perform, tiny)
    server = Live(service)
    yield server
    server.close()
    service.close()


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_a_text_is_held_and_stepped_through_and_another_token_taken(
    browser: Browser, live: Live, width: int, theme: str
) -> None:
    api = f"{live.base}api/runs"
    run = httpx.post(api, json={"text": TEXT, "model": "tiny", "generate": TOKENS}).json()["id"]
    visit = Visit(browser, live.base, viewport={"width": width, "height": 900}, color_scheme=theme)
    page = visit.page
    while live.service.jobs.by_id[run].looks < 1:
        page.wait_for_timeout(20)  # it is handed out when it waits
    visit.open(f"#v=2&run={run}&view=written")
    if width < 900:
        page.click("[data-panel=more]")
    count = "document.querySelectorAll('.written-list li').length"

    def written() -> Any:
        return httpx.get(f"{api}/{run}/written").json()

    visit.until(f"{count} === 2")
    assert f"2 of {TOKENS} are written, and it waits" in page.locator(".written .summary").inner_text()
    for token, line in zip(written()["tokens"], page.locator(".written-list li").all(), strict=True):
        assert float(line.locator("b").inner_text()) == pytest.approx(token["p"], abs=5e-4)
        assert line.locator(".instead button").count() == 4
    visit.accessible("a text that waits")
    step = page.locator(".written-controls button", has_text="Step")
    step.focus()
    page.keyboard.press("Enter")
    visit.until(f"{count} === 3")
    page.wait_for_timeout(300)
    assert len(written()["tokens"]) == 3, "one step is one token"

    # What is said last holds: it is not sent before the server has heard what was said first.
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    page.route("**/pace", hold)
    step.click()
    page.locator(".written-controls button", has_text="Go on").click()
    page.wait_for_timeout(300)
    assert [json.loads(route.request.post_data or "")["do"] for route in held] == ["step"]
    held[0].continue_()
    visit.until(f"{count} === {TOKENS}")
    visit.until("document.querySelector('.written-controls button') === null")
    visit.settle()

    other = written()["tokens"][1]["others"][1]
    page.locator(".written-list li").nth(1).locator(".instead button").nth(1).click()
    visit.until(f"!location.hash.includes('{run}') && {count} === {TOKENS}")
    visit.until("document.querySelector('.written-controls button') === null")
    first, run = written()["tokens"], page.url.split("run=")[1].split("&")[0]
    tokens = written()["tokens"]
    assert [token["id"] for token in tokens[:2]] == [first[0]["id"], other["id"]]
    assert tokens[1]["p"] == pytest.approx(other["p"], rel=1e-4)
    visit.accessible("another token")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visit.close()
