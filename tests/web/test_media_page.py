"""Why, and pictures, wherever the page is: sent to a server, in a notebook with its model, in a report without any."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Locator

import image_cases
import sightline as sl
from sightline.errors import InputError
from sightline.explore import bookmarks, readings
from sightline.explore.model_runs import Models
from sightline.explore.one_model import OneModel
from sightline.explore.report import report
from sightline.explore.run import Run, runs_of
from sightline.watching import Seen
from sightline.web.jobs import performer
from sightline.web.service import Service
from sightline.web.widget import Carried
from web.browser import Live, Visit
from web.notebook import Notebook
from word_model import TEXT, word_model

SIDE = image_cases.SIDE
# A patch of the ball: row 4, column 1.
BALL = 1 + 4 * SIDE + 1


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Seen]:
    """A model of words, its tokenizer, and a run of it."""
    model, tokenizer = word_model(tmp_path_factory.mktemp("words"))
    with torch.no_grad(), sl.watch(model, keep_qk=True, tokenizer=tokenizer) as seen:
        model(torch.tensor([tokenizer.encode(TEXT).ids]))
    return model, tokenizer, seen


@pytest.fixture(scope="module")
def mattered(words: tuple[Any, Any, Seen]) -> Seen:
    """The same for Mary instead of John, by Python."""
    model, tokenizer, _ = words
    mary, john = (tokenizer.encode(name).ids[0] for name in ("Mary", "John"))
    with sl.watch(model, influence=True, keep_qk=True, tokenizer=tokenizer) as seen:
        y = sl.targets.logit(mary, than=john)(model(torch.tensor([tokenizer.encode(TEXT).ids])))
        seen.backward(y)
    seen.meta["value"] = float(y.detach())
    return seen


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_cases.checkpoint(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def looked(vit: Path) -> Seen:
    """A picture that a model of transformers looked at."""
    model, _ = sl.models.load(vit)
    images = model.prepare(image_cases.picture())[None]
    theirs = image_cases.vit()
    with torch.no_grad(), sl.watch(theirs, keep_qk=True) as seen:
        theirs(pixel_values=images)
    return seen


def shown(weight: float) -> str:
    return f"{weight:.3f}".replace("-", "−")


def patches(frame: Locator) -> np.ndarray:
    """What is drawn over each patch of a white picture: its mean darkness."""
    drawn = np.asarray(Image.open(io.BytesIO(frame.screenshot())).convert("L")).astype(float)
    edges = np.linspace(0, drawn.shape[0], SIDE + 1).round().astype(int)
    across = np.linspace(0, drawn.shape[1], SIDE + 1).round().astype(int)
    means = [[drawn[a + 6 : b - 6, c + 6 : d - 6].mean() for c, d in pairwise(across)] for a, b in pairwise(edges)]
    return 255 - np.array(means)


def agree(drawn: np.ndarray, row: torch.Tensor) -> None:
    """Each patch is as dark as its weight is large, in its place."""
    weights = row[1:].reshape(SIDE, SIDE).double().numpy()
    order, dark = np.argsort(weights, axis=None), drawn.ravel()
    strong, weak = order[-3:], order[: SIDE * SIDE // 2]
    assert dark[strong].min() > dark[weak].max() + 20, (drawn.round(), weights.round(3))
    assert np.corrcoef(dark, np.sqrt(weights).ravel())[0, 1] > 0.9


def white() -> bytes:
    return image_cases.png(Image.new("RGB", (160, 160), "white"))


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_a_picture_is_sent_and_looked_at(browser: Browser, vit: Path, tmp_path: Path, width: int, theme: str) -> None:
    models = Models([str(vit)])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    live = Live(service)
    visit = Visit(browser, live.base, viewport={"width": width, "height": 900}, color_scheme=theme)
    page = visit.page
    page.goto(live.base)
    page.wait_for_selector(".picked-drop:not([hidden])")
    (tmp_path / "broken.png").write_bytes(white()[:80])
    page.set_input_files("#picked", tmp_path / "broken.png")
    page.wait_for_selector(".picked-drop >> text=cannot be read as a picture")
    page.click(".composer [type=submit]")
    page.wait_for_selector(".composer .problem >> text=Choose a picture first")
    (tmp_path / "photo.png").write_bytes(image_cases.png(image_cases.picture()))
    page.set_input_files("#picked", tmp_path / "photo.png")
    page.wait_for_selector(".picked:not([hidden])")
    visit.accessible("a picture is chosen")
    page.click(".composer [type=submit]")
    page.wait_for_selector(".image-view:not([hidden]) img[src]")
    (about,) = service.library.listed()
    run = service.run(about["id"])
    assert (run.text, run.model, run.account.grid) == ("photo.png", "vit", (SIDE, SIDE, 1))  # type: ignore[attr-defined]
    page.goto(f"{live.base}#v=2&run={run.id}&L=0&H=0&q={BALL}")
    page.reload()
    page.wait_for_selector(".image-about >> text=strongest")
    row = run.account["encoder.layers.0.attention"].tile(slice(BALL, BALL + 1), slice(None))[0, 0, 0]
    best = int(row[1:].argmax())
    told = f"strongest {shown(float(row[1 + best]))}, row {best // SIDE}, column {best % SIDE}"
    page.wait_for_selector(f".image-about >> text={told}")
    frame = page.locator(".image-frame")
    frame.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.until(f"location.hash.includes('q={BALL + 1}')")
    visit.accessible("a picture is looked at")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visit.close()
    live.close()


@pytest.mark.parametrize("whose", ["transformers", "sl.models"])
def test_a_row_is_drawn_on_the_picture_of_a_saved_run(
    browser: Browser, vit: Path, looked: Seen, tmp_path: Path, whose: str
) -> None:
    if whose == "sl.models":
        model, _ = sl.models.load(vit)
        with torch.no_grad(), sl.watch(model, keep_qk=True) as looked:
            model(model.prepare(image_cases.picture())[None])
    looked.save(tmp_path / "run", image=white())
    service = Service(lambda *_: None)  # type: ignore[arg-type, return-value]
    assert service.library.shelve_folder(tmp_path / "run") == []
    live = Live(service)
    visit = Visit(browser, live.base)
    id = service.library.listed()[0]["id"]
    for head in (0, 1):
        page = visit.open(f"#v=2&run={id}&L=0&H={head}&q={BALL}&scale=linear&lo=0&hi=1")
        page.reload()
        page.wait_for_selector(".image-about >> text=strongest")
        visit.rest()
        agree(patches(page.locator(".image-frame")), looked[0].tile(slice(BALL, BALL + 1), slice(None))[0, head, 0])
    visit.close()
    live.close()


def test_words_look_at_a_picture_and_each_has_a_run(browser: Browser, tmp_path: Path) -> None:
    from transformers import BertConfig, BertLMHeadModel, VisionEncoderDecoderModel

    torch.manual_seed(0)
    size = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    decoder = BertLMHeadModel(BertConfig(vocab_size=9, is_decoder=True, add_cross_attention=True, **size))
    model = VisionEncoderDecoderModel(encoder=image_cases.vit(), decoder=decoder).eval()
    with torch.no_grad(), sl.watch(model, keep_qk=True) as seen:
        model(pixel_values=torch.randn(1, 3, 64, 64), decoder_input_ids=torch.tensor([[1, 2, 3]]))
    seen.tokens = [["a", "red", "kite"]]
    seen.save(tmp_path / "run", image=white())
    service = Service(lambda *_: None)  # type: ignore[arg-type, return-value]
    assert service.library.shelve_folder(tmp_path / "run") == []
    picture, words = (service.run(one["id"]) for one in service.library.listed())
    assert [layer.keys for layer in picture.layers] == [65, 65]
    assert [(layer.queries, layer.keys) for layer in words.layers] == [(3, 3), (3, 65)]
    assert readings.about(picture)["image"] == {"rows": 8, "columns": 8, "first": 1, "memory": None, "alone": True}
    assert readings.about(words)["image"] == {"rows": 8, "columns": 8, "first": None, "memory": 1, "alone": False}
    live = Live(service)
    visit = Visit(browser, live.base)
    page = visit.open(f"#v=2&run={words.id}&q=1")
    page.wait_for_selector(".text-body >> text=kite")
    page.select_option("select[aria-label=layer]", "1")
    weights = seen[words.layers[1].name].tile(slice(1, 2), slice(None))[0, 0, 0]
    page.wait_for_selector(f".image-about >> text=strongest {shown(float(weights[1:].max()))}")
    box = page.locator(".image-frame").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 1, box["y"] + 1)
    visit.until("location.hash.includes('k=1&')")
    page.wait_for_selector(f".sentence .weight >> text={shown(float(weights[1]))}")
    page.select_option("select[aria-label=layer]", "0")
    page.wait_for_selector(".image-about >> text=words look at words alone")
    visit.accessible("words and a picture")
    visit.close()
    live.close()


def test_a_notebook_asks_its_own_model_why(browser: Browser, words: tuple[Any, Any, Seen], mattered: Seen) -> None:
    model, tokenizer, seen = words
    carried = Carried(seen, OneModel(seen, model, tokenizer))
    book = Notebook(browser, carried, color_scheme="dark")
    frame, last = book.frame, len(TEXT.split()) - 1
    book.until(".why-bar button", "for the next token")
    frame.locator(".why-bar button", has_text="for the next token").click()
    frame.locator("#target-token").fill("Mary")
    frame.locator("#target-than").fill("John")
    frame.locator("dialog[open] [type=submit]").click()
    book.until(".reading-about", f"= {mattered.meta['value']:.2f}".replace("-", "-"))
    frame.locator("select[aria-label=layer]").select_option("1")
    frame.locator("select[aria-label=head]").select_option("2")
    frame.locator(f".text-body [data-t='{last}']").click()
    cells = mattered[1].tile(slice(last, last + 1), slice(None), of="influence")[0, 2, 0]
    best = int(cells.abs().argmax())
    frame.locator(f".top-keys tr[data-t='{best}']").click()
    assert float(_number(frame.locator(".sentence .weight"))) == pytest.approx(float(cells[best]), abs=6e-4, rel=6e-3)
    book.accessible("mattered, in a notebook")
    frame.locator("#rail-tab-link").click()
    title = frame.locator("#link-0-3").get_attribute("title") or ""
    expected = float(mattered[0].tile(slice(last, last + 1), slice(best, best + 1), of="influence")[0, 3])
    assert float(title.split(": ")[1].replace("−", "-")) == pytest.approx(expected, abs=6e-4, rel=6e-3)
    frame.locator("#rail-tab-path").click()
    book.until(".path li")
    frame.locator("#rail-tab-heads").click()
    frame.locator("[data-view=wall]").click()
    book.until(".wall-count", "8 of 8 heads")
    frame.locator("[data-view=map]").click()
    frame.locator("body").press("c")
    frame.locator("[data-where=head] button", has_text="ablate it").click()
    with torch.no_grad(), sl.edit(model) as edits:
        edits.ablate(heads=[(1, 2)])
        mary, john = (tokenizer.encode(name).ids[0] for name in ("Mary", "John"))
        logits = model(torch.tensor([tokenizer.encode(TEXT).ids]))[0, -1]
    book.until(".outcome", f"{mattered.meta['value']:.2f} → {float(logits[mary] - logits[john]):.2f}")
    frame.locator("body").press("b")
    frame.locator("dialog[open] input").fill("the head that matters")
    frame.locator("dialog[open] [type=submit]").click()
    book.until(".marks-list", "the head that matters")
    (id,) = [one["id"] for one in _runs(carried) if one["origin"] == "notebook"]
    book.accessible("edited, in a notebook")
    kept = json.loads(carried.ask(f"/api/runs/{id}/bookmarks").result(20)[2])["marks"]
    assert [mark["text"] for mark in kept] == ["the head that matters"]
    carried.close()
    book.close()


def _number(locator: Locator) -> str:
    for _ in range(100):
        text = locator.inner_text().replace("−", "-")
        if text:
            return text
        locator.page.wait_for_timeout(50)
    raise AssertionError("there is no number")


def _runs(carried: Carried) -> list[dict[str, Any]]:
    return list(json.loads(carried.ask("/api/runs").result(20)[2])["runs"])


def test_a_notebook_shows_the_picture_and_says_what_it_cannot(browser: Browser, looked: Seen) -> None:
    carried = Carried(looked, picture=white())
    book = Notebook(browser, carried)
    frame = book.frame
    book.until(".image-about", "strongest")
    frame.locator("select[aria-label=layer]").select_option("0")
    frame.locator("select[aria-label=head]").select_option("0")
    box = frame.locator(".image-frame").bounding_box()
    assert box is not None
    book.page.mouse.click(box["x"] + 1.5 * box["width"] / SIDE, box["y"] + 4.5 * box["height"] / SIDE)
    frame.locator(".legend button", has_text="linear").click()
    book.page.mouse.move(3, 3)
    row = looked[0].tile(slice(BALL, BALL + 1), slice(None))[0, 0, 0]
    book.until(".image-about", f"strongest {shown(float(row[1:].max()))}")
    book.rest()
    agree(patches(frame.locator(".image-frame")), row)
    frame.locator(".why-bar button", has_text="mattered").click()
    book.until(".notice", "explorer(seen, model=model)")
    assert frame.locator(".why-bar button", has_text="Cut this").is_hidden()
    book.accessible("a picture, in a notebook")
    carried.close()
    book.close()


def test_only_the_model_that_was_watched_is_asked(words: tuple[Any, Any, Seen]) -> None:
    model, tokenizer, seen = words
    with pytest.raises(InputError, match="not the model that was watched"):
        OneModel(seen, torch.nn.Linear(2, 2))
    one = OneModel(seen, model, tokenizer)
    model.train()
    try:
        with pytest.raises(InputError, match=r"model\.eval"):
            one.get(one.name)
    finally:
        model.eval()


@pytest.fixture(scope="module")
def reported(words: tuple[Any, Any, Seen], mattered: Seen) -> Iterator[Run]:
    """A run with a reading, bookmarks and edits."""
    _, _, seen = words
    (run,) = runs_of(seen)
    mattered.meta["aim"] = {"token": "Mary", "than": "John", "after": None, "ids": [9, 10, 11]}
    for of in readings.SHOWN:
        readings.keep(readings.reading_run(run, "feed", mattered, of))
    bookmarks.write(run, [{"layer": 1, "head": 2, "q": 11, "k": 4, "text": "the lions again"}])
    run.meta["edits"] = ["ablate:0.1"]
    yield run
    run.meta.pop("edits")


@pytest.mark.parametrize("width, theme", [(1440, "dark"), (390, "light")])
def test_a_report_holds_what_was_kept(
    browser: Browser, reported: Run, mattered: Seen, tmp_path: Path, width: int, theme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report(reported))
    visit = Visit(browser, path.as_uri(), viewport={"width": width, "height": 900}, color_scheme=theme)
    page = visit.page
    page.goto(f"{path.as_uri()}#v=2&run={reported.id}&L=1&H=2&q=11&k=4&edits=cut:1.2:q11:k4")
    page.wait_for_selector(".app:not(.empty) .report-note")
    note = page.locator(".report-note").inner_text()
    for part in ("exact weights", "what was carried", "what mattered", "bookmarks", "Edited: without layer 0 head 1"):
        assert part in note
    page.wait_for_selector(".edit-chip >> text=layer 1 head 2, 11 → 4 cut: not run here")
    assert page.locator(".why-bar button", has_text="Cut this").is_hidden()
    page.click(".readings button >> text=mattered")
    page.wait_for_selector(f".reading-about >> text== {mattered.meta['value']:.2f}")
    assert page.locator(".reading-aims").inner_text() == "for “Mary” instead of “John”"
    cell = mattered[1].tile(slice(11, 12), slice(4, 5), of="influence")[0, 2].item()
    page.wait_for_selector(".sentence .link >> text=, from")  # until then it says what looks at what, and how much
    assert float(_number(page.locator(".sentence .weight"))) == pytest.approx(cell, abs=6e-4, rel=6e-3)
    visit.accessible("a report with readings")
    if width > 900:
        page.click("#rail-tab-link")
        title = page.locator("#link-0-1").get_attribute("title") or ""
        expected = mattered[0].tile(slice(11, 12), slice(4, 5), of="influence")[0, 1].item()
        assert float(title.split(": ")[1].replace("−", "-")) == pytest.approx(expected, abs=6e-4, rel=6e-3)
        page.click("#rail-tab-path")
        page.wait_for_selector(".path li .source")
        page.click("[data-view=wall]")
        page.wait_for_selector(".wall-count >> text=8 of 8 heads")
        page.click("[data-view=map]")
    page.click(".readings button >> text=carried")
    carried = mattered[1].tile(slice(11, 12), slice(4, 5), of="norms")[0, 2].item()
    page.wait_for_selector(f".sentence .weight >> text={shown(carried)}")
    page.keyboard.press("b")
    page.wait_for_selector(".marks-list >> text=the lions again")
    visit.accessible("bookmarks of a report", "dialog[open]")
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    visit.close()


def test_a_report_holds_the_picture(browser: Browser, looked: Seen, tmp_path: Path) -> None:
    (run,) = runs_of(looked)
    run.picture = white()
    path = tmp_path / "report.html"
    path.write_bytes(report(run))
    visit = Visit(browser, path.as_uri())
    page = visit.page
    page.goto(f"{path.as_uri()}#v=2&run={run.id}&L=0&H=0&q={BALL}&scale=linear&lo=0&hi=1")
    page.wait_for_selector(".report-note >> text=the picture")
    page.wait_for_selector(".image-about >> text=strongest")
    visit.rest()
    agree(patches(page.locator(".image-frame")), looked[0].tile(slice(BALL, BALL + 1), slice(None))[0, 0, 0])
    assert page.locator(".readings button", has_text="carried").is_visible()  # sizes were kept, gradients were not
    assert page.locator(".readings button", has_text="mattered").is_hidden()
    visit.accessible("a report of a picture")
    visit.close()
