"""Reading a text in a real browser: what is found and pinned in it, and what is said where it cannot be read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser

import sightline as sl
from explore_cases import Sights, make_run, sights
from sightline.explore.model_runs import Models, Report
from sightline.explore.run import Run
from sightline.web.jobs import Job, performer
from sightline.web.service import Service
from web.browser import Live, Visit, long_run
from web.conftest import Words

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
    hits = "[...document.querySelectorAll('.t.hit')].map(x => x.innerText).join()"
    visit.until(f"{hits} === 'un,believ,able,Un,believable'")  # some of the letters are enough to find two
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
    visit.rest()
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


# What is pinned is in view


def text_of(tokens: int) -> list[str]:
    return [f"Ġword{i}" for i in range(tokens)]


@pytest.mark.parametrize("screen", ["desktop", "phone"])
@pytest.mark.parametrize("tokens", [501, 3001])
def test_text_opens_at_what_an_address_pins(browser: Browser, live: Live, add: Add, screen: str, tokens: int) -> None:
    run = add(make_run(sights(tokens, layers=1, heads=2), text_of(tokens)))
    visit = Visit(browser, live.base, **(PHONE if screen == "phone" else {}))
    try:
        page = visit.open(f"#v=1&run={run}&L=0&H=0&q={tokens - 40}&k={tokens - 60}", True)
        visit.rest()
        assert inside(visit, ".t.query", ".text-scroll")
        assert inside(visit, ".t.key", ".text-scroll")
        # Who scrolls away is left alone, until something else is pinned.
        page.locator(".text-scroll").hover()
        page.mouse.wheel(0, -100_000)
        visit.until("document.querySelector('.text-scroll').scrollTop === 0")
        page.keyboard.press("]")
        visit.rest()
        assert page.evaluate("document.querySelector('.text-scroll').scrollTop") == 0
        page.locator(".top-keys tbody tr").nth(2).click()
        visit.until("document.querySelector('.t.key') !== null")
        assert inside(visit, ".t.key", ".text-scroll")
    finally:
        visit.close()


def test_text_opens_at_the_first_link(browser: Browser) -> None:
    """Its run is the newest, and its strongest link lies far down."""
    tokens = 1501
    q, k = torch.randn(1, 1, tokens, 8), torch.randn(1, 1, tokens, 8)
    k[..., 1300, :] = 40 * q[..., 1390, :]
    run = make_run(Sights(only=sl.look(q, k, mask=sl.causal(), stats=("entropy", "received"))), text_of(tokens))
    server = Live(Service(performer(Models([]), lambda run: None)))
    server.service.library.add(run)
    visit = Visit(browser, server.base)
    try:
        visit.open("", True)
        visit.until("/[?&]q=[0-9]+&k=1300/.test(location.hash)")
        visit.until("document.querySelector('.t.query') !== null")
        visit.rest()
        assert inside(visit, ".t.query", ".text-scroll")
    finally:
        visit.close()
        server.close()


@pytest.mark.parametrize("screen", ["desktop", "phone"])
@pytest.mark.parametrize("tokens", [201, 701])
def test_links_are_scrolled_to_what_is_pinned(browser: Browser, live: Live, add: Add, screen: str, tokens: int) -> None:
    run = add(make_run(sights(tokens, layers=1, heads=2), text_of(tokens)))
    visit = Visit(browser, live.base, **(PHONE if screen == "phone" else {}))
    pinned = ".links-column.left li.pinned"
    try:
        page = visit.open(f"#v=1&run={run}&L=0&H=0&q=170&k=165&view=links", True)
        if screen == "phone":
            page.tap(".panels button[data-panel=more]")
        page.wait_for_selector(".links-lines path", state="attached")
        visit.rest()
        assert inside(visit, pinned, ".links-scroll")
        assert inside(visit, ".links-column.right li.pinned", ".links-scroll")
        # Another head: the same place, wherever it was scrolled to.
        page.locator(".links-scroll").hover()
        page.mouse.wheel(0, -100_000)
        visit.until("document.querySelector('.links-scroll').scrollTop === 0")
        page.keyboard.press("]")
        visit.rest()
        assert page.evaluate("document.querySelector('.links-scroll').scrollTop") == 0
        page.keyboard.press("1")
        page.keyboard.press("4")
        visit.rest()
        assert inside(visit, pinned, ".links-scroll"), "who comes back sees it"
        if screen == "desktop":
            page.click(".t[data-t='5']")
            visit.until("location.hash.includes('q=5&')")
            visit.rest()
            assert inside(visit, pinned, ".links-scroll")
            page.locator(".top-keys tbody tr").first.click()
            visit.rest()
            assert inside(visit, ".links-column.right li.pinned", ".links-scroll")
            # Too far apart for both to be in view: the edge names the other one, and leads there.
            page.evaluate("location.hash = location.hash.replace(/q=[0-9]+&k=[0-9]+/, 'q=170&k=112')")
            page.click(".links-edge.right.above:has-text('(112)')")
            visit.until("document.querySelector('.links-edge.right').hidden")
            assert inside(visit, ".links-column.right li.pinned", ".links-scroll")
            page.click(".links-edge.left:not(.above):has-text('(170)')")
            assert inside(visit, pinned, ".links-scroll")
    finally:
        visit.close()


# Addresses of a run alone, and texts that grow


def test_an_address_of_a_run_alone_opens_as_a_first_visit(visit: Visit, add: Add) -> None:
    run = add(make_run(sights(25, layers=3), text_of(25)))
    add(make_run(sights(9), text_of(9), text="a newer one"))
    page = visit.open(f"#run={run}")
    visit.until("/q=[0-9]+&k=[0-9]+/.test(location.hash)", 10)
    first = {name: page.url.split(f"&{name}=")[1].split("&")[0] for name in ("L", "H", "q", "k")}
    best = page.locator(".head[aria-selected=true]").get_attribute("aria-label")
    assert page.locator(".head").first.get_attribute("aria-label") == best, "the head that is ranked first"
    assert f"run={run}" in page.url
    # What it says of how to look is as it says; what it says of where to look is all there is.
    page.goto(f"{visit.base}#run={run}&view=links&map=viridis&lo=0.01")
    page.reload()
    visit.until("/q=[0-9]+&k=[0-9]+/.test(location.hash)", 10)
    assert all(f"{name}={value}" in page.url for name, value in first.items())
    assert all(part in page.url for part in ("view=links", "map=viridis", "lo=0.01"))
    page.goto(f"{visit.base}#run={run}&L=1&H=2")
    page.reload()
    page.wait_for_selector(".app:not(.empty)")
    visit.settle()
    assert "L=1&H=2&pool" in page.url, "nothing is pinned that is not in it"


def test_ticks_keep_their_positions_when_cells_become_small(visit: Visit, add: Add) -> None:
    page = visit.open(f"#v=1&run={add(make_run(sights(101, layers=1, heads=1), text_of(101)))}&L=0&H=0&at=20,20,4")
    rows = page.locator(".centre-map .axis-label.row")
    assert rows.first.inner_text().startswith("word")
    page.keyboard.press("0")
    visit.until("!location.hash.includes('at=')")
    visit.settle()
    labels = [text.split() for text in rows.all_inner_texts()]
    assert len(labels) > 3
    assert all(word == f"word{place}" for place, word in labels)


def test_a_text_that_has_grown_looks_as_it_does_when_it_is_read_anew(browser: Browser) -> None:
    written = threading.Event()
    tokens = text_of(151)

    def write(job: Job, report: Report) -> Run:
        first = Run(job.id, sights(9, layers=1), tokens[:9], revision=9, growing=True)
        service.library.add(first)
        report(stage="generating", done=2, total=9)
        written.wait(60)
        return Run(job.id, sights(151, layers=1), tokens, revision=151)

    service = Service(write, models=Words(), threads=2)
    server = Live(service)
    visit = Visit(browser, server.base)
    try:
        page = visit.page
        page.goto(server.base)
        page.click(".composer button[type=submit]")
        visit.until("document.querySelectorAll('.text-body .t').length === 9")
        visit.until("location.hash.includes('&scale=linear&lo=0&')")
        assert page.locator(".centre-map .axis-label.row").first.inner_text() == "word0"
        written.set()
        visit.until("document.querySelectorAll('.text-body .t').length === 151")
        visit.settle()
        visit.until("location.hash.includes('&scale=log&lo=0.0001&')")
        rows = ".centre-map .axis-label.row"
        page.keyboard.press("Escape")  # what is pinned takes the place of ticks beside it
        visit.until("document.querySelector('.axis-label.pinned') === null")
        grown = page.locator(rows).all_inner_texts()
        assert all(len(text.split()) == 2 for text in grown), grown
        page.goto(server.base)
        page.wait_for_selector(".app:not(.empty)")
        visit.settle()
        assert "&scale=log&lo=0.0001&" in page.url
        page.keyboard.press("Escape")
        visit.until("document.querySelector('.axis-label.pinned') === null")
        assert {text.split()[0] for text in grown if int(text.split()[0]) % 10 == 0} <= {
            text.split()[0] for text in page.locator(rows).all_inner_texts()
        }
    finally:
        visit.close()
        server.close()


# Two texts beside each other


def test_a_pin_follows_the_text_and_says_where_it_cannot(visit: Visit, add: Add) -> None:
    a, b, c = (
        add(make_run(sights(len(tokens)), tokens, model=f"of {len(tokens)}"))
        for tokens in (
            ["[CLS]", "the", "ki", "##ds", "le", "##ft", "."],
            ["The", "Ġbig", "Ġlions", "Ġroared", "Ġand", "Ġleft", "."],
            ["ĠQuite", "Ġanother"],
        )
    )
    page = visit.open(f"#v=1&run={a}&view=compare&L=0&H=0&q=4&k=1&with={b},0,0")
    visit.settle()
    pinned = ".compare-side:nth-child({}) .axis-label.{}.pinned"
    assert page.locator(pinned.format(2, "row")).all_inner_texts() == ["left"]
    assert page.locator(pinned.format(2, "column")).all_inner_texts() == ["The"]
    assert page.locator(".compare-note").is_hidden()
    page.click(".t[data-t='2']")
    page.mouse.move(2, 2)
    page.wait_for_selector(".compare-note >> text=not in the second text")
    assert page.locator(pinned.format(1, "row")).all_inner_texts() == ["ki"]
    assert page.locator(pinned.format(2, "row")).count() == 0
    page.select_option("select[aria-label='second run']", c)
    page.wait_for_selector(".compare-note >> text=no text in common")
    visit.accessible("two texts", "#centre")
    assert page.locator(pinned.format(2, "row")).count() == 0
    surface = page.locator(".compare-side:nth-child(2) .surface").bounding_box()
    assert surface is not None
    page.mouse.click(surface["x"] + 8, surface["y"] + 8)
    page.wait_for_selector(".notice >> text=the first text has neither")
    assert "q=2&" in page.url


# A server that is gone for a while


@contextmanager
def gone(visit: Visit, what: str = "**/api/**") -> Iterator[None]:
    """Nothing answers; what the browser says of that is as it should be."""
    visit.expected.append("ERR_CONNECTION_REFUSED")
    visit.page.route(what, lambda route: route.abort("connectionrefused"))
    yield
    visit.page.unroute(what)


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_retry_can_be_clicked_on_a_long_map(browser: Browser, live: Live, add: Add, screen: str) -> None:
    run = add(long_run(4096))
    visit = Visit(browser, live.base, **(PHONE if screen == "phone" else {}))
    try:
        page = visit.open(f"#v=1&run={run}&view=map&L=0&H=0&at=3000,1500,-1&diag=0", True)
        if screen == "phone":
            page.tap(".panels button[data-panel=centre]")
            visit.settle(True)
        page.wait_for_selector(".centre-map .minimap")
        with gone(visit):
            page.keyboard.press("+")
            page.wait_for_selector(".centre-map .failure >> text=The server does not answer")
        for other in (".minimap", ".zooms .icon-button"):
            assert not overlap(visit, ".centre-map .failure", f".centre-map {other}"), other
        page.click(".centre-map .failure button", timeout=5000)
        page.wait_for_selector(".failure", state="hidden")
        visit.settle(True)
    finally:
        visit.close()


def overlap(visit: Visit, one: str, other: str) -> bool:
    a, b = (visit.page.locator(name).first.bounding_box() for name in (one, other))
    assert a is not None
    assert b is not None
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in (("x", "width"), ("y", "height")))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_text_and_links_have_a_button_to_try_again(
    browser: Browser, live: Live, add: Add, screen: str, scheme: Any
) -> None:
    run = add(make_run(sights(len(PIECES)), PIECES))
    visit = Visit(browser, live.base, color_scheme=scheme, **(PHONE if screen == "phone" else {}))
    try:
        page = visit.open(f"#v=1&run={run}&L=0&H=0&q=5&view=links")
        if screen == "phone":
            page.tap(".panels button[data-panel=more]")
        page.wait_for_selector(".links-lines path", state="attached")
        with gone(visit):
            page.keyboard.press("]")
            page.wait_for_selector(".links-about >> text=The server does not answer")
            assert page.locator(".links-lines path").count() == 0, "no lines of the head before"
            page.click(".links-about button")  # and nobody is there yet
            page.wait_for_selector(".links-about >> text=The server does not answer")
            visit.accessible("links that failed", "#centre")
        page.click(".links-about button")
        page.wait_for_selector(".links-lines path", state="attached")
        assert page.locator(".links-about button").count() == 0
        if screen == "phone":
            page.tap(".panels button[data-panel=text]")
        page.wait_for_selector(".about >> text=what “left” looks at")  # one button healed both
        with gone(visit):
            if screen == "phone":
                page.tap(".t[data-t='4']")
                page.tap(".t[data-t='4']")
            else:
                page.click(".t[data-t='4']")
                page.mouse.move(2, 2)
            page.wait_for_selector(".about.problem >> text=The server does not answer")
            visit.accessible("a text that failed", "#text")
        # Whoever asked meanwhile may have healed it before anybody could click.
        page.evaluate("document.querySelector('.about button')?.click()")
        page.wait_for_selector(".about:not(.problem) >> text=what “kids” looks at")
    finally:
        visit.close()


def test_a_run_that_could_not_be_opened_is_tried_again(visit: Visit, add: Add) -> None:
    other = add(make_run(sights(9), [f"Ġx{i}" for i in range(9)], text="another one"))
    run = add(make_run(sights(len(PIECES)), PIECES))
    visit.page.clock.install()
    page = visit.open(f"#v=1&run={run}&L=0&H=0&q=5")
    with gone(visit):
        page.select_option("select[aria-label=run]", other)
        page.wait_for_selector(".notice >> text=The server does not answer")
        page.clock.fast_forward(6300)  # others are gone by then
        assert page.locator(".notice").is_visible(), "what is to be done stays"
        visit.accessible("a notice with a button", ".notice")
    page.click(".notice button")
    visit.until("document.querySelectorAll('.text-body .t').length === 9")
    assert page.locator(".notice").is_hidden()
