"""What attended without being seen: a button in the bar says how many, and opens who and why, however it is reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from explore_cases import make_run, sights, words
from sightline.explore.model_runs import Models
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import Live, Visit

BY_HAND = "it is written by hand: a softmax between two products of computed tensors"
UNSEEN = {f"model.encoder.blocks.{i}.self_attention.of_a_long_name": BY_HAND for i in range(24)}
UNSEEN |= {"pooler.<b>attention</b>": "torch.jit made it"}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SCREENS: dict[str, dict[str, Any]] = {"desktop": {"viewport": {"width": 1440, "height": 900}}, "phone": PHONE}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Two runs: of one everything was seen."""
    service = Service(performer(Models([]), lambda run: None))
    account = sights(12)
    account.unseen = UNSEEN  # type: ignore[attr-defined]
    server = Live(service)
    for name, run in (("some", make_run(account, words(12))), ("all", make_run(sights(14), words(14)))):
        service.library.add(run)
        setattr(server, name, run.id)
    yield server
    server.close()


def opened(visit: Visit, live: Live) -> Page:
    page = visit.open(f"#v=1&run={live.some}&L=0&H=0")  # type: ignore[attr-defined]
    assert page.locator(".bar .unseen").inner_text() == "25 not seen"
    return page


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_was_not_seen_and_why(browser: Browser, live: Live, screen: str, scheme: Any) -> None:
    visit = Visit(browser, live.base, color_scheme=scheme, **SCREENS[screen])
    try:
        page = opened(visit, live)
        button, dialog = page.locator(".bar .unseen"), page.locator("dialog[open]")
        if screen == "phone":
            assert (button.bounding_box() or {})["height"] >= 44
            button.tap()
        else:
            button.click()
        assert dialog.locator("h2").inner_text().lower() == "not seen"
        assert dialog.locator("dt").all_inner_texts() == [f"{BY_HAND} (24)", "torch.jit made it"]
        assert dialog.locator("dd").all_inner_texts() == list(UNSEEN)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert dialog.evaluate("node => node.scrollWidth <= node.clientWidth"), "long names are broken, not cut off"
        dialog.locator("dd").last.scroll_into_view_if_needed()
        assert (
            page.evaluate("document.querySelector('dialog[open] dd:last-child').getBoundingClientRect().bottom")
            < (SCREENS[screen]["viewport"]["height"])
        )
        visit.accessible("what was not seen", "dialog[open]")
        dialog.locator("button[aria-label=close]").click()
        dialog.wait_for(state="hidden")
    finally:
        visit.close()


def test_keys_alone_open_and_close_it(browser: Browser, live: Live) -> None:
    visit = Visit(browser, live.base)
    try:
        page = opened(visit, live)
        page.locator("body").press("Tab")
        for _ in range(20):
            if page.evaluate("document.activeElement.matches('.bar .unseen')"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator("dialog[open] >> text=torch.jit made it").wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog[open]").wait_for(state="hidden")
        assert page.evaluate("document.activeElement.matches('.bar .unseen')"), "back where it was opened"
    finally:
        visit.close()


def test_where_all_was_seen_nothing_is_said(browser: Browser, live: Live) -> None:
    visit = Visit(browser, live.base)
    try:
        page = opened(visit, live)
        page.locator(".run-select").select_option(live.all)  # type: ignore[attr-defined]
        page.locator(".bar .unseen").wait_for(state="hidden")
    finally:
        visit.close()
