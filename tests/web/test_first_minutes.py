"""The first five minutes in a real browser: the first picture, examples, the tour, a changed text, small screens."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Route

import sightline as sl
from explore_cases import Sights, make_run, sights, words
from sightline.explore.model_runs import RunRequest, watched
from sightline.explore.run import Run
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import SENTENCE, Live, Trained, Visit, flat_run, trained

# Gives the server a run, and says its id.
Add = Callable[[Run], str]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
KIDS = "they (10) looks at kids (2): 0.814"
SAID = "document.querySelector('.sentence .link')?.textContent"
MARKED = "[...document.querySelectorAll('.compare-texts mark')].map((m) => m.textContent).join()"
TYPED = (
    "## Plans\n- a `list` of **two**\n\ndef f(x):\n\treturn x[0]\n\n狮子吓到了孩子们。\n"
    "كان الأطفال خائفين من الأسود.\n👩‍👩‍👧 left 🦁!\n"
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    models = Trained(["minilm"])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    folder = tmp_path_factory.mktemp("first")
    watched(*trained("minilm"), RunRequest(SENTENCE, "minilm"), folder / "kids", lambda **_: None)
    service.library.shelve_folder(folder)
    server = Live(service)
    server.kids = service.library.listed()[0]["id"]  # type: ignore[attr-defined]
    yield server
    server.close()


@pytest.fixture
def add(live: Live) -> Iterator[Add]:
    """For the runs of one test: they are taken away after its page, which may ask for them until it is closed."""
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


def sink_run(tokens: int = 20) -> Run:
    """A causal head of which the first token takes most, and one that looks at the token before."""
    scores = torch.zeros(1, 2, tokens, tokens)
    scores[0, 0, :, 0] = 4.0
    scores[0, 0, 12, 5] = 3.5
    scores[0, 1] += 6 * torch.diag(torch.ones(tokens - 1), -1)
    q = torch.zeros(1, 2, tokens, 4)
    account = Sights(only=sl.look(q, q, bias=scores, mask=sl.causal(), stats=("entropy", "received")))
    return make_run(account, [f"\u0120word{i}" for i in range(tokens)], text="a sink")


def pixels(visit: Visit, selector: str) -> np.ndarray:
    shot = visit.page.locator(selector).first.screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)


THUMB = """head => {
    const canvas = document.querySelector(`#${head} canvas`);
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    return [...data];
}"""


def test_the_link_is_pinned_and_said_in_eight_of_eight_loads(visit: Visit, live: Live) -> None:
    for _ in range(8):
        visit.page.goto("about:blank")
        visit.page.goto(live.base)
        visit.until(f"{SAID} === '{KIDS}'", 20)
        assert "L=3&H=1&q=10&k=2" in visit.page.url
    page = visit.page
    assert page.locator(".head").first.get_attribute("id") == "head-3-1", "and it is the first of the rail"
    visit.settle()
    # Short: linear from 0, next to nothing nearly as the page is, and thumbnails on the same scale.
    assert "scale=linear&lo=0&hi=1" in page.url
    faint = pixels(visit, ".centre-map .surface")[-8, -8]
    assert faint.min() >= 235
    linear = page.evaluate(THUMB, "head-3-1")
    page.keyboard.press("l")
    assert "scale=log&lo=0.001&" in page.url
    visit.until(f"JSON.stringify(({THUMB})('head-3-1')) !== '{linear}'.replaceAll(' ', '')")
    # The axes are named, and a measure is explained in place.
    assert page.locator(".corner").inner_text().split("\n") == ["keys →", "queries ↓"]
    page.click("[aria-label='what is induction?']")
    assert "what followed the last time" in page.locator(".what-said").inner_text()
    page.click("[aria-label='what is entropy?']")
    assert page.locator(".what-said").count() == 2
    visit.accessible("explained", "#heads")


def test_the_link_is_pinned_however_late_its_head_is_known(visit: Visit, live: Live) -> None:
    visit.page.clock.install()
    held: list[Route] = []
    visit.page.route("**/portraits*", lambda route: held.append(route))
    visit.page.goto(live.base)
    visit.until("document.querySelector('.brand') !== null")
    while not held:
        visit.page.wait_for_timeout(20)
    visit.page.clock.run_for(2500)  # longer than anyone waits for them
    visit.until("document.querySelector('.app:not(.empty)') !== null")
    visit.page.clock.run_for(2500)
    assert "&q=" not in visit.page.url, "no link of another head"
    held[0].continue_()
    visit.until(f"{SAID} === '{KIDS}'", 20)
    assert "L=3&H=1&q=10&k=2" in visit.page.url


def test_the_map_fills_its_pane_at_every_length(visit: Visit, add: Add) -> None:
    for tokens in (150, 200, 300, 700):
        run = flat_run(tokens)
        add(run)
        visit.page.goto("about:blank")
        visit.open(f"#run={run.id}&L=0&H=0&diag=0&aside=0")
        shown = pixels(visit, ".centre-map .surface canvas.tiles")
        drawn = np.abs(shown - shown[4, 4]).max(-1) <= 2
        height, width = drawn.any(1).sum(), drawn.any(0).sum()
        shorter = min(shown.shape[:2])
        assert min(height, width) >= 0.8 * shorter, f"{tokens} tokens: {height} x {width} of {shown.shape[:2]}"
        assert drawn[:height, :width].mean() > 0.99, "and has one colour all over"


def test_the_first_token_is_set_aside_by_one_switch(visit: Visit, add: Add) -> None:
    run = sink_run()
    add(run)
    page = visit.open(f"#run={run.id}&view=links&L=0&H=0&q=12&k=5")
    page.wait_for_selector(".links-lines path", state="attached")
    share = round(100 * run.account["only"].tile(slice(None), slice(0, 1))[0, 0].mean().item())
    switch = page.locator(".aside-switch")
    assert switch.inner_text() == f"first token {share} %: set aside"
    assert f"the first token, {share}\u00a0%, is set aside" in page.locator(".links-about").inner_text()
    to_first = "document.querySelectorAll(\".links-lines path[data-k='0']\").length"
    assert page.evaluate(to_first) == 0
    row = run.account["only"].tile(slice(12, 13), slice(None))[0, 0, 0]
    strongest = page.locator(".links-lines path[data-q='12'][data-k='5']")
    rest = (row[5] / (1 - row[0])).item()
    assert float(strongest.get_attribute("stroke-opacity") or 0) == pytest.approx(rest, abs=1e-3), "the rest is all"
    assert strongest.text_content() == f"{row[5]:.3f}", "its number is the weight"
    assert f"first token {round(100 * row[0].item())}\u00a0%, set aside" in page.locator(".text .about").inner_text()
    first = page.locator(".top-keys tbody tr").first
    assert first.locator(".number").all_inner_texts() == [f"{row[5]:.3f}", f"{round(100 * rest)} %"]
    thumb = np.array(page.evaluate(THUMB, "head-0-0")).reshape(20, 20, 4)
    assert (thumb[:, 0, 3] == 0).all(), "hatched"
    assert thumb[12, 5, :3].sum() < 350, "and what is left is dark"
    assert (np.array(page.evaluate(THUMB, "head-0-1")).reshape(20, 20, 4)[:, 0, 3] > 0).all()
    switch.click()
    visit.until(f"{to_first} > 10")
    assert "aside=0" in page.url
    assert switch.inner_text() == f"first token {share} %: shown"
    assert page.locator(".top-keys tbody tr").first.get_attribute("data-t") == "0"
    assert (np.array(page.evaluate(THUMB, "head-0-0")).reshape(20, 20, 4)[:, 0, 3] > 0).all()
    page.click("#tab-wall")
    page.wait_for_selector("#wall-0-0 canvas")
    assert (np.array(page.evaluate(THUMB, "wall-0-0")).reshape(20, 20, 4)[:, 0, 3] > 0).all()
    switch.click()
    page.wait_for_selector(".aside-switch[aria-pressed=true]")
    assert (np.array(page.evaluate(THUMB, "wall-0-0")).reshape(20, 20, 4)[:, 0, 3] == 0).all(), "on the wall too"


def test_what_is_pinned_alone_says_what_it_looks_at_most(visit: Visit, add: Add) -> None:
    run = sink_run()
    add(run)
    page = visit.open(f"#run={run.id}&L=0&H=1&q=12")
    sink, before = run.account["only"].tile(slice(None), slice(None))[0]
    most = {
        "H=1&q=12": f"word12 (12) looks most at word11 (11): {before[12, 11]:.3f}",
        "H=1&q=12,13": f"word12 (12) + word13 (13) look most at word11 (11): {before[12:14, 11].sum():.3f}",
        "H=0&q=12": f"word12 (12) looks most, after the first token, at word5 (5): {sink[12, 5]:.3f}",
        "H=0&q=12&aside=0": f"word12 (12) looks most at word0 (0): {sink[12, 0]:.3f}",
        "H=1&k=7": f"of all, word8 (8) looks most at word7 (7): {before[8, 7]:.3f}",
        "H=1&q=12&k=11": f"word12 (12) looks at word11 (11): {before[12, 11]:.3f}",
    }
    for address, said in most.items():
        page.evaluate("address => { location.hash = address; }", f"run={run.id}&L=0&{address}")
        visit.until(f"{SAID} === '{said}'")
    page.locator(".t[data-t='3']").hover()
    visit.until(f"{SAID} === 'word3 (3) looks most at word2 (2): {before[3, 2]:.3f}'")


@pytest.mark.parametrize("memory", [False, True])
def test_text_sets_nothing_aside_where_the_head_does_not(visit: Visit, add: Add, memory: bool) -> None:
    """One row may give the first token much while the head as a whole does not: then no switch shows."""
    torch.manual_seed(3)
    given = sights(16)
    if memory:
        model = torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval()
        with torch.no_grad(), sl.watch(model, keep_qk=True, stats=("entropy", "received")) as seen:
            model(6 * torch.randn(1, 16, 16), 6 * torch.randn(1, 9, 16))
        given = cast(Sights, seen)
    run = make_run(given, words(16))
    layer = 1 if memory else 0
    first = run.account[run.layers[layer].name].tile(slice(None), slice(0, 1))[0, :, :, 0]
    head, query = next((h, q) for h in range(2) for q in range(1, 16) if first[h].mean() < 0.3 < first[h, q] < 0.99)
    add(run)
    page = visit.open(f"#run={run.id}&L={layer}&H={head}&q={query}")
    page.wait_for_selector(".top-keys tbody tr")
    assert page.locator(".aside-switch").is_hidden()
    assert "aside" not in page.locator(".text .about").inner_text()
    assert page.locator(".top-keys [data-t='0']").count() == 1


def test_texts_read_as_they_were_typed(visit: Visit, add: Add) -> None:
    for name in ("minilm", "smollm2"):
        encoding = trained(name)[1].encode(TYPED)
        run = make_run(
            sights(len(encoding.tokens), layers=1, heads=1),
            encoding.tokens,
            text=TYPED,
            spans=[list(span) for span in encoding.offsets],
        )
        add(run)
        visit.page.goto("about:blank")
        page = visit.open(f"#run={run.id}&L=0&H=0&aside=0")
        read = page.evaluate(
            """() => {
                const body = document.querySelector('.text-body').cloneNode(true);
                for (const sign of body.querySelectorAll('.part, .chip:not(.hex)'))
                    if (sign.matches('.part') || /^\\[.*\\]$/.test(sign.textContent)) sign.remove();
                return body.textContent.replaceAll(/[⏎⇥]/gu, '');
            }"""
        )
        squeezed = "".join(read.split())
        if name == "smollm2":  # letter by letter, though its tokens are bytes: what goes on with a letter is a dot
            assert squeezed == "".join(TYPED.split())
            assert page.locator(".t.hex").count() == 0
            assert set("".join(page.locator(".t.part").all_text_contents())) == {"·", "\u200d"}
        else:  # what its vocabulary does not have is one unknown token; all else is as it was typed, capitals and all
            assert "##Plans-a`list`of**two**deff(x):returnx[0]" in squeezed
            assert "كانالأطفال" in squeezed
        # A line runs the way its letters do: the full stop of the Arabic one stands at its left.
        starts = page.evaluate(
            """() => {
                const all = [...document.querySelectorAll('.text-body .t')];
                const first = all.findIndex((t) => t.textContent.includes('ك'));
                const stop = all.findIndex((t, i) => i > first && /^\\.[⏎\\n]*$/u.test(t.textContent));
                return [first, stop].map((i) => all[i].getBoundingClientRect().left);
            }"""
        )
        assert starts[1] < starts[0]


def test_an_example_its_control_and_undo(browser: Browser) -> None:
    models = Trained(["minilm"])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    server = Live(service)
    visit = Visit(browser, server.base)
    try:
        page = visit.page
        page.goto(server.base)
        page.wait_for_selector(".composer.alone .example")
        visit.accessible("the empty page")
        assert page.locator(".example").count() == 6
        page.click(".example >> nth=1")
        page.click(".example >> nth=0")
        assert "run the swapped text" in page.locator(".look-for").inner_text()
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".hint:not([hidden]) >> text=Before you call it a reference")
        visit.until(f"{SAID} === '{KIDS}'")
        page.click(".hint button >> nth=0")
        page.wait_for_selector(".hint >> text=follows the first noun")
        visit.until(f"{SAID} === 'they (10) looks at lions (2): 0.654'")
        assert "view=compare" in page.url
        visit.until(f"{MARKED} === 'lions,kids,kids,lions'")
        changed = "[...document.querySelectorAll('.compare .axis-label.changed')].map(x => x.innerText)"
        visit.until(f"[...new Set({changed})].sort().join() === 'kids,lions'")
        visit.accessible("a control beside its example")
        # The text of a run, changed: beside what it was, with the pins where their letters are now.
        page.click("button[aria-label^='change the text']")
        page.fill("textarea", "The lions were terribly scared of the kids, so they left right away.")
        page.click(".composer button[type=submit]")
        visit.until(f"{SAID}?.startsWith('they (11) looks at lions (2)')")
        visit.until(f"{MARKED} === 'terribly'")
        # Closed, and open again; so is the last one.
        runs = page.locator(".run-select option")
        visit.until("document.querySelectorAll('.run-select option').length === 3")
        visit.settle()  # what is asked for while it is closed is not there
        page.click("button[aria-label='close this run']")
        page.wait_for_selector(".progress >> text=Closed: ")
        assert runs.count() == 2
        page.click(".progress >> text=Undo")
        visit.until("document.querySelectorAll('.run-select option').length === 3")
        for left in (2, 1, 0):
            visit.settle()
            page.click("button[aria-label='close this run']")
            visit.until(f"document.querySelectorAll('.run-select option').length === {left}")
        page.wait_for_selector(".composer.alone")
        page.click(".progress >> text=Undo")
        page.wait_for_selector(".app:not(.empty) .head canvas")
        assert page.locator(".composer").is_hidden()
        # A tour can be left at any step.
        page.click(".tour-button")
        titles = []
        for _ in range(6):
            titles.append(page.locator(".tour h2").inner_text())
            assert page.locator(".tour-target").count() == 1
            page.click(".tour .primary")
        assert len(set(titles)) == 6
        assert page.locator(".tour").is_hidden()
        page.click(".tour-button")
        page.click(".tour .primary")
        visit.accessible("the tour")
        page.keyboard.press("Escape")
        assert page.locator(".tour").is_hidden()
        assert page.locator(".tour-target").count() == 0
    finally:
        visit.close()
        server.close()


def test_what_to_look_for_takes_nothing_from_the_map_of_a_phone(browser: Browser) -> None:
    models = Trained(["minilm"])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    server = Live(service)
    visit = Visit(browser, server.base, **PHONE)
    try:
        page = visit.page
        page.goto(server.base)
        page.tap(".composer button[type=submit]")
        page.wait_for_selector(".hint:not([hidden]) >> text=Before you call it a reference")
        page.tap(".panels button[data-panel=centre]")
        visit.settle()
        surface = page.locator(".centre-map .surface")
        before, hint = surface.bounding_box(), page.locator(".hint").bounding_box()
        assert before["y"] + before["height"] <= hint["y"], "it lies over no cell"
        page.tap(".hint >> text=Dismiss")
        visit.settle()
        assert surface.bounding_box() == before
    finally:
        visit.close()
        server.close()


def test_the_frame_of_a_short_text_is_that_of_a_short_text(visit: Visit, live: Live, add: Add) -> None:
    """Also after a longer one: its ruler held the frame open, and the keys far below the text."""
    long = add(make_run(sights(120), words(120), text="a long text"))
    frame = visit.open(f"#run={live.kids}").locator(".text-frame")  # type: ignore[attr-defined]
    visit.until(f"{SAID} === '{KIDS}'")
    short = frame.bounding_box()["height"]
    visit.page.select_option("select[aria-label=run]", long)
    visit.until("document.querySelectorAll('.t').length === 120")
    visit.rest()
    assert frame.bounding_box()["height"] > short + 20
    visit.page.select_option("select[aria-label=run]", live.kids)  # type: ignore[attr-defined]
    visit.until(f"{SAID} === '{KIDS}'")
    visit.rest()
    assert frame.bounding_box()["height"] == short


def test_a_phone_and_a_laptop(browser: Browser, live: Live, tmp_path: Path) -> None:
    visit = Visit(browser, live.base, color_scheme="dark", **PHONE)
    try:
        page = visit.open(f"#run={live.kids}")  # type: ignore[attr-defined]
        visit.until(f"{SAID} === '{KIDS}'")
        whole = "(n => n.scrollWidth <= n.clientWidth)(document.querySelector('.sentence .link'))"
        assert page.evaluate(whole), "the sentence is whole"
        page.click("button[aria-label='export (E)']")
        assert "queries 0 to 15, keys 0 to 15" in page.locator(".export-list").inner_text(), "of a map not yet seen"
        page.keyboard.press("Escape")
        page.tap(".panels button[data-panel=heads]")
        page.tap(".head >> nth=2")
        visit.settle()
        assert page.locator(".centre-map .surface").is_visible(), "a tap on a head opens its map"
        below = page.evaluate(
            "document.querySelector('.centre-map .zooms').getBoundingClientRect().top"
            " - document.querySelector('.centre-map .surface').getBoundingClientRect().bottom"
        )
        assert below >= 0, "nothing lies over the last rows"
        page.evaluate("location.hash = location.hash.replace('view=map', 'view=steps')")
        page.tap(".panels button[data-panel=more]")
        page.wait_for_selector(".steps-table tbody tr")
        fits = "[document.documentElement, ...document.querySelectorAll('.steps, .steps-scroll, .steps-table')]"
        assert page.evaluate(f"{fits}.every(n => n.scrollWidth <= n.clientWidth + 1)")
        row = page.locator(".steps-table tbody tr").first
        assert row.locator("td:visible").count() == 1
        row.locator(".unfold").tap()
        assert row.locator("td:visible").count() > 4
        assert page.evaluate(f"{fits}.every(n => n.scrollWidth <= n.clientWidth + 1)")
        visit.accessible("steps on a phone")
    finally:
        visit.close()
    visit = Visit(browser, live.base, viewport={"width": 1024, "height": 768})
    try:
        page = visit.open(f"#run={live.kids}")  # type: ignore[attr-defined]
        visit.until(f"{SAID} === '{KIDS}'")
        thumbs = [page.locator(f".head >> nth={i}").bounding_box() for i in range(3)]
        assert all(box is not None and box["width"] > 60 and box["x"] < 92 for box in thumbs), "a rail of thumbnails"
        page.click(".head >> nth=1")
        visit.until("!location.hash.includes('L=3&H=1&')")
        page.click(".rail-handle")
        assert page.locator(".portrait h3").is_visible()
        page.keyboard.press("Escape")
        assert page.locator(".portrait h3").is_hidden()
        # A new text lies over the views: they stay as they are. Closer goes to what is pinned.
        surface = page.locator(".centre-map .surface")
        before = surface.bounding_box()
        page.click("text=New text")
        assert surface.bounding_box() == before
        page.keyboard.press("Escape")
        assert page.locator(".composer").is_hidden()
        page.goto(f"{live.base}#run={live.kids}&L=3&H=1&q=15&k=1")  # type: ignore[attr-defined]
        for _ in range(2):
            page.click(".centre-map button[aria-label='zoom in (+)']")
        seen = page.locator(".centre-map .axis-label.pinned").all_inner_texts()
        assert set(seen) == {"[SEP]", "The"}, "the pinned row and column are in view"
        page.keyboard.press("5")
        page.wait_for_selector(".steps-table td.weight")
        assert page.evaluate("(n => n.scrollWidth <= n.clientWidth)(document.querySelector('.steps-scroll'))")
    finally:
        visit.close()


def test_words(visit: Visit, add: Add) -> None:
    """Capital letters as they are typed, if that is asked for."""
    tokens: list[Any] = words(28)
    tokens[14] = "The"
    run = make_run(sights(28, layers=1), tokens)
    add(run)
    page = visit.open(f"#run={run.id}&L=0&H=0")
    page.keyboard.press("/")
    page.keyboard.type("The")
    page.wait_for_selector(".found >> text=6 found")
    page.click("button[aria-label='capital letters as typed']")
    page.wait_for_selector(".found >> text=1 found")
