"""The explorer as a notebook widget: its messages, its frame in a real browser, and a real kernel."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, FloatRect, Locator

import sightline as sl
from sightline.errors import InputTypeError
from sightline.watching import Seen
from sightline.web.widget import Carried, explorer
from web.notebook import Notebook


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
