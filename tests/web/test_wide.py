"""What large screens and long texts bring: more tiles than usual, larger numbers, bins in which nothing is visible."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page, Route

import sightline as sl
from explore_cases import Sights, make_run, sights, words
from sightline.web.service import Service
from web.browser import Live, Visit
from web.conftest import Words, instant

# Tiles that are painted anew, counted by the page itself.
COUNT = """
window.painted_ = 0;
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (image, ...given) {
  window.painted_ += image.width === 256;
  return put.call(this, image, ...given);
};
"""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    service = Service(instant, models=Words(), threads=2)
    server = Live(service)
    yield server
    server.close()


@pytest.fixture(scope="module")
def wide(live: Live) -> str:
    """Two heads of 32 x 32 tiles, whose normaliser needs no pass over the map."""
    tokens = 8192
    q, k = torch.randn(2, 1, 2, tokens, 4)
    run = make_run(Sights(only=sl.look(q, k, normalizer="sigmoid")), [""] * tokens, text="a wide map")
    live.service.library.add(run)
    return run.id


@pytest.fixture(scope="module")
def short(live: Live) -> str:
    run = make_run(sights(2000, layers=1, heads=1), words(2000), text="a causal map")
    live.service.library.add(run)
    return run.id


def quiet(visit: Visit, selector: str) -> Counter[str]:
    """The tiles that were asked for; while nothing moves, and while only the pointer does, nothing is done again."""
    page = visit.page
    visit.settle()
    asked = Counter(url for url in visit.requests if "/tiles/" in url)
    painted = page.evaluate("window.painted_")
    visit.requests.clear()
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    for i in range(4):
        page.mouse.move(box["x"] + 300 + 40 * i, box["y"] + 300)
        visit.rest()
    assert not [url for url in visit.requests if "/tiles/" in url], "what is on the screen is not asked for again"
    assert page.evaluate("window.painted_") == painted, "what is on the screen is not painted again"
    return asked


def test_a_large_screen_rests(browser: Browser, live: Live, wide: str) -> None:
    visit = Visit(browser, live.base, viewport={"width": 3840, "height": 2160})
    visit.page.add_init_script(COUNT)
    page = visit.open(f"#v=1&run={wide}&view=map&L=0&H=0&at=4096,4096,0")
    asked = quiet(visit, ".centre-map .surface")
    assert len(asked) > 90, "more tiles than were once kept as pictures"
    assert max(asked.values()) == 1
    # The difference of two heads needs two tiles for each place.
    visit.requests.clear()
    page.goto(f"{visit.base}#v=1&run={wide}&view=compare&L=0&H=0&with={wide},0,1&diff=1")
    page.wait_for_selector(".compare .surface")
    page.mouse.move(1900, 1000)
    for _ in range(2):
        page.mouse.wheel(0, -100)
        visit.rest()
    asked = quiet(visit, ".compare .surface")
    assert len([url for url in asked if "/0/1/0/0/" in url]) > 90, "single cells all over the screen"
    assert max(asked.values()) == 1
    visit.close()


def test_a_screen_too_large_for_what_is_kept_is_shown_coarser(browser: Browser, live: Live, wide: str) -> None:
    visit = Visit(browser, live.base, viewport={"width": 6016, "height": 3384})
    visit.page.add_init_script(COUNT)
    page = visit.open(f"#v=1&run={wide}&view=map&L=0&H=0&at=4096,4096,0")
    asked = quiet(visit, ".centre-map .surface")
    assert 60 < len(asked) <= 256
    assert page.locator(".legend .note").inner_text().startswith("mean of 2 × 2")
    visit.close()


def test_a_bin_without_a_visible_cell_stays_masked(browser: Browser, live: Live, short: str) -> None:
    visit = Visit(browser, live.base)
    page = visit.open(f"#v=1&run={short}&view=map&L=0&H=0&at=500,500,-1&diag=0")
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    with page.expect_response(lambda answer: "rows=" in answer.url) as caught:
        page.mouse.move(x + 40, y - 40)
    assert caught.value.json()["visible"] == 0
    page.wait_for_selector(".centre-map .tooltip .weight:text-is('masked')")
    with page.expect_response(lambda answer: "rows=" in answer.url):
        page.mouse.move(x - 40, y + 40)
    page.wait_for_selector(".centre-map .tooltip .weight >> text=mean")
    visit.close()


def far(route: Route) -> None:
    """The portraits of a run, as those of a long text would be."""
    answer = route.fetch()
    body = json.loads(answer.text())
    for layer in body["heads"]:
        for head in layer:
            head["distance"] = 15161.04
    route.fulfill(response=answer, json=body)


def inside(page: Page, selector: str) -> bool:
    """Whether all the text of these elements lies within them, and they within what holds them."""
    return page.evaluate(
        """selector => [...document.querySelectorAll(selector)].every(node => {
            const range = document.createRange();
            range.selectNodeContents(node);
            const [text, box, around] = [range, node, node.parentElement].map(x => x.getBoundingClientRect());
            const within = (a, b) => a.left >= b.left - 0.5 && a.right <= b.right + 0.5 && a.bottom <= b.bottom + 1;
            return within(text, box) && within(box, around);
        })""",
        selector,
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_long_figures_and_hints_are_whole(browser: Browser, live: Live, short: str, width: int) -> None:
    visit = Visit(browser, live.base, viewport={"width": width, "height": 900})
    visit.page.route("**/portraits*", far)
    page = visit.open(f"#v=1&run={short}&view=map&L=0&H=0&at=500,500,-1")
    if width < 900:
        page.click(".panels [data-panel=heads]")
    assert page.locator(".measures li", has_text="distance").locator("b").inner_text() == "15,161"
    assert inside(page, ".measures b")
    if width < 900:
        page.click(".panels [data-panel=text]")
    page.keyboard.press("Escape")
    visit.until("document.querySelector('.text .about').textContent.startsWith('Point at')")
    assert inside(page, ".text .about")
    visit.close()


def with_one_more(route: Route) -> None:
    """The portraits of a run for which somebody declared a statistic."""
    answer = route.fetch()
    body = json.loads(answer.text())
    heads = [head for layer in body["heads"] for head in layer]
    for i, head in enumerate(heads):
        head["distance_variance"] = 100.0 * (i + 1)
    label = "variance of the distance"
    shown = {"name": "distance_variance", "label": label, "unit": "tokens²", "about": "how spread out", "range": None}
    body["measures"].append(shown)
    route.fulfill(response=answer, json=body)


@pytest.mark.parametrize("width", [1440, 390])
def test_a_declared_statistic_is_listed_and_ranked_by(browser: Browser, live: Live, width: int) -> None:
    run = make_run(sights(60, layers=2, heads=3), words(60), text="six heads")
    live.service.library.add(run)
    visit = Visit(browser, live.base, viewport={"width": width, "height": 900})
    visit.page.route("**/portraits*", with_one_more)
    page = visit.open(f"#v=1&run={run.id}&view=map&L=1&H=0")
    if width < 900:
        page.click(".panels [data-panel=heads]")
    line = page.locator(".measures li", has_text="variance of the distance")
    assert line.locator("b").inner_text() == "400"
    line.locator(".what").click()
    assert line.locator(".what-said").inner_text() == "how spread out, in tokens²"
    assert inside(page, ".measures b")
    page.click(".chip-button[data-order=distance_variance]")
    assert page.locator(".chip-button[aria-checked=true]").inner_text() == "Variance of the distance"
    values = [float(text) for text in page.locator(".head .caption b").all_inner_texts()]
    assert values == [600, 500, 400, 300, 200, 100]
    visit.close()
