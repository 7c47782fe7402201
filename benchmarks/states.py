"""Every state of the explorer's page, to be looked at: python benchmarks/states.py [--only map,links] [--widths 390].

A real server and a real browser are brought into one state after the other, at 1440, 1024 and 390 pixels, in light and
dark. `--folder` then holds a picture of each, and for each state two sheets: its three sizes in light, and in dark.
What a program can see is printed: what scrolls sideways, what is cut off, what axe calls serious. All else is for the
eye.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import state_runs
from explorer import browsing, serving
from PIL import Image
from playwright.sync_api import Browser, Frame, Page, Route, TimeoutError

from sightline.watching import load
from sightline.web.widget import Carried
from web.notebook import Notebook

AXE = Path(__file__).resolve().parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
TOUCH = {"has_touch": True, "is_mobile": True}
SCREENS: dict[int, dict[str, Any]] = {
    1440: {"viewport": {"width": 1440, "height": 900}},
    1024: {"viewport": {"width": 1024, "height": 768}},
    390: {"viewport": {"width": 390, "height": 844}, **TOUCH},
}
THEMES = ("light", "dark")
GONE = "The server does not answer"
# Text that does not fit where it stands, and is neither scrolled nor shortened with dots.
CUT = """() => [...document.querySelectorAll('body *')].filter((node) => {
    if (!node.checkVisibility()) return false;
    if (node.closest('.visually-hidden, .leaflet-container, canvas, select, svg')) return false;
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const style = getComputedStyle(node);
    const cut = node.scrollWidth > node.clientWidth + 1 && ['hidden', 'clip'].includes(style.overflowX);
    return own && node.clientWidth && cut && style.textOverflow !== 'ellipsis';
}).map((node) => `${node.tagName.toLowerCase()}.${node.className}: ${node.textContent.slice(0, 40)}`).slice(0, 4)"""
# Buttons and fields that lie under another part of the page, or beyond its edge.
UNDER = """() => [...document.querySelectorAll('button, a[href], input, select')].filter((node) => {
    if (!node.checkVisibility() || node.closest('.visually-hidden, .skip')) return false;
    const open = document.querySelector('dialog[open]');
    if (open && !open.contains(node)) return false;
    const box = node.getBoundingClientRect();
    if (!box.width || box.bottom < 0 || box.top > innerHeight) return false;
    if (box.left < -1 || box.right > innerWidth + 1) {
        for (let up = node.parentElement; up; up = up.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(up).overflowX)) return false;
        return true;
    }
    return false;
}).slice(0, 4).map(
    (node) => `${node.className || node.tagName}: ${(node.textContent || node.ariaLabel || '').slice(0, 30)}`
)"""


class Stage:
    """A page on a server, and what is done to it to come into a state."""

    def __init__(self, browser: Browser, base: str, width: int, runs: dict[str, str]) -> None:
        self.context = browser.new_context(**SCREENS[width])
        self.context.set_default_timeout(120_000)  # what is computed anew takes long on a busy machine
        self.page: Page = self.context.new_page()
        self.own = self.page
        self.notebook: Notebook | None = None
        self.base, self.runs, self.width = base, runs, width
        self.phone = width < 900

    def clear(self) -> None:
        """What a state has left behind goes."""
        if self.notebook is not None:
            self.notebook.close()
        self.page, self.notebook = self.own, None

    def open(self, run: str, address: str = "", panel: str = "centre", estimates: bool = False) -> None:
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#v=2&run={self.runs[run]}{address}")
        self.page.wait_for_selector(".app:not(.empty) .head canvas, .app:not(.empty) .head .swatch", state="attached")
        self.panel(panel)
        self.settle(estimates)

    def panel(self, name: str) -> None:
        """On a phone one part of the page is shown at a time."""
        if self.phone:
            self.page.tap(f".panels button[data-panel={name}]")

    def rail(self) -> None:
        """The rail of heads, which is folded on a laptop."""
        if 900 <= self.width < 1280:
            self.page.click(".rail-handle")

    def settle(self, estimates: bool = False) -> None:
        good = " || b.dataset.kind === 'estimate'" if estimates else ""
        self.until(
            "[...document.querySelectorAll('.mapview')].filter(m => m.offsetParent)"
            f".map(m => m.querySelector('.badge')).every(b => b.hidden{good})"
        )
        self.page.wait_for_timeout(400)

    def until(self, expression: str, seconds: float = 25) -> None:
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {expression}")
            self.page.wait_for_timeout(50)

    def see(self, selector: str) -> None:
        self.page.locator(selector).first.wait_for(state="attached")

    def click(self, selector: str) -> None:
        self.page.locator(selector).first.click()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def gone(self, there: bool = False) -> None:
        """The server answers no more; or does again."""
        if there:
            self.page.unroute("**/api/**")
        else:
            self.page.route("**/api/**", lambda route: route.abort("connectionrefused"))


STATES: dict[str, Callable[[Stage], None]] = {}


def state(named: Callable[[Stage], None]) -> Callable[[Stage], None]:
    STATES[named.__name__.replace("_", "-")] = named
    return named


def here(name: str, run: str, address: str, there: str = "", panel: str = "centre", rail: bool = False) -> None:
    """A state that its address alone leads to."""

    def go(at: Stage) -> None:
        at.open(run, address, panel)
        if there:
            at.see(there)
        if rail:
            at.rail()
        at.page.wait_for_timeout(300)

    STATES[name] = go


LINK = "&L=3&H=1&q=10&k=2"
MARY = "&L=23&H=3&q=13&k=9"
FOR_MARY = "&for=%20Mary&than=%20John"
here("first", "kids", "", ".sentence .weight:not(:empty)")
here("first-text", "kids", "", ".sentence .weight:not(:empty)", "text")
here("first-causal", "mary", "", ".sentence .weight:not(:empty)")
here("nothing-pinned", "kids", "&L=3&H=1")
here("heads", "kids", LINK, ".portrait .summary", "heads", rail=True)
here("links", "kids", LINK + "&view=links", ".links-lines path", "more")
here("links-causal", "mary", MARY + "&view=links", ".links-lines path", "more")
here("links-long", "long", "&L=23&H=2&q=1500&k=1490&view=links", ".links-lines path", "more")
here("steps", "kids", LINK + "&view=steps", ".steps-table tbody tr", "more")
here("steps-empty", "kids", "&L=3&H=1&view=steps", ".steps", "more")
here("compare-empty", "kids", LINK + "&view=compare", ".compare", "more")
here("wall", "mary", MARY + "&view=wall", ".wall-head", "more")
here("every-head", "kids", LINK + "&rail=link", "#link-5-11", "heads", rail=True)
here("every-head-query", "mary", "&L=23&H=3&q=13&rail=link", "#link-29-8", "heads", rail=True)
here("every-head-empty", "kids", "&L=3&H=1&rail=link", "#rail-link", "heads", rail=True)
here("path", "kids", LINK + "&rail=path", ".path li", "heads", rail=True)
here("path-empty", "kids", "&L=3&H=1&rail=path", "#rail-path", "heads", rail=True)
here("effects-empty", "mary", MARY + "&rail=effects", "#rail-effects", "heads", rail=True)
here("effects", "mary", MARY + FOR_MARY + "&rail=effects&effects=1", "#effect-29-8", "heads", rail=True)
here("long", "long", "&L=23&H=2&q=1500&k=700", ".portrait .summary")
here("long-text", "long", "&L=23&H=2&q=1500&k=700", ".t.query", "text")
here("long-zoomed", "long", "&L=23&H=2&q=1500&k=1490&at=1500,1490,0")
here("long-cells", "long", "&L=23&H=2&q=1500&k=1490&at=1500,1490,5")
here("carried", "mary", MARY + "&of=norms", ".sentence .weight:not(:empty)")
here("mattered", "mary", MARY + "&of=influence" + FOR_MARY, "text== 6.12")
here("mattered-links", "mary", MARY + "&of=influence" + FOR_MARY + "&view=links", ".links-lines .raises", "more")
here("mattered-text", "mary", MARY + "&of=influence" + FOR_MARY, "text== 6.12", "text")
here("edits", "mary", MARY + FOR_MARY + "&edits=ablate:23.3,!cut:23.3:q13:k9", "text=6.12 → 3.08", "more")
here("written", "written", "&L=20&H=2&q=8&view=written", ".written-list li", "more")
here("written-map", "written", "&L=20&H=2&q=8&k=3")
here("scripts", "scripts", "&L=20&H=2&q=30&k=8")
here("scripts-text", "scripts", "&L=20&H=2&q=30&k=8", ".t.query", "text")
here("scripts-links", "scripts", "&L=20&H=2&q=30&k=8&view=links", ".links-lines path", "more")
here("scripts-minilm", "scripts-minilm", "&L=3&H=1&q=30&k=28", ".t.query", "text")
here("cross", "cross", "&L=1&H=0&q=1&k=2")
here("cross-text", "cross", "&L=1&H=0&q=1&k=2", ".top-keys tbody", "text")
here("cross-links", "cross", "&L=1&H=0&q=1&k=2&view=links", ".links-lines path", "more")
here("no-tokens", "no-tokens", "&L=0&H=0&q=12&k=7")
here("no-tokens-text", "no-tokens", "&L=0&H=0&q=12&k=7", "", "text")
here("not-kept", "not-kept", "&L=0&H=0")
here("not-kept-links", "not-kept", "&L=0&H=0&view=links", ".links-about", "more")
here("not-kept-steps", "not-kept", "&L=0&H=0&q=5&k=5&view=steps", ".steps", "more")
here("sight", "alone", "&L=0&H=0&q=12&k=7")
here("rollout", "kids", LINK + "&shade=rollout", ".about", "text")
here("received", "kids", LINK + "&shade=received", ".about", "text")


@state
def compare(at: Stage) -> None:
    at.open("kids", f"{LINK}&view=compare&with={at.runs['lions']},3,1", "more")


@state
def compare_heads(at: Stage) -> None:
    at.open("kids", f"{LINK}&view=compare&with={at.runs['kids']},4,7", "more")


@state
def difference(at: Stage) -> None:
    at.open("kids", f"{LINK}&view=compare&with={at.runs['kids']},4,7&diff=1", "more")


@state
def tooltip(at: Stage) -> None:
    at.open("kids", LINK)
    box = at.page.locator(".centre-map .surface").bounding_box() or {}
    at.page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.5)
    at.see(".tooltip:not([hidden]) >> text=rank")


@state
def tooltip_pooled(at: Stage) -> None:
    at.open("long", "&L=23&H=2")
    box = at.page.locator(".centre-map .surface").bounding_box() or {}
    at.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.6)
    at.page.wait_for_timeout(900)


@state
def preview(at: Stage) -> None:
    at.open("kids", LINK, "heads")
    at.page.locator(".head").nth(2).hover()
    at.page.wait_for_timeout(300)


@state
def explained(at: Stage) -> None:
    at.open("kids", LINK, "heads")
    at.rail()
    for button in at.page.locator(".what").all()[:3]:
        at.page.locator(f"[aria-label='{button.get_attribute('aria-label')}']").click()


@state
def by_layer(at: Stage) -> None:
    at.open("mary", MARY, "heads")
    at.rail()
    at.click("[data-order=layer]")


@state
def find_hit(at: Stage) -> None:
    at.open("kids", LINK, "text")
    at.press("/")
    at.page.keyboard.type("the")
    at.until("document.querySelector('.found').textContent !== ''")


@state
def find_miss(at: Stage) -> None:
    find_hit(at)
    at.page.keyboard.type("rmometer")
    at.see(".found.none")


@state
def bookmarks(at: Stage) -> None:
    at.open("kids", LINK + "&marks=3~1~10~2~the%20pronoun%20and%20its%20noun,4~7~~~a%20head%20to%20come%20back%20to")
    at.press("b")
    at.see("dialog[open]")


def dialog(name: str, key: str, view: str = "map", run: str = "kids", address: str = LINK) -> None:
    def go(at: Stage) -> None:
        at.open(run, f"{address}&view={view}", "centre" if view == "map" else "more")
        at.press(key)
        at.see("dialog[open]")

    STATES[name] = go


dialog("help", "?")
dialog("export", "e")
dialog("export-links", "e", "links")
dialog("cut-this", "c", run="mary", address=MARY)


def button(name: str, selector: str, run: str = "mary", address: str = MARY) -> None:
    def go(at: Stage) -> None:
        at.open(run, address)
        at.click(selector)
        at.page.wait_for_timeout(400)

    STATES[name] = go


button("target", ".why-bar button[title='what it should matter for']")
button("python", ".why-bar button:has-text('Python')")
button("share-by-hand", "button.share", "kids", LINK)
button("unseen", ".unseen", "cross", "&L=0&H=0&q=1&k=1")
button("composer-over", "text=New text", "kids", LINK)
button("edit-text", "button.edit", "kids", LINK)


@state
def share(at: Stage) -> None:
    at.context.grant_permissions(["clipboard-write"])
    at.open("kids", LINK)
    at.click("button.share")
    at.see(".notice >> text=is copied")
    at.context.clear_permissions()


def tour(step: int) -> None:
    def go(at: Stage) -> None:
        at.open("kids", LINK, "text")
        if at.page.locator(".tour-button").is_visible():
            at.click(".tour-button")
        else:
            at.press("?")
            at.click("dialog[open] >> text=Take the tour")
        for _ in range(step):
            at.click(".tour .primary")
        at.page.wait_for_timeout(200)

    STATES[f"tour-{step + 1}"] = go


for number in range(6):
    tour(number)


@state
def gone_at_start(at: Stage) -> None:
    at.gone()
    at.page.goto(at.base)
    at.see(".down")


@state
def gone_map(at: Stage) -> None:
    at.open("long", "&L=23&H=2&q=1500&k=700&at=1500,700,0")
    at.gone()
    at.press("]")
    at.see(f".centre-map .failure >> text={GONE}")


@state
def gone_text(at: Stage) -> None:
    at.open("kids", LINK, "text")
    at.gone()
    at.press("]")
    at.see(f".about.problem >> text={GONE}")


@state
def gone_links(at: Stage) -> None:
    at.open("kids", LINK + "&view=links", "more")
    at.gone()
    at.press("]")
    at.see(f".links-about >> text={GONE}")


@state
def gone_steps(at: Stage) -> None:
    at.open("kids", LINK + "&view=steps", "more")
    at.gone()
    at.press("]")
    at.see(f".steps >> text={GONE}")


@state
def gone_every_head(at: Stage) -> None:
    at.open("kids", LINK + "&rail=heads", "heads")
    at.rail()
    at.gone()
    at.click("#rail-tab-link")
    at.see(f"#rail-link >> text={GONE}")


@state
def gone_run(at: Stage) -> None:
    at.open("kids", LINK)
    at.gone()
    at.page.select_option("select[aria-label=run]", at.runs["mary"])
    at.see(f".notice >> text={GONE}")


@state
def impossible_address(at: Stage) -> None:
    at.open("kids", "&L=99&H=99&q=3,999&k=5&map=rainbow")
    at.see(".notice:not([hidden])")


@state
def closed_run(at: Stage) -> None:
    httpx.post(f"{at.base}api/runs/{at.runs['scripts-minilm']}/reopen")  # closed at the size before
    at.open("scripts-minilm", "&L=0&H=0")
    at.click("button[aria-label='close this run']")
    at.see(".progress >> text=Closed: ")


@state
def report(at: Stage) -> None:
    answer = httpx.get(f"{at.base}api/runs/{at.runs['kids']}/export?format=html", timeout=120)
    path = Path(tempfile.gettempdir()) / "sightline-state-report.html"
    path.write_bytes(answer.content)
    at.page.goto(path.as_uri())
    at.see(".app:not(.empty) .report-note")
    at.panel("centre")
    at.settle()


@state
def report_steps(at: Stage) -> None:
    report(at)
    at.press("5")
    at.page.wait_for_timeout(300)


@state
def widget(at: Stage) -> None:
    """In a notebook the page is in a frame, and its kernel answers by messages."""
    assert at.context.browser is not None
    carried = Carried(load(Path(at.runs["folder"]) / "a-kids"))
    # A notebook's own page says how wide it is; a bare one on a phone does not.
    screen = {name: value for name, value in SCREENS[at.width].items() if name != "is_mobile"}
    at.notebook = Notebook(at.context.browser, carried, **screen)
    at.page = at.notebook.page
    at.notebook.until(".app:not(.empty) .sentence .weight:not(:empty)")
    at.page.wait_for_timeout(1500)


# On a server of their own, which has no runs yet.


def fresh(at: Stage) -> None:
    listed = httpx.get(f"{at.base}api/runs").json()
    for run in listed["orders"] + listed["runs"]:
        httpx.delete(f"{at.base}api/runs/{run['id']}")
    at.page.goto("about:blank")
    at.page.goto(at.base)
    at.see(".composer:not([hidden]) .example")


def empty(at: Stage) -> None:
    fresh(at)
    at.page.wait_for_timeout(300)


def empty_problem(at: Stage) -> None:
    fresh(at)
    at.page.fill("textarea", "")
    at.click(".composer [type=submit]")
    at.see(".composer .problem:not([hidden])")


def no_models(at: Stage) -> None:
    limits = httpx.get(f"{at.base}api/limits").json() | {"models": []}

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=json.dumps(limits))

    at.page.route("**/api/limits", answer)
    at.page.goto(at.base)
    at.see(".composer .problem:not([hidden])")
    at.page.unroute("**/api/limits")


def example(at: Stage) -> None:
    fresh(at)
    at.click(".example >> nth=2")
    at.page.wait_for_timeout(300)


def running(at: Stage) -> None:
    fresh(at)
    at.page.fill("textarea", (Path(__file__).read_text(encoding="utf-8"))[:9000])
    at.page.select_option("select[aria-label=model]", "smollm2")
    at.click(".composer [type=submit]")
    at.see(".progress >> text=of 30 layers")
    at.see(".app:not(.empty) .head canvas")
    at.page.wait_for_timeout(300)


def busy(at: Stage, orders: int = 1) -> None:
    """Somebody else's texts keep the server busy: one is written for long, the others wait."""
    for i in range(orders):
        body = {"text": f"Count to {i + 3} and on", "model": "smollm2", "generate": 500}
        httpx.post(f"{at.base}api/runs", json=body).raise_for_status()


def waiting_first(at: Stage) -> None:
    fresh(at)
    busy(at, 2)
    at.click(".composer [type=submit]")
    at.see(".progress >> text=waiting, place 2")


def waiting(at: Stage) -> None:
    hint(at)
    busy(at)
    at.click("text=New text")
    at.page.fill("textarea", "a text that waits for another one to be done")
    at.click(".composer [type=submit]")
    at.see(".progress >> text=waiting, place 1")


def waiting_reading(at: Stage) -> None:
    hint(at)
    busy(at)
    at.click(".why-bar button:has-text('mattered')")
    at.see(".why-progress >> text=waiting, place 1")


def waiting_full(at: Stage) -> None:
    hint(at)
    busy(at, 5)
    at.click("text=New text")
    at.page.fill("textarea", "a text too many")
    at.click(".composer [type=submit]")
    at.see(".composer .problem:not([hidden])")


def failed(at: Stage) -> None:
    fresh(at)
    at.page.fill("textarea", "far too long for this model " * 100)
    at.click(".composer [type=submit]")
    at.see(".progress.problem >> text=too long for minilm")


def hint(at: Stage) -> None:
    fresh(at)
    at.click(".composer [type=submit]")
    at.see(".hint:not([hidden]) >> text=Before you call it a reference")
    at.panel("centre")
    at.settle()


def control(at: Stage) -> None:
    hint(at)
    at.click(".hint button >> nth=0")
    at.see(".hint >> text=follows the first noun")
    at.settle()


def generating(at: Stage) -> None:
    fresh(at)
    at.page.fill("textarea", "The three primary colours are")
    at.page.select_option("select[aria-label=model]", "smollm2")
    at.page.fill("input[aria-label='tokens to generate']", "400")
    at.click(".composer [type=submit]")
    at.see(".progress >> text=generating")
    at.see(".app:not(.empty) .head canvas")
    at.page.wait_for_timeout(1500)


def picture_chosen(at: Stage) -> None:
    fresh(at)
    at.page.select_option("select[aria-label=model]", "vit")
    at.page.set_input_files("#picked", at.runs["picture"])
    at.see(".picked:not([hidden])")


def picture(at: Stage) -> None:
    picture_chosen(at)
    at.click(".composer [type=submit]")
    at.see(".image-view:not([hidden]) img[src]")
    at.page.goto(at.page.url.split("#")[0] + "#v=2&run=" + at.page.url.split("run=")[1].split("&")[0] + "&L=0&H=0&q=34")
    at.page.reload()
    at.see(".image-about >> text=strongest")
    at.settle()


def picture_map(at: Stage) -> None:
    picture(at)
    at.panel("centre")
    at.settle()


def ninth(at: Stage) -> None:
    fresh(at)
    for i in range(8):
        httpx.post(f"{at.base}api/runs", json={"text": f"text {i} of nine", "model": "minilm"})
        at.until(f"fetch('/api/runs').then(r => r.json()).then(r => r.runs.length > {i} && !r.orders.length)")
    at.page.goto("about:blank")
    at.page.goto(at.base)
    at.see(".app:not(.empty) .head canvas")
    at.click("text=New text")
    at.page.fill("textarea", "the ninth text")
    at.click(".composer [type=submit]")
    at.see(".progress >> text=Closed to make room")


FRESH: dict[str, Callable[[Stage], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        empty, empty_problem, no_models, example, running, hint, control, waiting_first, waiting, waiting_reading,
        waiting_full, failed, generating, picture_chosen, picture,
        picture_map, ninth,
    )
}  # fmt: skip


def checked(at: Stage, name: str, theme: str) -> list[str]:
    """What a program can see of a state."""
    page: Page | Frame = at.page if at.notebook is None else at.page.frames[-1]
    said: list[str] = []
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        said.append("scrolls sideways")
    said += [f"cut off: {one}" for one in page.evaluate(CUT)]
    said += [f"beyond the edge: {one}" for one in page.evaluate(UNDER)]
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    for one in page.evaluate("axe.run('html', {resultTypes: ['violations']})")["violations"]:
        if one["impact"] in ("serious", "critical"):
            said.append(f"axe: {one['id']}: {one['nodes'][0]['html'][:140]}")
    return [f"{name} {at.width} {theme}: {one}" for one in said]


def shots(browser: Browser, base: str, runs: dict[str, str], names: list[str], folder: Path, widths: list[int]) -> None:
    stages = [Stage(browser, base, width, runs) for width in widths]
    for name in names:
        for at in stages:
            shot(at, name, folder)
        for theme in THEMES:
            sheet(folder, name, theme)
    for at in stages:
        at.context.close()


def shot(at: Stage, name: str, folder: Path) -> None:
    began = time.monotonic()
    at.clear()
    try:
        at.page.emulate_media(color_scheme="light")
        {**STATES, **FRESH}[name](at)
        for theme in THEMES:
            at.page.emulate_media(color_scheme=theme)
            if not name.startswith(("tooltip", "preview")):
                at.page.mouse.move(2, 2)
            at.page.wait_for_timeout(250)
            at.page.screenshot(path=folder / f"{name}-{at.width}-{theme}.png")
            for line in checked(at, name, theme):
                print(line, flush=True)
    except (TimeoutError, AssertionError, KeyError) as error:
        at.page.screenshot(path=folder / f"{name}-{at.width}-failed.png")
        print(f"{name} {at.width}: NOT REACHED: {str(error).splitlines()[0]}", flush=True)
    at.gone(there=True)
    print(f"  {name} {at.width}: {time.monotonic() - began:.1f} s", flush=True)


def sheet(folder: Path, name: str, theme: str) -> None:
    """The three sizes of a state on one picture: the desktop above the laptop, the phone beside both."""
    paths = {width: folder / f"{name}-{width}-{theme}.png" for width in SCREENS}
    found = {width: Image.open(path) for width, path in paths.items() if path.exists()}
    if not found:
        return
    whole = Image.new("RGB", (1440, 900 + 20 + 844), "#888")
    for width, place in ((1440, (0, 0)), (1024, (0, 920)), (390, (1050, 920))):
        if width in found:
            whole.paste(found[width], place)
    whole.save(folder / f"sheet-{name}-{theme}.png", optimize=False, compress_level=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sightline-states")
    parser.add_argument("--only", default="")
    parser.add_argument("--widths", default="1440,1024,390")
    options = parser.parse_args()
    names, widths = options.only.split(",") if options.only else [], [int(one) for one in options.widths.split(",")]
    made = state_runs.make(options.folder)
    models = ("--model", "minilm", "--model", "smollm2", "--model", str(made["vit"]))
    pictures = options.folder / "pictures"
    pictures.mkdir(exist_ok=True)
    with browsing() as browser:
        chosen = [name for name in STATES if not names or name in names]
        if chosen:
            with serving(str(made["runs"]), str(made["runs"] / "k-alone.safetensors"), *models) as server:
                listed = httpx.get(server.base + "api/runs").json()["runs"]
                runs = state_runs.found(listed, made["runs"]) | {"folder": str(made["runs"])}
                shots(browser, server.base, runs, chosen, pictures, widths)
        chosen = [name for name in FRESH if not names or name in names]
        if chosen:
            with serving(*models) as server:
                shots(browser, server.base, {"picture": str(made["picture"])}, chosen, pictures, widths)


if __name__ == "__main__":
    main()
