"""Exact effects of all heads in a real browser: ordered, followed, taken back, read, and opened from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from sightline.explore.model_runs import RunRequest
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import Live, Visit
from web.test_effects import TEXT, Tiny

STATE = "&L=2&H=3&q=13&k=9&for=%20Mary&than=%20John&rail=effects"


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="module")
def live(tiny: Tiny) -> Iterator[Live]:
    service = Service(performer(tiny, lambda run: service.library.add(run)), tiny)
    request = RunRequest(TEXT, "tiny")
    service.library.add(service.jobs.perform(service.jobs.done(request), lambda **_: None))  # type: ignore[arg-type]
    server = Live(service)
    server.run = request.id  # type: ignore[attr-defined]
    yield server
    server.close()
    service.close()


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_every_head_is_taken_out_and_leads_to_itself(
    browser: Browser, live: Live, tiny: Tiny, width: int, theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = Visit(browser, live.base, viewport={"width": width, "height": 900}, color_scheme=theme)
    run = live.run  # type: ignore[attr-defined]
    live.service.run(run).effects.clear()
    page = visit.open(f"#v=2&run={run}{STATE}")
    if width < 900:
        page.click("[data-panel=heads]")
    start = page.locator(".effects button", has_text="Exact effects of all heads")
    start.wait_for()
    assert "for “Mary” instead of “John”: every one of 12" in page.locator(".effects .summary").inner_text()
    visit.accessible("offered")

    held = threading.Event()
    layer = tiny.model.decoder.layers[2].attention
    with monkeypatch.context() as patch:
        real = layer.forward
        patch.setattr(layer, "forward", lambda *given, **more: (held.wait(30), real(*given, **more))[1])
        start.click()
        page.locator(".effects progress").wait_for()
        assert "effects=1" in page.url
        visit.accessible("while heads are taken out")
        page.locator(".effects button", has_text="Cancel").click()
        held.set()
        start.wait_for()
        visit.until("!location.hash.includes('effects=1')")
    assert tiny.hooks == 0
    assert not live.service.run(run).effects

    start.focus()
    page.keyboard.press("Enter")
    page.locator("#effect-2-3").wait_for()
    table = next(iter(live.service.run(run).effects.values()))
    exact, first = table["exact"], table["influence"]
    assert page.locator("#effect-1-2").get_attribute("title") == page.locator("#first-order-1-2").get_attribute("title")
    told = page.locator("#effect-1-2").get_attribute("title") or ""
    assert told.startswith("layer 1 head 2: exact ")
    shown = [float(part.split()[-1].replace("−", "-")) for part in told.split(":")[1].split(",")]
    assert shown == pytest.approx([exact[1][2], first[1][2]], rel=0.06)
    strongest = max((abs(x), layer, head) for layer, row in enumerate(exact) for head, x in enumerate(row))[1:]
    assert page.locator(".effects-grids .most").first.get_attribute("id") == f"effect-{strongest[0]}-{strongest[1]}"
    visit.accessible("effects")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    page.locator(".effects .link-grid").first.focus()
    for key in ("ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    visit.until("location.hash.includes('L=1&H=2') && location.hash.includes('effects=1')")
    if width > 900:
        page.locator("#first-order-0-1").click()
        visit.until("location.hash.includes('L=0&H=1')")
        page.locator(".why-bar button", has_text="Python").click()
        page.locator("pre.python", has_text="sl.effects(model").wait_for()
        page.keyboard.press("Escape")
        page.reload()
        page.locator("#effect-2-3").wait_for()
    visit.close()
