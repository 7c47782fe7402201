"""Reading a text in a real browser: what is found and pinned in it, and what is said where it cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from explore_cases import make_run, sights
from sightline.explore.model_runs import Models
from sightline.explore.run import Run
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import Live, Visit

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

# Gives the server a run, and says its id.
Add = Callable[[Run], str]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server without models; every test brings its runs."""
    server = Live(Service(performer(Models([]), lambda run: None)))
    yield server
    server.close()


@pytest.fixture
def add(live: Live) -> Iterator[Add]:
    added: list[str] = []

    def one(run: Run) -> str:
        live.service.library.add(run)
        added.append(run.id)
        return run.id

    yield one
    for run in added:
        live.service.close_run(run)


@pytest.fixture
def visit(browser: Browser, live: Live, add: Add) -> Iterator[Visit]:
    opened = Visit(browser, live.base)
    yield opened
    opened.close()


@pytest.fixture
def phone(browser: Browser, live: Live, add: Add) -> Iterator[Visit]:
    opened = Visit(browser, live.base, **PHONE)
    yield opened
    opened.close()


def inside(visit: Visit, node: str, frame: str) -> bool:
    """Whether all of an element is to be seen in its frame, and on the screen."""
    return visit.page.evaluate(
        """([node, frame]) => {
            const [a, b] = [node, frame].map(one => document.querySelector(one).getBoundingClientRect());
            return a.top >= b.top - 1 && a.bottom <= b.bottom + 1 && a.top >= 0 && a.bottom <= innerHeight;
        }""",
        [node, frame],
    )


# Find

PIECES = ["The", "Ġun", "believ", "able", "Ġkids", "Ġleft", ",", "Ġso", "Ġthe", "ĠUn", "believable", "Ġlions", "Ġleft"]


def long_text(tokens: int = 3001) -> list[str]:
    """A text over several blocks, with a word of three tokens near both ends."""
    text = [f"Ġw{i % 97}" for i in range(tokens)]
    for place in (40, tokens - 30):
        text[place : place + 3] = ["Ġun", "believ", "able"]
    return text


def test_find_steps_through_words_over_several_tokens(visit: Visit, add: Add) -> None:
    page = visit.open(f"#v=1&run={add(make_run(sights(len(PIECES)), PIECES))}&L=0&H=0")
    page.keyboard.press("/")
    page.keyboard.type("UNBELIEVABLE")
    page.wait_for_selector(".found >> text=2 found")
    assert page.locator(".t.hit").all_inner_texts() == [" un", "believ", "able", " Un", "believable"]
    seen = []
    for key in ("Enter", "Enter", "Enter", "Shift+Enter"):
        page.keyboard.press(key)
        seen.append((page.locator(".found").inner_text(), page.url.split("&q=")[1].split("&")[0]))
    first, second = ("1 of 2", "1,2,3"), ("2 of 2", "9,10")
    assert seen == [first, second, first, second]
    page.fill(".find", "left, so the un")
    page.wait_for_selector(".found >> text=1 found")
    page.click("button[aria-label^='next place']")
    assert "q=5,6,7,8,9&" in page.url
    page.fill(".find", "kids so")
    page.wait_for_selector(".found >> text=“kids so” is not in the text")
    assert page.locator(".find").get_attribute("aria-invalid") == "true"
    visit.accessible("nothing found", "#text")
    page.keyboard.press("Enter")
    assert "q=5,6,7,8,9&" in page.url
    page.fill(".find", "kids")
    page.wait_for_selector(".found >> text=1 found")
    assert page.locator(".find").get_attribute("aria-invalid") == "false"
    page.keyboard.press("Escape")
    assert page.locator(".find").is_hidden()
    assert page.locator(".t.hit").count() == 0


def test_find_reaches_the_far_end_of_a_long_text(visit: Visit, add: Add) -> None:
    tokens = long_text()
    page = visit.open(f"#v=1&run={add(make_run(sights(len(tokens), layers=1, heads=1), tokens))}&L=0&H=0", True)
    page.keyboard.press("/")
    page.keyboard.type("w0 unbelievable")
    page.wait_for_selector(".found >> text=not in the text")
    page.fill(".find", "unbelievable")
    page.wait_for_selector(".found >> text=2 found")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(".found >> text=2 of 2")
    visit.until("document.querySelectorAll('.t.query').length === 3")
    assert inside(visit, ".t.query", ".text-scroll")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_can_find(browser: Browser, live: Live, add: Add, scheme: Any) -> None:
    run = add(make_run(sights(len(PIECES)), PIECES))
    visit = Visit(browser, live.base, color_scheme=scheme, **PHONE)
    try:
        page = visit.open(f"#v=1&run={run}&L=0&H=0")
        page.tap("button[aria-label^='find words']")
        page.fill(".find", "unbelievable k")
        page.wait_for_selector(".found >> text=1 found")
        page.tap("button[aria-label^='next place']")
        assert "q=1,2,3,4&" in page.url
        visit.accessible("find on a phone", "#text")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert (page.locator("button[aria-label^='next place']").bounding_box() or {})["height"] >= 44
    finally:
        visit.close()
