"""Exact effects of all heads in a real browser: ordered, followed, taken back, read, and opened from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser

import sightline as sl
from sightline.explore import effects
from sightline.explore.aims import Aim
from sightline.explore.model_runs import RunRequest
from sightline.explore.one_model import OneModel
from sightline.explore.report import report
from sightline.watching import Seen
from sightline.web.jobs import performer
from sightline.web.service import Service
from sightline.web.widget import Carried
from web.browser import Live, Visit
from web.notebook import Notebook
from web.test_effects import TEXT, Tiny
from word_model import TEXT as WORDS
from word_model import word_model

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
    told = page.locator("#effect-1-2").get_attribute("title") or ""
    assert told.startswith("layer 1 head 2: exact ")
    shown = [float(part.split()[-1].replace("−", "-")) for part in told.split(":")[1].split(",")]
    assert shown == pytest.approx([exact[1][2], first[1][2]], rel=0.06)
    strongest = max((abs(x), layer, head) for layer, row in enumerate(exact) for head, x in enumerate(row))[1:]
    assert page.locator(".effects .most").get_attribute("id") == f"effect-{strongest[0]}-{strongest[1]}"
    least = 24 if width > 900 else 44
    sizes = page.evaluate(
        "[...document.querySelectorAll('.effects .link-cell')].map(c => [c.offsetWidth, c.offsetHeight])"
    )
    assert min(min(size) for size in sizes) >= least, "what a pointer hits"
    visit.accessible("effects")
    # A model of many heads: the grid scrolls inside, and the page does not.
    wide = "document.querySelector('.effects .link-grid').style.setProperty('--target', '{}px')"
    page.evaluate(wide.format(200))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(wide.format(least))

    page.locator(".effects .link-grid").first.focus()
    for key in ("ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    visit.until("location.hash.includes('L=1&H=2') && location.hash.includes('effects=1')")
    if width > 900:
        color = "getComputedStyle(document.querySelector('#effect-0-1')).backgroundColor"
        before = page.evaluate(color)
        page.locator(".effects [role=radio]", has_text="first order").click()
        assert (page.evaluate(color) == before) == (f"{exact[0][1]:.6f}" == f"{first[0][1]:.6f}")
        page.locator("#effect-0-1").click()
        visit.until("location.hash.includes('L=0&H=1')")
        page.locator(".why-bar button", has_text="Python").click()
        page.locator("pre.python", has_text="sl.effects(model").wait_for()
        page.keyboard.press("Escape")
        page.reload()
        page.locator("#effect-2-3").wait_for()
    visit.close()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Seen]:
    model, tokenizer = word_model(tmp_path_factory.mktemp("words"))
    with torch.no_grad(), sl.watch(model, keep_qk=True, tokenizer=tokenizer) as seen:
        model(torch.tensor([tokenizer.encode(WORDS).ids]))
    return model, tokenizer, seen


def test_a_notebook_takes_heads_out_of_its_own_model(
    browser: Browser, words: tuple[Any, Any, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, seen = words
    carried = Carried(seen, OneModel(seen, model, tokenizer))
    book = Notebook(browser, carried)
    frame = book.frame
    frame.locator("#rail-tab-effects").click()
    start = frame.locator(".effects button", has_text="Exact effects of all heads")
    start.wait_for()

    held, layer = threading.Event(), model.decoder.layers[1].attention
    with monkeypatch.context() as patch:
        real = layer.forward
        patch.setattr(layer, "forward", lambda *given, **more: (held.wait(30), real(*given, **more))[1])
        start.click()
        book.until(".effects-where", "reading the text 1 of 8")
        book.accessible("while heads are taken out, in a notebook")
        frame.locator(".effects button", has_text="Cancel").click()
        held.set()
        start.wait_for()
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    assert not any(getattr(module, kind) for module in model.modules() for kind in kinds)
    assert not any("forward" in vars(module) for module in model.modules())

    start.click()
    frame.locator("#effect-1-2").wait_for()
    ids = torch.tensor([tokenizer.encode(WORDS).ids])
    token = int(model(ids)[0, -1].argmax())
    exact = sl.effects(model, {"ids": ids, "last": 1}, sl.targets.logit(token)).exact[0]
    told = frame.locator("#effect-1-2").get_attribute("title") or ""
    shown = float(told.split("exact ")[1].split(",")[0].replace("−", "-"))
    assert shown == pytest.approx(float(exact[1, 2]), rel=0.06)
    book.accessible("effects, in a notebook")
    carried.close()
    book.close()


def test_a_notebook_without_the_model_says_how_to_bring_it(browser: Browser, words: tuple[Any, Any, Seen]) -> None:
    carried = Carried(words[2])
    book = Notebook(browser, carried)
    book.until("#rail-tab-effects")
    book.frame.locator("#rail-tab-effects").click()
    book.until(".effects .summary", "this widget was given none: explorer(seen, model=model)")
    assert book.frame.locator(".effects button:visible").count() == 0
    carried.close()
    book.close()


@pytest.mark.parametrize("width, theme", [(1440, "light"), (1024, "dark"), (390, "dark"), (390, "light")])
def test_a_report_holds_the_effects_that_were_found(
    browser: Browser, live: Live, tmp_path: Path, width: int, theme: str
) -> None:
    run = live.service.run(live.run)  # type: ignore[attr-defined]
    run.effects.clear()
    for aim in (Aim(" the", " John"), Aim(" Mary", " John")):
        effects.keep(
            effects.compute(effects.EffectsRequest(run, aim), *live.service.models.get("tiny"), lambda **_: None)
        )
    path = tmp_path / "report.html"
    path.write_bytes(report(run))
    visit = Visit(browser, path.as_uri(), viewport={"width": width, "height": 900}, color_scheme=theme)
    page = visit.page
    page.goto(f"{path.as_uri()}#v=2&run={run.id}{STATE}")
    page.wait_for_selector(".app:not(.empty) .report-note")
    visit.settle()
    assert "exact effects of heads" in page.locator(".report-note").inner_text()
    if width < 900:
        page.click("[data-panel=heads]")
    elif width < 1280:
        page.click(".rail-handle")
    page.locator("#effect-2-3").wait_for()
    mary = effects.find(run, Aim(" Mary", " John"))
    the = effects.find(run, Aim(" the", " John"))
    assert mary is not None
    assert the is not None
    summary = page.locator(".effects .summary")
    assert f"for “Mary” instead of “John”, {mary['value']:.2f} with all" in summary.inner_text().replace("−", "-")
    told = page.locator("#effect-1-2").get_attribute("title") or ""
    shown = [float(part.split()[-1].replace("−", "-")) for part in told.split(":")[1].split(",")]
    assert shown == pytest.approx([mary["exact"][1][2], mary["influence"][1][2]], rel=0.06)
    assert page.locator(".effects button", has_text="Exact effects").count() == 0
    # The other target that it holds; the address says which.
    choice = page.locator("select.effects-aims")
    assert choice.locator("option").all_inner_texts() == ["for “Mary” instead of “John”", "for “the” instead of “John”"]
    choice.select_option("1")
    visit.until("location.hash.includes('for=%20the')")
    assert f"{the['value']:.2f} with all" in summary.inner_text().replace("−", "-")
    visit.accessible("effects of a report")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    least = 24 if width > 900 else 44
    box = choice.bounding_box()
    assert box is not None
    assert box["height"] >= least, "what a pointer hits"
    page.locator(".effects .link-grid").first.focus()
    for key in ("ArrowUp", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    visit.until("location.hash.includes('L=0&H=3')")
    assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    visit.close()


def test_a_report_without_effects_says_who_has_them(browser: Browser, live: Live, tmp_path: Path) -> None:
    run = live.service.run(live.run)  # type: ignore[attr-defined]
    run.effects.clear()
    path = tmp_path / "report.html"
    path.write_bytes(report(run))
    visit = Visit(browser, path.as_uri())
    visit.page.goto(f"{path.as_uri()}#v=2&run={run.id}{STATE}")
    visit.page.wait_for_selector(".effects .summary >> text=sightline serve has")
    assert visit.page.locator(".effects button:visible, .effects select:visible").count() == 0
    visit.accessible("no effects in a report")
    visit.close()
