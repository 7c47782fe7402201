"""The explorer as a notebook widget: its messages, its frame in a real browser, and a real kernel."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, FloatRect, Locator

import sightline as sl
from sightline.errors import InputTypeError
from sightline.explore.one_model import OneModel
from sightline.watching import Seen
from sightline.web.widget import Carried, explorer
from web.notebook import Notebook
from word_model import TEXT, word_model


@pytest.fixture(scope="module")
def seen() -> Seen:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 20, 16)
    with torch.no_grad(), sl.watch(layer, keep_qk=True) as account:
        layer(x, x, x)
    account.tokens = [[f" word{i}" for i in range(20)]]
    return account


@pytest.fixture
def carried(seen: Seen) -> Iterator[Carried]:
    made = Carried(seen)
    yield made
    made.close()


def ask(carried: Carried, path: str) -> tuple[int, dict[str, str], bytes]:
    return carried.ask(path).result(20)


def run_of(carried: Carried) -> str:
    return json.loads(ask(carried, "/api/runs")[2])["runs"][0]["id"]


def test_messages_carry_the_same_numbers(carried: Carried, seen: Seen) -> None:
    status, _, body = ask(carried, f"/api/runs/{run_of(carried)}/tiles/0/1/0/0/0/0?pool=mean")
    assert status == 200
    tile = np.frombuffer(body, "<f4").reshape(256, 256)[:20, :20]
    np.testing.assert_array_equal(tile, seen[0].tile(slice(None), slice(None))[0, 1].numpy())


def test_problems_are_answers_too(carried: Carried) -> None:
    status, _, body = ask(carried, "/api/runs/nothing/rows/0/0?q=1")
    assert status == 404
    assert set(json.loads(body)) == {"error", "expected", "got", "try"}
    assert json.loads(ask(carried, "/api/limits")[2])["models"] == []


def test_a_widget_answers_and_forgets_what_was_cancelled(seen: Seen) -> None:
    widget, sent = explorer(seen, height=400), queue.Queue[Any]()
    widget.send = lambda content, buffers=None: sent.put((content, buffers))
    widget._asked(widget, {"id": 7, "path": "/api/limits"}, [])
    content, buffers = sent.get(timeout=20)
    assert content["id"] == 7
    assert content["status"] == 200
    assert json.loads(buffers[0])["runs"] == 8
    for nonsense in ("x", {"id": "7", "path": "/"}, {"id": 1, "path": "api"}, {"cancel": 99}, {}):
        widget._asked(widget, nonsense, [])
    widget._asked(widget, {"id": 8, "path": "/api/runs"}, [])
    widget._asked(widget, {"cancel": 8}, [])
    widget._asked(widget, {"id": 9, "path": "/api/runs"}, [])
    answers = [sent.get(timeout=20)[0]["id"]]
    while answers[-1] != 9:
        answers.append(sent.get(timeout=20)[0]["id"])
    assert widget.height == 400
    widget.close()


def test_only_runs_are_shown() -> None:
    with pytest.raises(InputTypeError, match="a watched run"):
        explorer("a text")  # type: ignore[arg-type]


def _answer(carried: Carried, path: str, body: Any = None) -> Any:
    given = () if body is None else ("POST", json.dumps(body))
    status, _, found = carried.ask(path, *given).result(20)
    assert status in (200, 202), found
    return json.loads(found)


def _done(carried: Carried, path: str, body: Any) -> str:
    id = str(_answer(carried, path, body)["id"])
    while (found := _answer(carried, f"/api/runs/{id}")).get("state") in ("queued", "running"):
        time.sleep(0.01)
    assert found["state"] == "done", found
    return id


def test_programs_run_in_the_notebook_they_are_copied_in(tmp_path: Path) -> None:
    """With the model that the widget was given: an edited run, a reading, effects; nothing is loaded from a folder."""
    model, tokenizer = word_model(tmp_path)
    with torch.no_grad(), sl.watch(model, keep_qk=True, tokenizer=tokenizer) as seen:
        model(torch.tensor([tokenizer.encode(TEXT).ids]))
    carried, last = Carried(seen, OneModel(seen, model, tokenizer)), len(TEXT.split()) - 1
    base = run_of(carried)
    name = _answer(carried, f"/api/runs/{base}")["model"]

    def ran(path: str) -> dict[str, Any]:
        program = _answer(carried, path)["python"]
        assert "models.load" not in program
        there: dict[str, Any] = {"model": model, "seen": seen}
        exec(program, there)
        return there

    def row(run: str) -> np.ndarray:
        return np.frombuffer(ask(carried, f"/api/runs/{run}/rows/1/2?q={last}")[2], "<f4")

    try:
        # What the run of the notebook has itself is read from there.
        program = _answer(carried, f"/api/runs/{base}/python/1/2?q={last}")["python"]
        np.testing.assert_allclose(ran(f"/api/runs/{base}/python/1/2?q={last}")["cells"].reshape(-1), row(base))
        assert "sl.watch" not in program
        edits = ["ablate:0.1", "cut:1.2:k0"]
        edited = _done(carried, "/api/runs", {"text": TEXT, "model": name, "edits": edits})
        shown = ran(f"/api/runs/{edited}/python/1/2?q={last}")["cells"]
        np.testing.assert_allclose(np.nan_to_num(row(edited)), shown.reshape(-1), atol=1e-6)
        assert np.isnan(row(edited)[0]), "it was cut"
        reading = _done(carried, f"/api/runs/{base}/readings", {"token": "Mary", "than": "John"})
        there = ran(f"/api/runs/{reading}_influence/python/1/2?q={last}&token=Mary&than=John")
        np.testing.assert_allclose(row(f"{reading}_influence"), there["cells"].reshape(-1), rtol=1e-5, atol=1e-9)
        value = _answer(carried, f"/api/runs/{reading}_influence")["value"]
        assert there["value"] == pytest.approx(value, rel=1e-6)
        _done(carried, f"/api/runs/{base}/effects", {})
        found = _answer(carried, f"/api/runs/{base}/effects")
        there = ran(f"/api/runs/{base}/python/1/2?q={last}&also=effects")
        np.testing.assert_allclose(there["effects"].exact[0], found["exact"], rtol=1e-5, atol=1e-9)
    finally:
        carried.close()


def _box(locator: Locator) -> FloatRect:
    """Where an element is; labels are made anew when another head is shown, and for a moment are nowhere."""
    for _ in range(100):
        found = locator.bounding_box()
        if found is not None:
            return found
        locator.page.wait_for_timeout(50)
    raise AssertionError(f"{locator} is not shown")


def test_the_widget_in_a_browser(browser: Browser, seen: Seen, carried: Carried) -> None:
    book = Notebook(browser, carried, viewport={"width": 1000, "height": 760})
    page, frame = book.page, book.frame
    frame.locator(".axis-label.row").nth(3).wait_for(timeout=20_000)
    frame.locator("select[aria-label=head]").select_option("1")
    row = _box(frame.locator(".axis-label.row").nth(3))
    surface = frame.locator(".centre-map .surface").bounding_box()
    assert surface is not None
    page.mouse.move(surface["x"] + 5.5 * row["height"], row["y"] + row["height"] / 2)
    frame.locator(".tooltip >> text=rank").wait_for(timeout=20_000)
    shown = float(frame.locator(".tooltip .weight").inner_text())
    assert shown == pytest.approx(float(seen[0].tile(slice(3, 4), slice(5, 6))[0, 1]), abs=6e-4)
    assert frame.locator(".bar .primary").is_hidden(), "there is no model to run"
    # Steps back work without an address.
    frame.locator("body").press("m")
    frame.locator("body").press("Backspace")
    assert page.url == "about:blank"
    page.evaluate("leave()")
    assert page.locator("iframe").count() == 0
    book.close()


def test_the_widget_fits_the_cell_it_is_in(browser: Browser, seen: Seen, carried: Carried) -> None:
    """From a phone's width on: nothing goes sideways, what is looked at is there, and axe finds nothing serious."""
    book = Notebook(browser, carried, viewport={"width": 390, "height": 760})
    book.until(".text-body [data-t]")
    for width, scheme in ((390, "light"), (700, "dark"), (1024, "light"), (1440, "dark")):
        book.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        book.page.set_viewport_size({"width": width, "height": 760})
        inner = book.page.frames[-1]
        for panel in ("text", "centre", "heads") if width < 900 else ("",):
            if panel:
                book.frame.locator(f"button[data-panel={panel}]").click()
            shown = {"text": ".text-body", "centre": ".surface", "heads": ".heads-grid"}.get(panel, ".surface")
            book.frame.locator(f"{shown}:visible").first.wait_for()
            assert inner.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{width} {panel}"
            book.accessible(f"{width} {panel}")
    book.close()


def test_seen_in_a_notebook_shows_the_widget() -> None:
    import nbformat
    from nbclient import NotebookClient

    code = """
import torch, sightline as sl
layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
x = torch.randn(1, 12, 16)
with torch.no_grad(), sl.watch(layer, keep_qk=True) as seen:
    layer(x, x, x)
seen
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    (output,) = [one for one in book.cells[0].outputs if one.output_type == "execute_result"]
    assert "application/vnd.jupyter.widget-view+json" in output.data
    assert "<img" in output.data["text/html"], "a picture for readers without a kernel"
    assert "Seen(" in output.data["text/plain"]


def test_seen_elsewhere_is_what_it_was(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert seen._repr_mimebundle_() == {}
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "sightline.web.widget")
    shown = seen._repr_mimebundle_()["text/html"]
    assert shown.startswith(seen._repr_html_()), "the table with pictures, where the extra is not installed"
    assert "No explorer here: the explorer in a notebook needs anywidget" in shown
    assert "sightline[notebook]" in shown
