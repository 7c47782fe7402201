"""The page in a real browser: the acceptance checks of the explorer, one by one, and the ways through it."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page

import sightline as sl
from sightline.explore.model_runs import Models, RunRequest, watched
from sightline.explore.run import Run
from sightline.steps import explain
from sightline.web.jobs import performer
from sightline.web.serve import make_service
from sightline.web.service import Service
from web.browser import SENTENCE, Live, Trained, Visit, flat_run, long_run, relu_run, trained

# Gives the server a run, and says its id.
Add = Callable[[Run], str]

OTHER = "The lions were scared of the kids, so they left right away."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    model, tokenizer = trained("minilm")
    for name, text in (("a-kids", SENTENCE), ("b-lions", OTHER)):
        watched(model, tokenizer, RunRequest(text, "minilm"), folder / name, lambda **_: None)
    return folder


@pytest.fixture(scope="module")
def live(runs: Path) -> Iterator[Live]:
    models = Trained(["minilm"])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    service.library.shelve_folder(runs)
    server = Live(service)
    server.kids = service.library.listed()[0]["id"]  # type: ignore[attr-defined]
    server.lions = service.library.listed()[1]["id"]  # type: ignore[attr-defined]
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
    """A page on the server; it ends before what was added for it."""
    opened = Visit(browser, live.base)
    yield opened
    opened.close()


def at(live: Live, **state: object) -> str:
    return "#v=1&" + "&".join(f"{name}={value}" for name, value in {"run": live.kids, **state}.items())  # type: ignore[attr-defined]


def weight(live: Live, layer: int, head: int, query: int, key: int) -> float:
    sight = live.service.run(live.kids).account[f"encoder.layers.{layer}.attention"]  # type: ignore[attr-defined]
    return float(sight.tile(slice(query, query + 1), slice(key, key + 1))[0, head].item())


def pixels(page: Page, selector: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(page.locator(selector).screenshot())).convert("RGB")).astype(int)


# 1


def test_the_first_view_shows_heads_map_text_and_a_true_sentence(visit: Visit, live: Live) -> None:
    page = visit.open()
    sentence = page.locator(".sentence")
    visit.until("document.querySelector('.sentence .weight').textContent !== ''")
    state = dict(part.split("=") for part in page.url.split("#")[1].split("&"))
    layer, head, query, key = (int(state[name]) for name in ("L", "H", "q", "k"))
    assert float(sentence.locator(".weight").inner_text()) == pytest.approx(
        weight(live, layer, head, query, key), abs=5e-4
    )
    assert page.locator(".head").count() == 72
    assert page.locator(".text-body .t").count() == 16
    assert page.locator(".text-body").inner_text().split() == ["[CLS]", *SENTENCE.split(), "[SEP]"]
    drawn = pixels(page, ".centre-map .surface")
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 20


# 2


def test_they_look_at_kids(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    page.mouse.move(*visit.cell(10, 2))
    page.wait_for_selector(".tooltip >> text=rank 1 of 16")
    shown = page.locator(".tooltip").inner_text()
    assert shown.split()[:2] == ["they→kids", "0.814"]
    page.mouse.click(*visit.cell(10, 2))
    with page.expect_response(lambda answer: "/steps/" in answer.url) as caught:
        page.keyboard.press("s")
    steps = caught.value.json()
    line = next(line for line in steps["lines"] if line["key"] == 2)
    exact = weight(live, 3, 1, 10, 2)
    assert line["weight"] == pytest.approx(exact, abs=1e-6)
    assert exact == pytest.approx(0.814, abs=1e-3)
    told = explain(trained("minilm")[0], SENTENCE, layer=3, head=1).table(10).to_dict()
    assert [one["weight"] for one in steps["lines"]] == pytest.approx(
        [one["weight"] for one in told["lines"]], abs=1e-6
    )
    assert steps["sum"] == pytest.approx(told["sum"], abs=1e-5)
    row = page.locator(".steps-table tr", has_text="kids")
    assert "0.814" in row.inner_text()
    scope: dict[str, float] = {}
    exec(steps["python"].replace("print(weight)", ""), scope)
    assert scope["weight"] == pytest.approx(exact, abs=1e-6)


# 4


def test_colours_change_without_asking(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    before = pixels(page, ".centre-map .surface")
    visit.requests.clear()
    times = []
    for keys in ("l", "l", "l"):
        times.append(
            page.evaluate(
                """key => new Promise(done => {
                    const start = performance.now();
                    document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
                    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
                })""",
                keys,
            )
        )
    assert (pixels(page, ".centre-map .surface") != before).any(), "linear is not log"
    for name in ("viridis", "cividis", "grey"):
        was = pixels(page, ".centre-map .surface")
        page.select_option("select[aria-label=colours]", name)
        visit.rest()
        assert (pixels(page, ".centre-map .surface") != was).any()
    page.fill("input[aria-label='highest colour at']", "0.1")
    page.keyboard.press("Tab")
    visit.rest()
    assert "hi=0.1" in page.url
    assert visit.requests == []
    assert min(times) < 100


# 6


@pytest.mark.parametrize("ratio", [1, 1.25, 2])
def test_a_flat_map_has_one_colour_and_no_seams(browser: Browser, live: Live, add: Add, ratio: float) -> None:
    run = add(flat_run())
    visit = Visit(browser, live.base, device_scale_factor=ratio)
    try:
        page = visit.open(f"#v=1&run={run}&view=map&L=0&H=0&at=301.3,297.7,0&diag=0&lo=1e-5")
        box = page.locator(".centre-map .surface").bounding_box()
        assert box is not None
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] - 7, middle[1] - 3, steps=3)
        page.mouse.up()
        page.mouse.move(2, 2)
        visit.settle()
        page.keyboard.press("1")
        seen = pixels(page, ".centre-map .surface canvas.tiles")
        edge = int(170 * ratio)  # the map in the corner
        inner = seen[20:-edge, 20:-edge]
        assert (inner == inner[0, 0]).all()
    finally:
        visit.close()


# 7


def test_pins_stay_until_they_are_released(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    page.mouse.click(*visit.cell(10, 2))
    for view in "1456":
        page.keyboard.press(view)
        page.mouse.move(500, 300)
        page.mouse.move(1200, 400)
        visit.rest()
        assert "q=10&k=2" in page.url
        assert page.locator(".t.query").inner_text() == "they"
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    assert "q=" not in page.url
    assert page.locator(".t.query").count() == 0


def test_two_queries_are_the_sum_of_their_rows(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    page.click(".t >> text=they")
    page.click(".t >> text=left", modifiers=["Shift"])
    page.mouse.move(700, 850)
    page.wait_for_selector(".about >> text=they + left")
    assert "q=10,11" in page.url
    sum_of_both = weight(live, 3, 1, 10, 2) + weight(live, 3, 1, 11, 2)
    shown = page.locator(".top-keys tr", has_text="kids").locator(".number").first.inner_text()
    assert float(shown) == pytest.approx(sum_of_both, abs=1e-3)


# Answers about the token that is pointed at arrive just when the pointer leaves it.
LATE = """
const ask = window.fetch;
window.fetch = async (url, ...rest) => {
  const answer = await ask(url, ...rest);
  if (String(url).includes("?q=11&")) await new Promise(done => (window.late_ ??= []).push(done));
  return answer;
};
addEventListener("pointerout", () => window.late_?.splice(0).forEach(done => done()), true);
"""


def test_words_and_numbers_are_of_the_same_queries(visit: Visit, live: Live) -> None:
    visit.page.add_init_script(LATE)
    page = visit.open(at(live, L=3, H=1, q=10))
    page.evaluate(
        """() => {
            window.told_ = [];
            const tell = () => window.told_.push([
                document.querySelector('.text .about').textContent,
                [...document.querySelectorAll('.top-keys tbody tr')].map(row => row.textContent).join(' '),
            ]);
            new MutationObserver(tell).observe(document.querySelector('.top-keys'), {childList: true});
        }"""
    )
    page.click(".t >> text=left", modifiers=["Shift"])
    page.mouse.move(700, 850)
    page.wait_for_selector(".about >> text=they + left")
    visit.rest()
    told = [numbers for words, numbers in page.evaluate("window.told_") if "they + left" in words]
    assert told
    assert set(told) == {told[-1]}


# 8


def test_an_address_shows_exactly_this(visit: Visit, browser: Browser, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    page.mouse.click(*visit.cell(10, 2))
    page.keyboard.press("m")
    page.keyboard.press("+")
    page.select_option("select[aria-label=colours]", "viridis")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(2, 2)
    visit.settle()
    here = page.screenshot()
    fresh = Visit(browser, live.base)
    try:
        fresh.open("#" + page.url.split("#")[1])
        fresh.until("document.querySelector('.sentence .weight').textContent !== ''")
        fresh.page.mouse.move(2, 2)
        fresh.settle()
        there = fresh.page.screenshot()
    finally:
        fresh.close()
    a, b = (np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int) for shot in (here, there))
    assert (np.abs(a - b).max(-1) > 2).mean() < 1e-4


def test_back_undoes_a_rectangle(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    whole = pixels(page, ".centre-map .surface")
    start, end = visit.cell(2, 2), visit.cell(6, 7)
    page.keyboard.down("Shift")
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.mouse.move(2, 2)
    visit.settle()
    assert "at=" in page.url
    assert (pixels(page, ".centre-map .surface") != whole).any()
    page.keyboard.press("Backspace")
    visit.until("!location.hash.includes('at=')")
    visit.settle()
    assert (pixels(page, ".centre-map .surface") == whole).all()


def test_an_impossible_address_is_put_right_and_said(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=99, H=99, q="3,999", k=5, lo="-4", map="rainbow", nonsense=1))
    page.wait_for_selector(".notice >> text=there is no layer 99")
    assert "L=5&H=11&q=3&k=5" in page.url


def test_some_layers_keep_the_numbers_of_the_model(browser: Browser, tmp_path: Path) -> None:
    """In the page, its addresses, the names of exports and a report; addresses that counted otherwise still open."""
    model, tokenizer = trained("minilm")
    watched(model, tokenizer, RunRequest(SENTENCE, "minilm", "3,5"), tmp_path / "some", lambda **_: None)
    service = Service(performer(Models(["minilm"]), lambda run: None))
    service.library.shelve_folder(tmp_path / "some")
    (run,) = service.library.listed()
    server = Live(service)
    visit = Visit(browser, server.base)
    try:
        page = visit.open(f"#v=2&run={run['id']}&L=3&H=1&q=10&k=2")
        visit.until("document.querySelector('.sentence .weight').textContent === '0.814'")
        assert page.locator(".sentence .where").inner_text() == "layer 3 head 1"
        assert page.locator("select[aria-label=layer] option").all_inner_texts() == ["Layer 3", "Layer 5"]
        assert {text.split()[0] for text in page.locator(".head").all_inner_texts()} == {"L3", "L5"}
        page.keyboard.press("}")
        visit.until("location.hash.includes('L=5&')")
        page.wait_for_selector(".sentence .where >> text=layer 5 head 1")
        # An address of before: the first layer of this run.
        page.goto("about:blank")
        visit.open(f"#v=1&run={run['id']}&L=0&H=1&q=10&k=2")
        visit.until("location.hash.startsWith('#v=2') && location.hash.includes('L=3&')")
        page.goto("about:blank")
        visit.open(f"#v=2&run={run['id']}&L=4&H=1")
        page.wait_for_selector(".notice >> text=there is no layer 4")
        api = f"{server.base}api/runs/{run['id']}"
        answer = httpx.get(f"{api}/export?format=npz&layer=1&head=2")
        assert "-layer5-head2.npz" in answer.headers["content-disposition"]
        about = json.loads(str(np.load(io.BytesIO(answer.content))["about"]))
        assert (about["layer"], about["layer_name"]) == (5, "encoder.layers.5.attention")
        (tmp_path / "report.html").write_bytes(httpx.get(f"{api}/export?format=html").content)
        page.goto(f"file://{tmp_path}/report.html#v=2&run={run['id']}&L=5&H=1")
        page.wait_for_selector(".sentence .where >> text=layer 5 head 1")
        visit.requests.clear()
    finally:
        visit.close()
        server.close()
        service.close()


# 9


def test_five_questions_by_keyboard(visit: Visit, live: Live) -> None:
    page = visit.open()
    # Which heads do something interesting? The rail is there, ranked; another chip ranks anew.
    first = page.locator(".head").first.get_attribute("aria-label")
    page.focus(".chip-button[data-order=previous]")
    page.keyboard.press("Enter")
    assert page.locator(".head").first.get_attribute("aria-label") != first
    page.keyboard.press("2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.until("!location.hash.includes('L=1&H=8')")
    # What did this token look at?
    page.keyboard.press("/")
    page.keyboard.type("they")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_selector(".about >> text=what “they” looks at")
    assert "q=10" in page.url
    # Which tokens fed this answer?
    page.keyboard.press("r")
    page.wait_for_selector(".about >> text=heuristic, not proof of cause")
    page.wait_for_selector(".top-keys caption >> text=fed it most")
    # What is this head's structure?
    page.keyboard.press("m")
    assert "pool=max" in page.url
    # How was this number computed?
    page.keyboard.press("s")
    page.wait_for_selector(".steps-table")
    page.keyboard.press("1")
    page.focus(".centre-map .surface")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert re.search(r"q=\d+&k=\d+", page.url)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_serious_for_axe_and_no_sideways_scroll(browser: Browser, live: Live, width: int, scheme: str) -> None:
    phone = width == 390
    size = {"width": width, "height": 844 if phone else 800}
    visit = Visit(browser, live.base, viewport=size, color_scheme=scheme, has_touch=phone, is_mobile=phone)
    try:
        page = visit.open(at(live, L=3, H=1, q=10, k=2))
        for key in ("1", "2", "3", "4", "5", "6"):
            page.keyboard.press(key)
            visit.rest()
            if key == "5":
                page.wait_for_selector(".steps-table", state="attached")
            # The rest of the page was looked at with the first view.
            visit.accessible(f"{width} {scheme} view {key}", "html" if key in "123" else "#centre")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.keyboard.press("Escape") if key == "2" else None
        for key in ("?", "e"):
            page.keyboard.press(key)
            page.wait_for_selector("dialog[open]")
            visit.accessible(f"{width} {scheme} dialog {key}", "dialog[open]")
            page.keyboard.press("Escape")
    finally:
        visit.close()


# 10


def test_masked_zero_and_below_the_floor_differ(visit: Visit, add: Add) -> None:
    run = relu_run()
    add(run)
    page = visit.open(f"#v=1&run={run.id}&view=map&L=1&H=0&lo=0.001&hi=1&diag=0")
    weights = run.account["tiny"].tile(slice(None), slice(None))[0, 0]
    shown = pixels(page, ".centre-map .surface canvas.tiles")
    cells = [(q, k) for q in range(40) for k in range(q + 1)]
    zero = next(cell for cell in cells if weights[cell] == 0)
    tiny = next(cell for cell in cells if 0 < weights[cell] < 1e-3)
    size = float(page.evaluate("document.querySelector('.axis-label.row').style.height").removesuffix("px"))

    def color(cell: tuple[int, int]) -> tuple[int, ...]:
        return tuple(shown[int((cell[0] + 0.5) * size), int((cell[1] + 0.5) * size)])

    masked = {
        tuple(p) for p in shown[int(5.1 * size) : int(5.9 * size), int(30.1 * size) : int(30.9 * size)].reshape(-1, 3)
    }
    assert color(zero) != color(tiny)
    assert len(masked) > 1, "a hatch has at least two colours"
    assert not {color(zero), color(tiny)} & masked


# The ways through it


@contextmanager
def asking(browser: Browser, model: str, runs: int = 8, **options: Any) -> Iterator[tuple[Visit, Service]]:
    """A page that has no run yet, and a server with a model."""
    models = Trained([model])
    service = Service(performer(models, lambda run: service.library.add(run)), models, runs=runs)
    server = Live(service)
    visit = Visit(browser, server.base, **options)
    try:
        visit.page.goto(server.base)
        yield visit, service
    finally:
        visit.close()
        server.close()


def test_type_a_text_and_run_it(browser: Browser) -> None:
    with asking(browser, "minilm") as (visit, _):
        page = visit.page
        page.wait_for_selector(".composer.alone")
        assert page.locator("textarea").input_value() == SENTENCE
        page.fill("textarea", "")
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".composer .problem >> text=Type a text first")
        page.fill("textarea", SENTENCE)
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".app:not(.empty) .head canvas")
        visit.settle()
        page.select_option("select[aria-label=layer]", "3")
        page.select_option("select[aria-label=head]", "1")
        visit.settle()
        page.mouse.move(*visit.cell(10, 2))
        page.wait_for_selector(".tooltip >> text=0.814")
        page.mouse.wheel(0, -120)
        visit.settle()
        assert "at=" in page.url
        page.keyboard.press("0")
        visit.until("!location.hash.includes('at=')")
        # A text that is too long fails with a sentence, and harms nothing.
        page.click("text=New text")
        page.fill("textarea", "lion " * 3000)
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".progress.problem >> text=too long for minilm")
        said = page.locator(".progress.problem").inner_text()
        assert "3,002 tokens; expected at most 512 tokens. Try: a part of it" in said
        page.click(".progress >> text=Dismiss")
        page.click("button[aria-label='close this run']")
        page.wait_for_selector(".composer.alone")


def test_a_text_beyond_the_limit_runs_and_the_page_says_what_made_room(browser: Browser) -> None:
    with asking(browser, "minilm", runs=4) as (visit, service):
        page = visit.page
        titles = page.locator(".run-select option")
        for i in range(5):
            if i:
                page.click("text=New text")
            page.fill("textarea", f"Text {i} of five: the kids left.")
            page.click(".composer button[type=submit]")
            page.wait_for_selector(f".run-select option:checked:has-text('Text {i} of five')", state="attached")
            if i == 3:  # somebody looks at the oldest one: the next one has to go
                oldest = service.library.listed()[-1]["id"]
                page.select_option(".run-select", oldest)
                visit.until("document.title.startsWith('Text 0')")
        told = page.locator(".progress", has_text="Closed to make room")
        told.wait_for()
        assert "minilm: Text 1 of five: the kids left." in told.inner_text()
        assert "keeps 4 runs" in told.inner_text()
        visit.accessible("a run that made room", ".progress")
        assert titles.count() == 4
        assert not any("Text 1 of" in title for title in titles.all_inner_texts())
        page.click(".progress >> text=Dismiss")
        assert not told.is_visible()


def test_a_generation_makes_the_map_grow(browser: Browser) -> None:
    """What is written is seen while it is written: here the model waits for the page."""
    gates, calls = {6: threading.Event(), 10: threading.Event()}, list[int]()

    def held(*_: object) -> None:
        calls.append(1)
        if gate := gates.get(len(calls)):
            gate.wait(60)

    with asking(browser, "smollm2") as (visit, service):
        assert service.models is not None
        model, _ = service.models.get("smollm2")
        handle = model.decoder.layers[0].register_forward_pre_hook(held)
        try:
            page = visit.page
            page.fill("textarea", "The kids were scared of the lions, so")
            page.fill("input[aria-label='tokens to generate']", "14")
            page.click(".composer button[type=submit]")
            page.wait_for_selector(".app:not(.empty)")
            visit.until("document.querySelectorAll('.text-body .t').length > 0")
            before = page.locator(".text-body .t").count()
            assert service.library.listed()[0]["growing"]
            gates[6].set()
            visit.until(f"document.querySelectorAll('.text-body .t').length > {before}")
            visit.rest()
            listed = page.locator(".run-select option:checked").text_content() or ""
            assert listed.endswith(f"({page.locator('.text-body .t').count()})"), "the list goes along"
            gates[10].set()
            deadline = time.monotonic() + 60
            while service.library.listed()[0]["growing"] and time.monotonic() < deadline:
                page.wait_for_timeout(50)
            run = service.run(service.library.listed()[0]["id"])
            visit.until(f"document.querySelectorAll('.text-body .t').length === {len(run.tokens)}")
            visit.settle()
        finally:
            for gate in gates.values():
                gate.set()
            handle.remove()
        assert len(run.tokens) > before >= 9, "seen while it was written, not only at its end"


@pytest.mark.parametrize("width, scheme", [(1440, "light"), (390, "dark")])
def test_layers_appear_as_they_are_done(
    browser: Browser, width: int, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run has a bar and the layers that are there; when all are, the page looks where it would have at first."""
    monkeypatch.setattr("sightline.explore.model_runs.EVERY", 0.0)
    go = threading.Event()
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with asking(browser, "minilm", **options) as (visit, service):
        assert service.models is not None
        model, _ = service.models.get("minilm")
        handle = model.encoder.layers[1].register_forward_pre_hook(lambda *_: go.wait(60) and None)
        try:
            page = visit.page
            page.click(".composer button[type=submit]")
            page.mouse.move(2, 2)  # else it may point at a token
            page.wait_for_selector(".app:not(.empty)")
            visit.until("document.querySelectorAll('.head').length === 12")
            assert page.locator("select[aria-label=layer] option").all_inner_texts() == ["Layer 0"]
            assert page.locator(".progress progress").is_visible()
            assert page.locator(".progress progress").get_attribute("value") == "1"
            assert "running 1 of 6 layers" in page.locator(".progress").inner_text()
            visit.until("document.querySelector('.sentence .weight').textContent !== ''")
            assert "L=0&" in page.url
            visit.accessible("a run that grows", ".progress")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        finally:
            go.set()
            handle.remove()
        visit.until("document.querySelectorAll('.head').length === 72")
        visit.until("location.hash.includes('L=3&H=1&')")
        assert not page.locator(".progress").is_visible()
        visit.settle()


def test_a_run_that_is_taken_back_half_way_is_left(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.explore.model_runs.EVERY", 0.0)
    monkeypatch.setattr("sightline.explore.model_runs.SHARE", 1e9)  # every layer is looked at, however long that takes
    go = threading.Event()
    with asking(browser, "minilm") as (visit, service):
        assert service.models is not None
        model, _ = service.models.get("minilm")
        handle = model.encoder.layers[2].register_forward_pre_hook(lambda *_: go.wait(60) and None)
        try:
            page = visit.page
            page.click(".composer button[type=submit]")
            visit.until("document.querySelectorAll('.head').length === 24")
            visit.settle()
            page.click(".progress >> text=Cancel")
        finally:
            go.set()
            handle.remove()
        page.wait_for_selector(".composer.alone")
        assert service.library.listed() == []
        # The page may have asked for the run in the moment in which it went.
        visit.expected.append("404")


def test_on_a_phone_the_first_tap_points_and_the_second_pins(browser: Browser, live: Live) -> None:
    size = {"width": 390, "height": 844}
    visit = Visit(browser, live.base, viewport=size, has_touch=True, is_mobile=True)
    try:
        page = visit.open(at(live, L=3, H=1))
        page.tap(".panels button[data-panel=centre]")
        visit.settle()
        page.touchscreen.tap(*visit.cell(10, 2))
        page.wait_for_selector(".tooltip >> text=0.814")
        # The browser moved its mouse there; where there is a real one, it goes back to that.
        page.dispatch_event(".centre-map .leaflet", "mouseleave")
        assert page.locator(".tooltip").is_visible()
        assert "q=" not in page.url
        page.touchscreen.tap(*visit.cell(10, 2))
        visit.until("location.hash.includes('q=10&k=2')")
    finally:
        visit.close()


def test_compare_heads_texts_and_their_difference(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    page.keyboard.press("6")
    page.click(".compare .empty button")
    visit.settle()
    assert page.locator(".compare .surface").count() == 2
    first = page.locator(".compare .surface").first.bounding_box()
    assert first is not None
    page.mouse.move(first["x"] + 40, first["y"] + 40)
    page.mouse.wheel(0, -120)
    visit.settle()
    a, b = (pixels(page, f".compare-side:nth-child({i}) canvas.tiles") for i in (1, 2))
    assert a.shape == b.shape
    labels = [page.locator(f".compare-side:nth-child({i}) .axis-label.row").all_inner_texts() for i in (1, 2)]
    assert labels[0] == labels[1], "both show the same part"
    page.click(".compare >> text=difference")
    visit.settle()
    assert page.locator(".compare .surface").count() == 1
    assert "diff=1" in page.url
    page.select_option("select[aria-label='second run']", live.lions)  # type: ignore[attr-defined]
    visit.until("document.querySelectorAll('.compare .surface').length === 2")
    visit.settle()
    assert page.locator(".compare .segmented[aria-label=show]").is_hidden(), "other tokens have no difference"


def test_links_isolate_and_pin(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1, view="links", aside=0))
    page.wait_for_selector(".links-lines path", state="attached")
    exact = live.service.run(live.kids).account["encoder.layers.3.attention"].tile(slice(None), slice(None))[0, 1]  # type: ignore[attr-defined]
    wanted = sum(int((row.topk(8).values >= 0.02).sum()) for row in exact)
    assert page.locator(".links-lines path").count() == wanted
    page.hover(".links-column.left li:nth-child(11)")
    page.wait_for_selector(".links-lines.isolated path.on", state="attached")
    assert page.locator(".links-lines path.on").count() == int((exact[10].topk(8).values >= 0.02).sum())
    page.click(".links-column.left li:nth-child(11)")
    assert "q=10" in page.url


def test_exports(visit: Visit, live: Live, tmp_path: Path) -> None:
    page = visit.open(at(live, L=3, H=1))
    found: dict[str, bytes] = {}
    for name in ("PNG", "SVG", "CSV", "npz", "HTML"):
        page.keyboard.press("e")
        with page.expect_download() as caught:
            page.click(f"dialog[open] button:text-is('{name}')")
        path = tmp_path / caught.value.suggested_filename
        caught.value.save_as(path)
        found[name] = path.read_bytes()
        page.keyboard.press("Escape")
    picture = Image.open(io.BytesIO(found["PNG"])).convert("RGB")
    assert picture.width > 800
    assert len(picture.getcolors(1 << 24) or []) > 50
    drawing = found["SVG"].decode()
    assert drawing.count("<rect") > 256
    assert ">kids</text>" in drawing
    assert ">keys → across</text>" in drawing
    assert ">queries ↓ down</text>" in drawing
    lines = found["CSV"].decode().splitlines()
    assert len(lines) == 257
    numbers = np.load(io.BytesIO(found["npz"]))
    assert numbers["weights"][10, 2] == pytest.approx(weight(live, 3, 1, 10, 2), abs=1e-6)
    (tmp_path / "report.html").write_bytes(found["HTML"])
    report = Visit(page.context.browser, "file://")  # type: ignore[arg-type]
    try:
        report.page.goto(f"file://{tmp_path}/report.html#v=1&run={live.kids}&L=3&H=1&q=10&k=2")  # type: ignore[attr-defined]
        report.page.wait_for_selector(".report-note")
        report.page.wait_for_selector(".sentence .weight >> text=0.814")
        report.settle()
        report.page.mouse.move(*report.cell(10, 2))
        report.page.wait_for_selector(".tooltip >> text=0.814")
        assert report.page.locator("#tab-steps").is_hidden()
    finally:
        report.close()


def test_the_api_has_a_page_of_its_own(visit: Visit) -> None:
    visit.page.goto(visit.base + "api/docs")
    visit.page.get_by_text("/api/runs/{run}/tiles/{layer}/{head}/{lq}/{lk}/{y}/{x}").wait_for()
    visit.accessible("docs")


def test_without_q_and_k_the_map_stops_at_its_overview(visit: Visit, add: Add, tmp_path: Path) -> None:
    import torch

    import sightline as sl
    from explore_cases import Sights, make_run, words

    sight = sl.look(
        torch.randn(1, 2, 700, 8), torch.randn(1, 2, 700, 8), mask=sl.causal(), stats=("entropy", "received")
    )
    sight.prepare(sl.Picture(cell=(4, 4), reduce="sum"))
    sight.save(tmp_path / "sight.safetensors", keep_qk=False)
    run = add(make_run(Sights(only=sl.Sight.load(tmp_path / "sight.safetensors")), words(700), text="no q and k"))
    page = visit.open(f"#v=1&run={run}&view=map&L=0&H=0&at=350,200,3")
    page.wait_for_selector(".text .about >> text=keep_qk=True")
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.wait_for_selector(".tooltip >> text=queries")
    assert page.locator(".failure").is_hidden()
    page.keyboard.press("5")
    page.wait_for_selector(".steps >> text=keep_qk=True")
    visit.expected.append("422")  # Text asks for the row, and says the same
    page.evaluate("location.hash += '&q=5'")
    page.wait_for_selector("#sentence >> text=: what it looks at is not known here")


# A server that goes away


def test_without_tokens_there_are_positions(browser: Browser, tmp_path: Path) -> None:
    """A saved sight knows no words: queries and keys are numbers, in the text as on the map."""
    q, k = torch.randn(1, 2, 13, 8), torch.randn(1, 2, 21, 8)
    sl.look(q, k).save(tmp_path / "one.safetensors")
    service = make_service([tmp_path / "one.safetensors"], ["minilm"])
    server = Live(service)
    visit = Visit(browser, server.base)
    try:
        page = visit.open()
        assert page.locator(".text-body").inner_text().split() == [f"#{i}" for i in range(13)]
        assert page.locator(".axis-label.row").all_inner_texts() == [f"#{i}" for i in range(13)]
        assert page.locator(".axis-label.column").all_inner_texts() == [f"#{i}" for i in range(21)]
        assert "∅" not in page.locator("main").inner_text()
        assert "one.safetensors" in page.locator(".run-select option").inner_text()
    finally:
        visit.close()
        server.close()
        service.close()


def test_a_dead_server_is_said_and_retry_works(browser: Browser, runs: Path) -> None:
    """Nobody listens at its port; then another one does, that knows nothing of this page."""
    server = Live(make_service([runs], ["minilm"]))
    visit = Visit(browser, server.base)
    try:
        page = visit.open()
        server.close()
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.base)
        page.keyboard.press("]")
        page.wait_for_selector(".failure >> text=The server does not answer")
        server = Live(make_service([runs], ["minilm"]), server.port)
        page.click(".failure button")
        page.wait_for_selector(".failure", state="hidden")
        visit.settle()
    finally:
        server.close()
        visit.expected.append("ERR_CONNECTION_REFUSED")
        visit.close()


def test_a_browser_that_leaves_harms_nobody(browser: Browser, live: Live) -> None:
    before = threading.active_count()
    for _ in range(3):
        visit = Visit(browser, live.base)
        with visit.page.expect_request(lambda asked: "/tiles/" in asked.url):
            visit.page.goto(live.base)
        visit.context.close()
    found = httpx.get(f"{live.base}api/runs/{live.kids}/peek/3/1?rows=10&cols=2").json()  # type: ignore[attr-defined]
    assert found["rank"] == 1
    assert threading.active_count() <= before + 2


# Long maps


def test_the_tooltip_lies_over_the_minimap(visit: Visit, add: Add) -> None:
    run = add(long_run(4096))  # whose small picture is there at once
    page = visit.open(f"#v=1&run={run}&view=map&L=0&H=0&at=3000,1500,-1&diag=0")
    page.wait_for_selector(".centre-map .minimap")
    mini = page.locator(".centre-map .minimap").bounding_box()
    assert mini is not None
    page.mouse.move(mini["x"] - 100, mini["y"] - 40)
    page.wait_for_selector(".centre-map .tooltip >> text=queries")
    over = page.locator(".centre-map .tooltip").bounding_box()
    assert over is not None
    assert over["x"] + over["width"] > mini["x"] + 6 > over["x"], "they meet"
    above = """([x, y]) => {
      const tooltip = document.querySelector('.centre-map .tooltip');
      tooltip.style.pointerEvents = 'auto';
      const seen = tooltip.contains(document.elementFromPoint(x, y));
      tooltip.style.pointerEvents = '';
      return seen;
    }"""
    assert page.evaluate(above, [mini["x"] + 6, mini["y"] + 6]), "the tooltip lies over the minimap"


@pytest.fixture(scope="module")
def long(live: Live) -> Iterator[str]:
    run = long_run()
    live.service.library.add(run)
    yield run.id
    live.service.close_run(run.id)


def test_a_long_map_is_panned_with_bounds(browser: Browser, live: Live, long: str) -> None:
    visit = Visit(browser, live.base, reduced_motion="reduce")  # let go of, it stays: how far it would glide is chance
    page = visit.open(f"#v=1&run={long}&view=map&L=0&H=0&at=10000,5000,-2&diag=0")
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    aborted: list[str] = []
    page.on("requestfailed", lambda request: aborted.append(request.url))
    for i in range(12):
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + (330 if i % 4 < 2 else -330), y + (250 if i % 2 else -250), steps=4)
        page.mouse.up()
    page.mouse.move(2, 2)
    visit.settle()
    assert aborted, "whatever went out of sight was let go"
    state = dict(part.split("=") for part in page.url.split("#")[1].split("&"))
    row, col, zoom = (float(part) for part in state["at"].split(","))
    shown = pixels(page, ".centre-map .surface canvas.tiles")
    assert zoom == -2
    # The colour of a place is the same wherever the map stands.
    page.goto(f"{visit.base}#v=1&run={long}&view=map&L=0&H=0&at={row + 200},{col + 160},-2&diag=0")
    page.reload()
    page.wait_for_selector(".app:not(.empty)")
    visit.settle()
    again = pixels(page, ".centre-map .surface canvas.tiles")
    height, width = shown.shape[:2]
    part = shown[height // 2 - 60 : height // 2 + 60, width // 2 - 60 : width // 2 + 60]
    moved = again[height // 2 - 110 : height // 2 + 10, width // 2 - 100 : width // 2 + 20]
    assert (np.abs(part - moved).max(-1) > 2).mean() < 0.02
    visit.expected.append("ERR_ABORTED")
    visit.close()


def test_a_drag_makes_no_element_anew(visit: Visit, live: Live, long: str) -> None:
    """What is in view stays the same element: made anew with every frame, they were most of the page's memory."""
    page = visit.open(f"#v=1&run={long}&view=map&L=0&H=0&at=10000,5000,-2&diag=0", estimates=True)
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] // 2, box["y"] + box["height"] // 2
    page.mouse.move(x, y)
    page.wait_for_selector(".centre-map .tooltip >> text=queries")
    page.evaluate(
        """() => {
          const map = document.querySelector('.centre-map');
          window.labels = () => [...map.querySelectorAll('.axis-label')].map((node) => [node.textContent, node]);
          window.first = window.labels();
          window.sizes = 0;
          const watch = new MutationObserver((seen) => { window.sizes += seen.length; });
          watch.observe(map, { subtree: true, attributeFilter: ['width', 'height'] });
        }"""
    )
    held = page.locator(".centre-map .tooltip").inner_text().split("\n")[:2]
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=6)
    visit.rest()
    # The cell that the map was taken by comes along with the pointer, and so does what is said of it.
    assert page.locator(".centre-map .tooltip").inner_text().split("\n")[:2] == held
    kept, moved = page.evaluate(
        """() => {
          const now = new Map(window.labels());
          const both = window.first.filter(([text]) => now.has(text));
          return [both.filter(([text, node]) => now.get(text) === node).length, both.length];
        }"""
    )
    page.mouse.up()
    assert kept == moved >= 8
    assert page.evaluate("new Set(window.labels().map(([text]) => text)).size === window.labels().length"), "each once"
    assert page.evaluate("window.sizes") == 0
    rows = page.locator(".centre-map .axis-label.row").evaluate_all(
        "all => all.map(n => [Number(n.textContent.replaceAll(',', '')), n.getBoundingClientRect().y])"
    )
    assert [place for _, place in sorted(rows)] == sorted(place for _, place in rows)


def test_the_address_keeps_its_place(visit: Visit, live: Live, long: str) -> None:
    """While the page opens, when it is read anew, and when the window changes its size."""
    page = visit.open(f"#v=1&run={long}&view=map&L=0&H=0&at=10000,5000,-2&diag=0", estimates=True)
    assert "at=10000,5000,-2" in page.url
    page.goto(f"{visit.base}#v=1&run={long}&view=map&L=0&H=0&at=11000,6000,-2&diag=0")
    page.reload()
    page.wait_for_selector(".app:not(.empty)")
    visit.settle(estimates=True)
    assert "at=11000,6000,-2" in page.url
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"] - 80, "height": size["height"] - 60})
    visit.settle(estimates=True)
    assert "at=11000,6000,-2" in page.url


def test_zooming_in_on_a_long_map_reaches_cells(visit: Visit, live: Live, long: str) -> None:
    page = visit.open(f"#v=1&run={long}&view=map&L=0&H=0", estimates=True)
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 150, box["y"] + 300)
    for _ in range(9):
        before = page.url
        page.mouse.wheel(0, -120)
        visit.until(f"location.href !== '{before}'")
    visit.settle()
    page.mouse.move(box["x"] + 160, box["y"] + 310)
    page.wait_for_selector(".tooltip >> text=rank")
    query, key = (
        int(n.replace(",", "")) for n in re.findall(r"(?:query|key) ([\d,]+)", page.locator(".tooltip").inner_text())
    )
    shown = page.locator(".tooltip .weight").inner_text().replace("−", "-")
    sight = live.service.run(long).account["only"]
    exact = float(sight.tile(slice(query, query + 1), slice(key, key + 1)).item())
    assert float(shown) == pytest.approx(exact, rel=0.06)


# The first five minutes


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_links_are_exported_as_they_are_seen(browser: Browser, live: Live, tmp_path: Path, scheme: str) -> None:
    visit = Visit(browser, live.base, color_scheme=scheme)
    try:
        page = visit.open(at(live, L=3, H=1, q=10, view="links"))
        page.wait_for_selector(".links-lines.isolated path.on", state="attached")
        page.keyboard.press("e")
        with page.expect_download() as caught:
            page.click("dialog[open] button:text-is('SVG')")
        caught.value.save_as(tmp_path / "links.svg")
        ink = [
            int(n)
            for n in re.findall(
                r"\d+", page.evaluate("getComputedStyle(document.querySelector('.links-lines')).stroke")
            )
        ]
        page.goto(f"file://{tmp_path}/links.svg")
        drawn = np.asarray(
            Image.open(io.BytesIO(page.screenshot(clip={"x": 160, "y": 0, "width": 260, "height": 385}))).convert("RGB")
        ).astype(int)
        # From "they" in the eleventh line to "kids" in the third.
        starts, ends = (
            drawn[int((line + 2) * 22) - 2 : int((line + 2) * 22) + 2, column] for line, column in ((10, 3), (2, -4))
        )
        for place in (starts, ends):
            assert np.abs(place - ink).max(-1).min() < 60, "there is a line in the colour of the page's"
        faint = drawn[6 * 22 - 8 : 6 * 22 + 8, 3]
        assert np.abs(faint - drawn[0, 0]).max() < 30, "and those that the page sets aside are faint"
    finally:
        visit.requests.clear()
        visit.close()


def test_a_phone_can_start(browser: Browser) -> None:
    size = {"width": 390, "height": 844}
    with asking(browser, "minilm", viewport=size, has_touch=True, is_mobile=True) as (visit, _):
        page = visit.page
        page.wait_for_selector(".composer.alone")
        visit.accessible("a phone without a run")
        form, fields = page.locator(".composer form").bounding_box(), page.locator(".composer select").bounding_box()
        assert form is not None
        assert fields is not None
        assert fields["x"] + fields["width"] <= form["x"] + form["width"] - 14, "nothing sticks out"
        page.tap("textarea", timeout=5000)
        page.fill("textarea", SENTENCE)
        page.tap(".composer button[type=submit]", timeout=5000)
        page.wait_for_selector(".app:not(.empty)")
        page.wait_for_selector(".text-body .t >> text=kids")
        page.tap(".panels button[data-panel=centre]")
        visit.settle()
        assert len(np.unique(pixels(page, ".centre-map .surface").reshape(-1, 3), axis=0)) > 20
        visit.accessible("a phone's first map")


# The strongest link of a head is known only when the test says so.
SLOW_LINK = """
const ask = window.fetch;
window.fetch = async (url, ...rest) => {
  const answer = await ask(url, ...rest);
  if (/peek[/][0-9]+[/][0-9]+[?]rev=/.test(String(url))) await new Promise(done => (window.links_ ??= []).push(done));
  return answer;
};
"""


@pytest.fixture
def newcomer(browser: Browser, runs: Path) -> Iterator[Visit]:
    """A page on a server of its own, whose newest run is the one about the kids; links come late."""
    service = Service(performer(Models([]), lambda run: None))
    service.library.shelve_folder(runs)
    server = Live(service)
    visit = Visit(browser, server.base)
    visit.page.add_init_script(SLOW_LINK)
    yield visit
    visit.close()
    server.close()


def test_the_strongest_link_is_pinned_however_late_it_is_known(newcomer: Visit) -> None:
    visit, page = newcomer, newcomer.open()
    assert "q=" not in page.url
    page.evaluate("window.links_.splice(0).forEach(done => done())")
    visit.until("/q=[0-9]+&k=[0-9]+/.test(location.hash)", 5)
    visit.until("document.querySelector('.sentence .weight').textContent !== ''")


def test_a_late_link_does_not_disturb_who_has_begun_to_look_around(newcomer: Visit) -> None:
    page = newcomer.open()
    page.click(".t >> text=scared")
    page.evaluate("window.links_.splice(0).forEach(done => done())")
    newcomer.rest()
    assert "q=4&" in page.url
    assert "&k=" not in page.url


def test_markdown_reads_as_it_was_typed(visit: Visit, add: Add) -> None:
    from web.conftest import make_run, sights

    tokens = ["##", "ĠPlans", "ĊĊ", "The", "Ġkids", "###", "b", "Ġleft", "."]
    page = visit.open(f"#v=1&run={add(make_run(sights(len(tokens)), tokens))}&L=0&H=0&q=4")
    page.wait_for_selector(".about >> text=kids")
    assert page.locator(".text-body").inner_text().replace("⏎", "") == "## Plans\n\nThe kids###b left."
    assert "Ġ" not in page.locator(".app").inner_text()
    rows = page.locator(".centre-map .axis-label.row").all_inner_texts()
    assert rows == ["##", "Plans", "⏎⏎", "The", "kids", "###", "b", "left", "."]


def test_a_difference_has_its_own_legend_and_export(visit: Visit, live: Live, tmp_path: Path) -> None:
    page = visit.open(at(live, L=3, H=1, view="compare", diff=1, scale="log", hi=0.8) + f"&with={live.kids},3,2")  # type: ignore[attr-defined]
    legend = page.locator(".compare .legend")
    assert legend.locator(".scalebar").inner_text() == "difference\n−0.8"
    assert legend.locator("input:visible").input_value() == "0.8"
    assert legend.locator("select").is_hidden(), "its colours are its own"
    for name in ("entropy", "received"):
        strip = page.locator(f".compare .strip.{name}")
        assert (strip.get_attribute("title") or "").endswith(", L3 H1 − L3 H2: orange where the first has more")
        red, blue = np.moveaxis(pixels(page, f".compare .strip.{name}"), -1, 0)[[0, 2]]
        assert (red > blue + 40).any() or (blue > red + 40).any(), f"{name} is a difference too"
    assert legend.locator(".swatches").inner_text().split() == ["masked", "<", "±0.0010"]
    pale = "getComputedStyle(document.querySelectorAll('.compare .swatches .swatch')[1]).backgroundColor"
    assert page.evaluate(pale) == "rgb(243, 243, 243)"
    page.keyboard.press("e")
    with page.expect_download() as caught:
        page.click("dialog[open] button:text-is('SVG')")
    caught.value.save_as(tmp_path / "map.svg")
    drawing = (tmp_path / "map.svg").read_text()
    cells = drawing[: drawing.index("</g>")]
    colours = [[int(n) for n in rgb.split(",")] for rgb in re.findall(r"rgb\(([\d,]+)\)", cells)]
    assert any(blue > red + 40 for red, _, blue in colours), "where the second looks more it is blue"
    assert any(red > blue + 40 for red, _, blue in colours), "where the first does it is orange"
    assert ">−0.800</text>" in drawing
    assert "layer 3 head 1 − layer 3 head 2" in drawing
    page.keyboard.press("Escape")
    page.click(".compare >> text=side by side")
    visit.settle()
    assert legend.locator(".swatches").inner_text().split() == ["masked", "0", "<", "0.0010"]
    assert legend.locator("input:visible").count() == 2


def test_pins_of_two_models_stand_at_the_same_letters(visit: Visit, add: Add) -> None:
    from web.conftest import make_run, sights

    pieces, whole = ["un", "##believ", "##able", "the", "kids"], ["Unbelievable", "Ġthe", "Ġkids"]
    a, b = (add(make_run(sights(len(tokens)), tokens, model=f"of {len(tokens)}")) for tokens in (pieces, whole))
    page = visit.open(f"#v=1&run={a}&view=compare&L=0&H=0&q=4&k=3&with={b},0,0")
    visit.settle()
    pinned = ".compare-side:nth-child({}) .axis-label.{}.pinned"
    assert [page.locator(pinned.format(i, "row")).inner_text() for i in (1, 2)] == ["kids", "kids"]
    assert [page.locator(pinned.format(i, "column")).inner_text() for i in (1, 2)] == ["the", "the"]
    row = page.locator(".compare-side:nth-child(2) .axis-label.row >> text=the").bounding_box()
    map_ = page.locator(".compare-side:nth-child(2) .surface").bounding_box()
    assert row is not None
    assert map_ is not None
    page.mouse.click(map_["x"] + row["height"] / 2, row["y"] + row["height"] / 2)
    visit.until("location.hash.includes('q=3&k=1')", 5)


def test_orange_is_positive_in_the_explorer_and_on_pages_of_steps(visit: Visit, live: Live, tmp_path: Path) -> None:
    page = visit.open(at(live, L=3, H=1, q=10, view="steps"))
    page.wait_for_selector(".steps-table .vector-cells")
    seen = page.evaluate(
        """() => {
            const canvas = document.querySelector('.steps-q .vector-cells');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, 1);
            const numbers = canvas.title.split('  ').slice(0, canvas.width).map(Number);
            return numbers.map((x, i) => [x, data[4 * i] - data[4 * i + 2]]);
        }"""
    )
    assert all((warm > 0) == (x > 0) for x, warm in seen if abs(x) > 0.2)
    explain(trained("minilm")[0], SENTENCE, layer=3, head=1).save_html(tmp_path / "steps.html", queries=[10])
    page.goto(f"file://{tmp_path}/steps.html")
    colour = "getComputedStyle(document.querySelector('.bar')).backgroundColor"
    red, _, blue = (int(n) for n in re.findall(r"\d+", page.evaluate(colour))[:3])
    assert red > blue
    visit.requests.clear()


def test_words_from_right_to_left_keep_their_place_in_a_sentence(visit: Visit, add: Add) -> None:
    from web.conftest import make_run, sights

    tokens = ["שלום", "עולם", "יפה", "מאוד"] * 3
    page = visit.open(f"#v=1&run={add(make_run(sights(len(tokens)), tokens))}&L=0&H=0&q=9&k=2")
    visit.until("document.querySelector('.portrait .summary').textContent.includes('strongest')")
    lefts = page.evaluate(
        """() => {
            const summary = document.querySelector('.portrait .summary');
            summary.style.whiteSpace = 'nowrap';
            const node = summary.firstChild, text = node.data;
            const left = (from, to) => {
                const range = document.createRange();
                range.setStart(node, from);
                range.setEnd(node, to);
                return range.getBoundingClientRect().left;
            };
            const at = text.indexOf('strongest');
            const found = [...text.matchAll(/strongest|[\\u0590-\\u05ff]+|→|[0-9.]+$/g)];
            const words = found.filter(word => word.index >= at);
            return words.map(word => left(word.index, word.index + word[0].length));
        }"""
    )
    assert len(lefts) == 5, page.inner_text(".portrait .summary")
    assert lefts == sorted(lefts), "strongest, its query, the arrow, its key, and the weight: in this order"


def test_nothing_lies_over_a_rectangle_that_is_drawn(visit: Visit, live: Live) -> None:
    page = visit.open(at(live, L=3, H=1))
    page.mouse.move(*visit.cell(2, 2))
    page.wait_for_selector(".tooltip >> text=rank")
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(*visit.cell(8, 9), steps=5)
    assert page.locator(".box").is_visible()
    assert page.locator(".centre-map .tooltip").is_hidden()
    page.mouse.up()
    page.keyboard.up("Shift")
    visit.settle()


def test_labels_of_an_axis_do_not_collide(visit: Visit, add: Add) -> None:
    from web.conftest import make_run, sights

    tokens = [f"unreasonably{i}" for i in range(300)]
    page = visit.open(f"#v=1&run={add(make_run(sights(300, layers=1), tokens))}&L=0&H=0&q=103&k=98")
    box = page.locator(".centre-map .surface").bounding_box()
    assert box is not None
    boxes = """kind => [...document.querySelectorAll(`.centre-map .axis-label.${kind}`)].map(label => {
        const { left, right, top, bottom } = label.getBoundingClientRect();
        return kind === 'row' ? [top, bottom] : [left, right];
    }).sort((a, b) => a[0] - b[0])"""
    for pixels_along in (90, 97, 101, 105, 112, 160, 240):
        page.mouse.move(box["x"] + pixels_along, box["y"] + pixels_along + 6)
        visit.rest()
        for kind in ("row", "column"):
            spans = page.evaluate(boxes, kind)
            assert len(spans) > 2
            assert all(a[1] <= b[0] + 1 for a, b in pairwise(spans)), (kind, pixels_along, spans)


def test_a_reader_of_csv_gets_the_tokens_back(visit: Visit, add: Add, tmp_path: Path) -> None:
    from web.conftest import make_run, sights

    tokens = ["say", ' "hi"', ",", "\n", " {}", " kids"]
    page = visit.open(f"#v=1&run={add(make_run(sights(len(tokens), layers=1), tokens))}&L=0&H=0")
    page.keyboard.press("e")
    with page.expect_download() as caught:
        page.click("dialog[open] button:text-is('CSV')")
    caught.value.save_as(tmp_path / "map.csv")
    with (tmp_path / "map.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key_token"] for row in rows if row["query"] == "5"] == tokens
    assert {row["query_token"] for row in rows if row["query"] == "1"} == {tokens[1]}
