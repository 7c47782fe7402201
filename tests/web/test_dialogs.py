"""Dialogs, notices and the text box in a real browser: on a phone, without a clipboard, without a server or models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from sightline.explore.model_runs import Models, RunRequest, watched
from sightline.models import load as load_model
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import SENTENCE, Live, Visit
from web.test_first_minutes import PHONE

HERE = "&L=3&H=1&q=10&k=2"
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
# What a finger must hit: it, or the label that goes with it.
SMALL = """(within) => [...document.querySelectorAll(
        ['button', 'input', 'select', 'summary'].map((tag) => `${within} ${tag}`).join())]
    .filter((node) => node.checkVisibility())
    .map((node) => (node.type === 'checkbox' && node.closest('label')) || node)
    .filter((node) => node.getBoundingClientRect().height < 43.5)
    .map((node) => node.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    models = Models(["minilm"])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    folder = tmp_path_factory.mktemp("dialogs")
    for name, text in (("a", SENTENCE), ("b", "Another text, which is not opened.")):
        watched(*load_model("minilm"), RunRequest(text, "minilm"), folder / name, lambda **_: None)
    service.library.shelve_folder(folder)
    server = Live(service)
    server.kids, server.other = (run["id"] for run in service.library.listed())  # type: ignore[attr-defined]
    yield server
    server.close()


@pytest.fixture
def visit(browser: Browser, live: Live) -> Iterator[Visit]:
    opened = Visit(browser, live.base)
    yield opened
    opened.close()


@pytest.fixture
def phone(browser: Browser, live: Live) -> Iterator[Visit]:
    opened = Visit(browser, live.base, **PHONE)
    yield opened
    opened.close()


def limited(page: Page, visit: Visit, models: list[dict]) -> None:
    """Let the server say that it has these models."""
    limits = visit.context.request.get(visit.base + "api/limits").json() | {"models": models}

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=json.dumps(limits))

    page.route("**/api/limits", answer)


def test_without_a_clipboard_the_address_and_the_program_are_shown(phone: Visit, live: Live) -> None:
    """As on every page that comes from another machine over plain HTTP."""
    phone.page.add_init_script(NO_CLIPBOARD)
    page = phone.open(f"#v=2&run={live.kids}{HERE}")
    page.tap("button.share")
    page.wait_for_selector(".notice:not([hidden]) >> text=&L=3&H=1")
    box, panels = page.locator(".notice").bounding_box(), page.locator(".panels").bounding_box()
    assert box["y"] + box["height"] <= panels["y"], "the panels are to be reached"
    assert box["x"] >= 8
    assert box["x"] + box["width"] <= 382
    assert box["width"] > 300, "a long line has the width of the screen"
    assert page.evaluate("getSelection().toString()") == page.url, "marked, to be copied"
    page.tap(".notice [aria-label=close]")
    assert page.locator(".notice").is_hidden(), "and it stays until it is closed"
    page.locator(".why-bar button:has-text('Python')").tap()
    page.tap("dialog[open] >> text=Copy")
    page.wait_for_selector("dialog[open] .notice >> text=no clipboard")
    program = page.locator("dialog[open] pre.python").inner_text()
    assert page.evaluate("getSelection().toString()").strip() == program.strip()


def test_a_finger_finds_its_own_words_and_targets(phone: Visit, live: Live) -> None:
    page = phone.open(f"#v=2&run={live.kids}{HERE}")
    page.tap("button.help")
    assert "tap" in page.locator("dialog[open] p >> nth=0").inner_text()
    assert not page.locator("dialog[open] kbd >> nth=0").is_visible(), "a phone has no keys"
    page.tap("dialog[open] summary")
    assert page.locator("dialog[open] kbd >> nth=0").is_visible()
    assert page.evaluate(SMALL, "dialog[open]") == []
    page.tap("text=Take the tour")
    for _ in range(6):
        said = page.locator(".tour p").inner_text()
        for word in ("Esc", "lick", "oint at", "Scroll", "(R)"):
            assert word not in said
        page.tap(".tour .primary")
    for button in ("Cut this", "Mark", "for the next token"):
        page.locator(f".why-bar button:has-text('{button}')").tap()
        page.wait_for_selector("dialog[open]")
        assert page.evaluate(SMALL, "dialog[open]") == [], button
        phone.accessible(button)
        page.tap("dialog[open] [aria-label=close]")
    page.tap("text=New text")
    assert page.evaluate(SMALL, ".composer") == []
    phone.errors.clear()  # this model writes nothing: see below


def test_a_model_that_writes_nothing_is_not_asked_what_it_writes(visit: Visit, live: Live) -> None:
    page = visit.open(f"#v=2&run={live.kids}{HERE}")
    page.click(".why-bar button:has-text('for the next token')")
    page.wait_for_selector("dialog[open] [role=status] >> text=predicts no tokens")
    assert page.locator("dialog[open] .primary").is_disabled()
    visit.errors.clear()


def test_on_a_phone_the_sentence_of_a_bookmark_is_read_whole(phone: Visit, live: Live) -> None:
    page = phone.open(f"#v=2&run={live.kids}{HERE}")
    page.locator(".why-bar .marks-button").tap()
    field = "document.querySelector('.marks-form input')"
    assert page.evaluate(f"{field}.value") == "they looks at kids in layer 3 head 1"
    assert page.evaluate(f"{field}.scrollWidth <= {field}.clientWidth")


def test_a_notice_lies_over_the_dialog_that_it_is_about(visit: Visit, live: Live) -> None:
    page = visit.open(f"#v=2&run={live.kids}{HERE}")
    page.keyboard.press("c")
    page.fill("#edit-factor", "1000")
    page.click("dialog[open] >> text=scale it")
    page.wait_for_selector("dialog[open] .notice >> text=a factor from 0 to 100")
    box = page.locator(".notice").bounding_box()
    at = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).className", at) == "notice"
    page.keyboard.press("Escape")
    page.wait_for_selector(".app > .notice")  # it is not closed with the dialog


def test_a_bookmark_of_a_head_that_is_not_here_leads_to_no_other_head(visit: Visit, live: Live) -> None:
    page = visit.open(f"#v=2&run={live.kids}{HERE}&marks=3~77~10~2~of%20another%20model")
    page.keyboard.press("b")
    page.click("dialog[open] .mark")
    page.wait_for_selector(".notice >> text=layer 3 of this run has no head 77")
    assert "&H=1&" in page.url


def test_a_run_that_cannot_be_opened_is_not_named_as_the_open_one(visit: Visit, live: Live) -> None:
    page = visit.open(f"#v=2&run={live.kids}{HERE}")
    page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    page.select_option("select[aria-label=run]", live.other)
    page.wait_for_selector(".notice >> text=The server does not answer")
    visit.until(f"document.querySelector('select[aria-label=run]').value === '{live.kids}'")
    page.unroute("**/api/**")
    page.click(".notice .retry")
    visit.until(f"document.querySelector('select[aria-label=run]').value === '{live.other}'")
    visit.errors.clear()


def test_a_report_links_to_no_server(visit: Visit, live: Live, tmp_path: Path) -> None:
    answer = visit.context.request.get(f"{live.base}api/runs/{live.kids}/export?format=html")
    (tmp_path / "report.html").write_bytes(answer.body())
    visit.page.goto((tmp_path / "report.html").as_uri())
    visit.page.wait_for_selector(".app:not(.empty) .report-note")
    assert visit.page.locator("a[href^='/']").count() == 0
    visit.requests.clear()  # the file itself


def test_on_a_phone_the_panel_is_that_of_the_view(phone: Visit, live: Live) -> None:
    page = phone.open(f"#v=2&run={live.kids}{HERE}")
    page.tap("[data-panel=centre]")
    page.evaluate("location.hash = location.hash.replace(/&view=[a-z]+|$/, '&view=compare')")
    page.wait_for_selector("[data-panel=more][aria-current=true]")
    assert page.locator("#tab-compare").is_visible()
    page.go_back()
    page.wait_for_selector("[data-panel=centre][aria-current=true]")


def test_without_models_nothing_is_asked_for(visit: Visit) -> None:
    page = visit.page
    limited(page, visit, [])
    page.route("**/api/runs", lambda route: route.fulfill(json={"runs": [], "orders": [], "closed": []}))
    page.goto(visit.base)
    page.wait_for_selector(".composer >> text=This server has no models")
    for part in ("textarea", ".composer select", ".composer [type=submit]", ".gallery"):
        assert not page.locator(part).is_visible(), part
    visit.accessible("no models")


def test_a_picture_is_not_asked_about_words(phone: Visit, live: Live) -> None:
    page = phone.page
    limited(page, phone, [{"name": "vit", "title": "vit", "causal": False, "image": True}])
    page.route("**/api/runs", lambda route: route.fulfill(json={"runs": [], "orders": [], "closed": []}))
    page.goto(phone.base)
    page.wait_for_selector(".composer >> text=Look at a picture")
    assert "they" not in page.locator(".composer").inner_text()
    assert page.evaluate(SMALL, ".composer") == []
