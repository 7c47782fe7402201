"""News of a run that comes late, or early: while the page still opens it, and while somebody types another text."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import APIResponse, Browser, Route

from explore_cases import make_run, sights, words
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import Live, Trained, Visit

HEADS = "document.querySelectorAll('.head').length"


@contextmanager
def held(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Visit, Service, threading.Event]]:
    """A page and a model that does three layers, and the others when it is told to."""
    monkeypatch.setattr("sightline.explore.model_runs.EVERY", 0.0)
    monkeypatch.setattr("sightline.explore.model_runs.SHARE", 1e9)  # every layer is looked at, however long that takes
    models, go = Trained(["minilm"]), threading.Event()
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    server = Live(service)
    visit = Visit(browser, server.base)
    hook = models.get("minilm")[0].encoder.layers[3].register_forward_pre_hook(lambda *_: go.wait(120) and None)
    try:
        yield visit, service, go
    finally:
        go.set()
        hook.remove()
        visit.close()
        server.close()


def test_a_text_box_that_was_opened_stays_when_a_run_is_done(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(browser, monkeypatch) as (visit, _, go):
        page = visit.page
        page.goto(visit.base)
        page.click(".composer button[type=submit]")
        visit.until(f"{HEADS} === 36")
        page.click("text=New text")
        page.fill("textarea", "another text")
        go.set()
        visit.until(f"{HEADS} === 72")
        visit.settle()
        assert page.locator(".composer").is_visible()
        assert page.locator("textarea").input_value() == "another text"


def test_an_order_that_waits_says_what_for(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server that is busy with the text of somebody else: there is nothing to show yet, and no empty page."""
    with held(browser, monkeypatch) as (visit, _, go):
        page = visit.page
        page.goto(visit.base)
        page.wait_for_selector(".composer.alone")
        other = {"text": "the text of somebody else", "model": "minilm"}
        assert visit.context.request.post(f"{visit.base}api/runs", data=other).ok
        text = "a text of more letters than its line has room for beside the others"
        page.fill("textarea", text)
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".progress >> text=waiting, place 1")
        page.wait_for_selector(".pending >> text=waits for its turn")
        title = page.locator(".progress .title").inner_text()
        assert title.endswith("…")
        assert text.startswith(title.removeprefix("minilm: ").removesuffix("…"))
        visit.accessible("an order that waits")
        go.set()
        visit.until(f"{HEADS} === 72")
        assert page.locator(".pending").is_hidden()


def test_what_somebody_else_runs_is_not_opened_over_what_is_looked_at(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the list when it is there. What was ordered here is opened, also by a page that was loaded again."""
    with held(browser, monkeypatch) as (visit, service, go):
        mine = make_run(sights(5), words(5))
        service.library.add(mine)
        orders = f"{visit.base}api/runs"
        assert visit.context.request.post(orders, data={"text": "one two", "model": "minilm"}).ok
        page = visit.open(f"#v=2&run={mine.id}&L=0&H=1&q=3&k=1")
        page.wait_for_selector(".progress >> text=running 3 of 6")
        go.set()
        page.wait_for_selector(".progress", state="hidden")
        visit.until("document.querySelectorAll('.run-pick option').length === 2")
        visit.settle()
        assert f"run={mine.id}&" in page.url
        assert "q=3&k=1" in page.url
        go.clear()
        page.click("text=New text")
        page.fill("textarea", "three four five")
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".progress >> text=running 3 of 6")
        page.goto(f"{visit.base}#v=2&run={mine.id}&L=0&H=1&q=3&k=1")
        page.reload()
        page.wait_for_selector(".progress >> text=running 3 of 6")
        go.set()
        visit.until(f"{HEADS} === 72")
        assert f"run={mine.id}&" not in page.url


def test_a_run_that_is_done_while_it_is_opened_has_all_its_layers(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its summaries are on their way when the news comes: opened with the layers that were there, it stayed so."""
    with held(browser, monkeypatch) as (visit, _, go):
        page, routes = visit.page, list[Route]()
        page.clock.install()
        page.goto(visit.base)
        page.wait_for_selector(".composer.alone")
        page.route("**/portraits*", lambda route: route.continue_() if go.is_set() else routes.append(route))
        page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=10))  # nobody waits for them in vain
        page.click(".composer button[type=submit]")
        while not routes:
            page.wait_for_timeout(20)
        with page.expect_response(lambda answer: answer.url == f"{visit.base}api/runs") as listed:
            go.set()
        assert not listed.value.json()["runs"][0]["growing"]
        for route in routes:
            route.continue_()
        page.clock.resume()
        visit.until(f"{HEADS} === 72")
        visit.until("location.hash.includes('L=3&H=1&')")


def test_the_last_news_counts_though_other_news_arrives_while_it_is_read(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for one layer more is answered after the run is done: the page stayed with that answer's layers."""
    with held(browser, monkeypatch) as (visit, service, go):
        assert service.models is not None
        more, answers = threading.Event(), list[tuple[Route, APIResponse]]()
        hook = (
            service.models.get("minilm")[0]
            .encoder.layers[4]
            .register_forward_pre_hook(lambda *_: more.wait(120) and None)
        )
        page = visit.page
        page.goto(visit.base)
        page.click(".composer button[type=submit]")
        visit.until(f"{HEADS} === 36")
        page.wait_for_timeout(1500)  # all news so far is shown

        def answer(route: Route) -> None:
            found = route.fetch()
            if not answers and len(asked) == 0:
                asked.append(route)  # whether it is there yet; what is shown is asked for after that
                route.fulfill(response=found)
            else:
                answers.append((route, found))

        asked: list[Route] = []
        page.route(re.compile(r"/api/runs/[0-9a-f]+$"), answer)
        go.set()
        while len(answers) < 1:
            page.wait_for_timeout(20)
        more.set()
        while not any(not found.json()["growing"] for _, found in answers):
            page.wait_for_timeout(20)
        for route, found in answers:
            route.fulfill(response=found)
            page.wait_for_timeout(300)
        page.unroute_all()
        visit.until(f"{HEADS} === 72")
        hook.remove()


def test_a_token_whose_name_comes_late_is_called_by_it(browser: Browser) -> None:
    """What a text is shaded by may be there first: it said "#9" for as long as nothing else was chosen."""
    service = Service(lambda *_: None, threads=2)  # type: ignore[arg-type, return-value]
    run = make_run(sights(25), words(25))
    service.library.add(run)
    server = Live(service)
    visit = Visit(browser, server.base)
    page, routes = visit.page, list[Route]()
    page.route("**/tokens*", lambda route: routes.append(route))
    page.goto(f"{server.base}#v=2&run={run.id}&L=0&H=1&q=9&k=3")
    about = ".text > .about"
    visit.until(f"document.querySelector('{about}')?.textContent.includes('#9')")
    for route in routes:
        route.continue_()
    visit.until(f"document.querySelector('{about}').textContent.includes('{words(25)[9].strip()}')")
    assert "#" not in page.locator(about).inner_text()
    visit.close()
    server.close()
