"""What is read on each view, in a real browser: nothing cut off, too pale, or marked where it is not."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page

import sightline as sl
from explore_cases import Sights, make_run, sights, words
from sightline.explore.model_runs import Models
from sightline.explore.run import Run
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import Live, Visit

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LAPTOP: dict[str, Any] = {"viewport": {"width": 1024, "height": 768}}
# Gives the server a run and opens a page on it, with what else is in its address.
Open = Callable[..., Visit]
WITHIN = """([inner, outer]) => {
    const [a, b] = [inner, outer].map(one => document.querySelector(one).getBoundingClientRect());
    const across = a.left >= b.left - 1 && a.right <= b.right + 1;
    return a.width > 0 && across && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
}"""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server without models; every test brings its run."""
    server = Live(Service(performer(Models([]), lambda run: None)))
    yield server
    server.close()


@pytest.fixture
def visiting(browser: Browser, live: Live) -> Iterator[Open]:
    opened: list[Visit] = []
    added: list[str] = []

    def one(run: Run, address: str, panel: str = "", **options: Any) -> Visit:
        if run.id not in added:
            live.service.library.add(run)
            added.append(run.id)
        visit = Visit(browser, live.base, **options)
        opened.append(visit)
        page = visit.open(f"#v=2&run={run.id}&{address}")
        if panel:
            page.tap(f".panels button[data-panel={panel}]")
            visit.settle()
        return visit

    yield one
    for visit in opened:
        visit.close()
    for run in added:
        live.service.close_run(run)


def brightness(page: Page, selector: str) -> float:
    """Of most pixels of an element."""
    shot = Image.open(io.BytesIO(page.locator(selector).screenshot())).convert("L")
    return float(np.median(np.asarray(shot)))


@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_tooltip_is_whole_after_it_has_grown(visiting: Open, screen: dict[str, Any]) -> None:
    """It is placed by its first line, and then the server says more."""
    visit = visiting(make_run(sights(16), words(16)), "L=0&H=0&q=9&k=4", "centre" if screen is PHONE else "", **screen)
    page = visit.page
    for across, down in ((0.4, 0.5), (0.6, 0.8), (0.3, 0.9)):
        box = page.locator(".centre-map .surface").bounding_box()
        assert box is not None
        side = min(box["width"], box["height"])
        page.mouse.move(box["x"] + side * across, box["y"] + side * down)
        page.wait_for_selector(".centre-map .tooltip:not([hidden]) >> text=entropy of the row")
        assert page.evaluate(WITHIN, [".centre-map .tooltip", ".centre-map .surface"]), (across, down)
        page.mouse.move(2, 2)
        page.wait_for_selector(".centre-map .tooltip", state="hidden")


def test_a_key_of_a_memory_is_no_token_of_the_text(visiting: Open) -> None:
    """Five words look at eight others, which have places but no words here."""
    torch.manual_seed(0)
    model = torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad(), sl.watch(model, keep_qk=True, stats=("entropy", "received")) as seen:
        model(torch.randn(1, 5, 16), torch.randn(1, 8, 16))
    visit = visiting(make_run(cast(Sights, seen), words(5)), "L=1&H=0&q=1&k=2")
    page = visit.page
    page.wait_for_selector(".top-keys tbody tr")
    assert page.locator(".t.query").get_attribute("data-t") == "1"
    assert page.locator(".t.key").count() == 0, "the third key is not the third word"
    assert page.locator(".text .about").inner_text() == "what “kids” looks at: keys that are not of this text"
    page.locator(".top-keys tbody tr").first.hover()
    page.wait_for_selector(".top-keys tbody tr:hover")
    assert page.locator(".t.hover-key").count() == 0
    page.evaluate("location.hash = location.hash.replace('L=1', 'L=0')")
    page.wait_for_selector(".t.key[data-t='2']")


def test_vectors_and_links_are_seen_on_dark_paper(visiting: Open) -> None:
    """What is 0 has the colour of the paper, and every line of a pinned token can be followed."""
    run = make_run(sights(16, dim=32), words(16))
    visit = visiting(run, "L=0&H=0&q=12&k=3&view=steps", color_scheme="dark")
    page = visit.page
    page.wait_for_selector(".steps-table .vector-cells")
    assert brightness(page, ".steps-table .vector-cells >> nth=0") < 110, "most of it is nearly 0, and dark"
    page.emulate_media(color_scheme="light")
    visit.until("document.documentElement.dataset.theme === 'light'")
    assert brightness(page, ".steps-table .vector-cells >> nth=0") > 150
    page.emulate_media(color_scheme="dark")
    page.keyboard.press("4")
    page.wait_for_selector(".links-lines path.on", state="attached")
    shown = "[...document.querySelectorAll('.links-lines path{}')].map(one => +getComputedStyle(one).strokeOpacity)"
    assert min(page.evaluate(shown.format(".on"))) >= 0.45
    page.keyboard.press("Escape")
    page.wait_for_selector(".links-lines:not(.isolated)", state="attached")
    assert min(page.evaluate(shown.format(""))) >= 0.2


def test_twelve_heads_stand_side_by_side(visiting: Open) -> None:
    """As many as most models have: none is hidden beyond the edge of the grid, whose columns are numbered."""
    run = make_run(sights(16, layers=3, heads=12), words(16))
    for screen in ({}, LAPTOP):
        visit = visiting(run, "L=1&H=11&q=12&k=3&rail=link", **screen)
        page = visit.page
        page.wait_for_selector("#link-2-11", state="attached")
        if screen:
            page.click(".rail-handle")
        assert page.evaluate("(n => n.scrollWidth <= n.clientWidth)(document.querySelector('.link-grid'))")
        assert page.locator(".link-heads span").all_inner_texts() == ["", *map(str, range(12))]
        assert page.evaluate("document.querySelector('.link-cell').getBoundingClientRect().width") >= 24


@pytest.mark.parametrize("rail", ["link", "path"])
def test_an_empty_tab_of_the_rail_has_the_button_that_fills_it(visiting: Open, rail: str) -> None:
    visit = visiting(make_run(sights(16), words(16)), f"L=0&H=0&rail={rail}")
    visit.page.click(f"#rail-{rail} .invite")
    visit.until("location.hash.includes('&k=')")
    visit.page.wait_for_selector(f"#rail-{rail} .link-cell, #rail-{rail} .path li", state="attached")


def test_the_open_head_is_in_view_among_many(visiting: Open) -> None:
    """By layer, and where arrows begin on the wall."""
    visit = visiting(make_run(sights(16, layers=40, heads=9), words(16)), "L=35&H=3&q=12&k=3")
    page = visit.page
    page.click("[data-order=layer]")
    visit.until("document.querySelector('.heads > .rail-heads .fine').textContent.endsWith('the colour is focus')")
    assert page.evaluate(WITHIN, ["#head-35-3", ".heads-grid"])
    page.click("#tab-wall")
    page.wait_for_selector(".wall-head", state="attached")
    page.locator(".wall-board").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.until("location.hash.includes('L=35&H=4')")


@pytest.mark.parametrize("screen", [{}, LAPTOP, PHONE], ids=["desktop", "laptop", "phone"])
def test_the_head_of_an_address_is_in_view_in_its_rank(visiting: Open, screen: dict[str, Any]) -> None:
    run = make_run(sights(16, layers=12, heads=9), words(16))
    listed = visiting(run, "L=0&H=0&q=12&k=3").page.locator(".heads-grid .head")
    last = listed.last.get_attribute("id") or ""
    _, layer, head = last.split("-")
    visit = visiting(run, f"L={layer}&H={head}&q=12&k=3", "heads" if screen is PHONE else "", **screen)
    page, frame = visit.page, ".heads" if screen is PHONE else ".heads-grid"
    page.wait_for_selector(f"#{last}[aria-selected=true]", state="attached")
    assert page.evaluate(WITHIN, [f"#{last}", frame])
    if screen is LAPTOP:
        page.click(".rail-handle")
        visit.rest()
        assert page.evaluate(WITHIN, [f"#{last}", frame]), "unfolded it is another list"
    page.click("[data-order=focus]")
    visit.rest()
    top = "document.querySelector('.heads-grid').scrollTop"
    if not screen:
        page.evaluate(f"{top} = 0")
    page.click("[data-order=previous]")
    visit.rest()
    assert screen or page.evaluate(top) == 0, "a ranking is read from its top"


def test_a_phone_keeps_what_is_said_low_and_its_maps_high(visiting: Open) -> None:
    """The switch of the first token stands beside the sentence; over two maps there are two rows of choices."""
    run = make_run(sights(4), words(4))  # the first of four tokens takes much of any causal head
    visit = visiting(run, f"L=0&H=0&q=3&k=2&view=compare&with={run.id},0,1", "more", **PHONE)
    page = visit.page
    page.wait_for_selector(".aside-switch:not([hidden])")
    height = "document.querySelector('{}').getBoundingClientRect().height"
    assert page.evaluate(height.format(".sentence-line")) <= 54
    assert page.evaluate(WITHIN, [".aside-switch", ".sentence-line"])
    assert page.evaluate(height.format(".compare-bar")) <= 120
    for choice in page.locator(".compare-bar button, .compare-bar select").all():
        box = choice.bounding_box()
        assert box is not None
        assert box["x"] >= 8
        assert box["x"] + box["width"] <= 382
        assert box["height"] >= 44
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_shows_all_it_has_to_say(visiting: Open) -> None:
    """All strongest keys; the tab that is open; a button that stays off the edges; a map that is not covered."""
    run = make_run(sights(600), words(600))
    page = visiting(run, "L=0&H=0&q=300&k=12", "text", **PHONE).page
    page.wait_for_selector(".top-keys tbody tr >> nth=7")
    last = page.locator(".top-keys tbody tr").nth(7)
    last.scroll_into_view_if_needed()
    assert page.evaluate(WITHIN, [".top-keys tbody tr:nth-child(8)", ".text"])
    assert page.evaluate("document.querySelector('.text-frame').offsetHeight") > 200
    visit = visiting(run, "L=0&H=0&q=300&k=12&at=300,12,2", "centre", **PHONE)
    covered = """(() => {
        const [a, b] = ['.centre-map .minimap', '.centre-map .surface'].map(
            one => document.querySelector(one).getBoundingClientRect());
        return Math.max(0, b.bottom - a.top) * Math.max(0, b.right - a.left) / (b.width * b.height);
    })()"""
    visit.page.wait_for_selector(".centre-map .minimap:not([hidden])")
    assert visit.page.evaluate(covered) < 0.06
    page = visiting(run, "L=0&H=0&q=300&view=compare", "more", **PHONE).page
    button = page.locator(".compare .empty button").bounding_box()
    assert button is not None
    assert button["x"] >= 8
    assert button["x"] + button["width"] <= 382
    page = visiting(run, "L=0&H=0&view=wall", "more", **PHONE).page
    page.evaluate("document.querySelector('.centre > .tabs').style.width = '200px'")
    page.tap(".panels button[data-panel=more]")
    assert page.evaluate(WITHIN, ["#tab-wall", ".centre > .tabs"])


def test_a_phone_is_told_to_tap(visiting: Open) -> None:
    page = visiting(make_run(sights(16), words(16)), "L=0&H=0", "text", **PHONE).page
    page.wait_for_selector(".text .about >> text='Tap a token to see what it looks at.'")
    assert page.locator(".sentence").inner_text().startswith("Tap the map or a token.")


def test_links_stay_at_the_pinned_query_while_more_comes_to_be_known(visiting: Open) -> None:
    """Chips above them, and the share of the first token, come later, and make the view lower."""
    run = make_run(sights(600), words(600))
    visit = visiting(run, "L=0&H=0&q=300&k=290&view=links", "more", **PHONE)
    page = visit.page
    page.wait_for_selector(".links-lines path", state="attached")
    pinned = [".links-column.left li.pinned", ".links-scroll"]
    visit.until(f"({WITHIN})({pinned})")
    page.evaluate("document.querySelector('.links-far').style.paddingTop = '200px'")
    visit.until(f"({WITHIN})({pinned})", 5)
    # Who has scrolled elsewhere stays there.
    page.evaluate("document.querySelector('.links-scroll').scrollTop = 0")
    page.evaluate("document.querySelector('.links-far').style.paddingTop = '0'")
    page.wait_for_timeout(300)
    assert page.evaluate("document.querySelector('.links-scroll').scrollTop") == 0


def test_what_is_found_does_not_look_like_what_is_looked_at(visiting: Open) -> None:
    page = visiting(make_run(sights(14), words(14)), "L=0&H=0&q=9").page
    page.wait_for_selector(".top-keys tbody tr")
    shades = "[...document.querySelectorAll('.t')].map(one => getComputedStyle(one).backgroundColor)"
    before = set(page.evaluate(shades))
    page.keyboard.press("/")
    page.keyboard.type("kids")
    page.wait_for_selector(".t.hit")
    [found] = set(page.evaluate(shades)) - before
    red, green, blue = map(int, found.removeprefix("rgb(").removesuffix(")").split(","))
    assert min(red, green) - blue > 60, "as one marks with a pen, not the blue of shading"


def test_an_exported_map_has_the_colours_of_the_page(visiting: Open, tmp_path: Path) -> None:
    """Cell by cell, in the drawing and in the picture, of the part that is on the screen."""
    page = visiting(make_run(sights(16), words(16)), "L=1&H=2").page
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    shown = np.asarray(Image.open(io.BytesIO(page.locator(".centre-map .surface").screenshot())).convert("RGB"))
    side = min(box["width"], box["height"]) / 16
    files = {}
    for name in ("SVG", "PNG"):
        page.keyboard.press("e")
        with page.expect_download() as caught:
            page.click(f"dialog[open] button:text-is('{name}')")
        files[name] = tmp_path / name
        caught.value.save_as(files[name])
        page.keyboard.press("Escape")
    drawing = ElementTree.fromstring(files["SVG"].read_text(encoding="utf-8"))
    name = "{http://www.w3.org/2000/svg}"
    cells = [one.attrib for one in drawing.findall(f"{name}g/{name}rect")]
    left, top = (min(float(one[axis]) for one in cells) for axis in "xy")
    picture = np.asarray(Image.open(files["PNG"]).convert("RGB")).astype(int)
    scale = picture.shape[1] / float(drawing.attrib["width"])
    seen = set()
    for one in cells:
        x, y, size = (float(one[axis]) for axis in ("x", "y", "width"))
        k, q = round((x - left) / size), round((y - top) / size)
        seen.add((q, k))
        if k > q:
            assert one["fill"] == "url(#masked)", "what is masked is not what is 0"
            continue
        on_page = shown[int((q + 0.5) * side), int((k + 0.5) * side)].astype(int)
        drawn = [int(part) for part in one["fill"].removeprefix("rgb(").removesuffix(")").split(",")]
        painted = picture[int((y + size / 2) * scale), int((x + size / 2) * scale)]
        assert np.abs(on_page - drawn).max() <= 2, (q, k)
        assert np.abs(on_page - painted).max() <= 2, (q, k)
    assert seen == {(q, k) for q in range(16) for k in range(16)}
    masked = picture[int(top * scale) : int((top + size) * scale), int((left + 2 * size) * scale) :][
        :, : int(size * scale)
    ]
    assert len(np.unique(masked.reshape(-1, 3), axis=0)) > 1, "hatched in the picture too"
