"""The atlas: its numbers, and its page in a real browser, opened from a folder, with hostile texts and 1,024 heads."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sightline.errors import InputError, SightFileError
from sightline.surveying import parts
from sightline.surveying.atlas import atlas, write_atlas
from sightline.surveying.heads import MEASURES, error_row
from sightline.surveying.serve import serve_atlas
from sightline.surveying.texts import Text
from web.browser import open_browser

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028&lt;b&gt;"


def row(text: Text, layer: int, head: int, value: float) -> dict[str, Any]:
    link = {"query": 5, "key": 2, "weight": value, "query_context": ["a ", f"q{layer}", " b"]}
    link["key_context"] = [HOSTILE, "they" if (layer, head) == (7, 3) else "kids", ""]
    measures = {shown.name: None for shown in MEASURES} | {
        "previous": value,
        "first": 1 - value,
        "distance": 40 * value,
    }
    place = {"layer": f"layers.{layer}.attention", "number": layer, "head": head, "tokens": 9}
    spans = [{"name": HOSTILE, "share": value}]
    return {"key": text.key, "name": text.name, "error": None, **place, **measures, "spans": spans, "links": [link] * 6}


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two texts of 32 x 32 heads, and one that could not be run."""
    folder = tmp_path_factory.mktemp("atlas") / "survey"
    parts.begin(folder, {"model": HOSTILE, "links": 3, "generate": 0})
    texts = [Text(f"{HOSTILE}{i}", "text") for i in range(2)]
    for i, text in enumerate(texts):
        rows = [row(text, n, h, (n * 32 + h) / 1023 * (0.9 + 0.1 * i)) for n in range(32) for h in range(32)]
        parts.write_part(folder, [text], rows)
    parts.write_part(folder, [Text("bad", "")], [error_row(Text("bad", ""), "no tokens")])
    return folder


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_head_whose_numbers_are_none_is_drawn_without_them(bad: float, tmp_path: Path) -> None:
    text = Text("text", "text")
    rows = [row(text, 0, 0, 0.5), {**row(text, 0, 1, bad), "links": []}]
    parts.begin(tmp_path, {"model": "overflows"})
    parts.write_part(tmp_path, [text], rows)
    well, ill = atlas(parts.read_rows(tmp_path), "model")["heads"]
    assert (well["values"][0], list(well["spans"].values())) == (0.5, [0.5])
    assert (ill["values"], ill["spans"], sum(map(sum, ill["bins"]))) == ([None] * 3, {}, 0)
    assert write_atlas(tmp_path).is_file()


def test_numbers_of_heads(survey: Path) -> None:
    found = atlas(parts.read_rows(survey), "model")
    assert (found["texts"], found["failed"], len(found["heads"])) == (2, 1, 1024)
    assert [one["name"] for one in found["measures"]] == ["previous", "first", "distance"]  # those that are known
    last = found["heads"][-1]
    assert (last["number"], last["head"], last["values"][0]) == (31, 31, pytest.approx(0.95))
    assert sum(last["bins"][0]) == 2
    assert last["bins"][0][-1] == 1
    assert len(last["links"]) == 10
    assert [link["weight"] for link in last["links"]] == sorted((x["weight"] for x in last["links"]), reverse=True)
    assert last["alike"][0][0] != 1023
    assert -1 <= last["alike"][-1][1] <= last["alike"][0][1] <= 1 + 1e-6
    json.dumps(found, allow_nan=False)


def test_a_survey_without_a_text_that_ran_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        atlas([error_row(Text("bad", ""), "no") | {"error": "no"}], "model")
    with pytest.raises(SightFileError, match="not a survey"):
        write_atlas(tmp_path)


def test_the_page_ranks_finds_and_escapes_and_is_quick(survey: Path) -> None:
    page_file = write_atlas(survey)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        page.on("dialog", lambda dialog: wrong.append("a text was run"))
        page.goto(page_file.as_uri())
        page.wait_for_selector("#head h2")
        assert page.inner_text("#head h2") == "Layer 31, head 31"
        assert page.locator("#rows tr").count() == page.locator("#wall button").count() == 1024
        assert page.locator("ol.links li").count() == 10
        assert HOSTILE.partition("\u2028")[0] in page.inner_text("ol.links")
        assert HOSTILE.partition("\u2028")[0] in page.inner_text("#about")
        assert "; 1 text could not be run" in page.inner_text("#about")
        names = "#names th:visible"
        assert page.locator(names).all_inner_texts() == ["head", "previous token", "first token", "mean distance"]
        page.select_option("#by", label="first token")
        assert page.locator(names).all_inner_texts() == ["head", "first token", "previous token", "mean distance"]
        assert page.locator("#rows tr:first-child td:visible").all_inner_texts()[0::2] == ["0.0", "0.000"]
        assert "Colour is first token, from 0.00 to 1.00" in page.inner_text("#key")
        assert page.inner_text("#rows tr:first-child td") == "0.0"
        page.select_option("#order", "1")
        assert page.inner_text("#rows tr:first-child td") == "31.31"
        page.fill("#find", "they")
        assert page.inner_text("#count") == "1 of 1024 heads"
        page.click("#rows tr")
        assert page.inner_text("#head h2") == "Layer 7, head 3"
        page.locator(".chips button").first.click()
        assert page.inner_text("#head h2") != "Layer 7, head 3"
        page.reload()
        assert "find=they" in page.url
        assert page.inner_text("#count") == "1 of 1024 heads"
        page.fill("#find", "")
        # Ranking all heads anew, in milliseconds of the page's own clock; the least of five, others being at work too.
        again = "() => { const start = performance.now(); rank(); return performance.now() - start; }"
        assert min(page.evaluate(again) for _ in range(5)) < 200
        assert not wrong


def test_on_a_phone_it_opens_at_its_top_and_goes_to_the_head_that_is_chosen(survey: Path) -> None:
    page_file = write_atlas(survey)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        page.goto(page_file.as_uri())
        page.wait_for_selector("#head h2")
        assert page.evaluate("scrollY") == 0
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.tap("#rows tr:nth-child(3)")
        assert page.inner_text("#head h2") == "Layer 31, head 29"
        assert 0 <= page.locator("#head h2").bounding_box()["y"] < 422  # type: ignore[index]
        # The list goes with whatever is chosen elsewhere, and its own head does not cover it.
        page.evaluate("choose(0)")
        covered = "(a, b) => b.getBoundingClientRect().top - a.getBoundingClientRect().bottom"
        chosen, names = (page.query_selector(one) for one in ("tr[aria-selected=true]", "#names"))
        assert page.evaluate(f"([a, b]) => ({covered})(a, b)", [names, chosen]) >= 0


def test_the_atlas_is_served_and_nothing_else_is(survey: Path) -> None:
    said: list[str] = []
    serving = threading.Thread(target=serve_atlas, args=(survey, "127.0.0.1", 0, said.append), daemon=True)
    serving.start()
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    with urllib.request.urlopen(said[0]) as answer:
        assert b"Atlas of heads" in answer.read()
    with urllib.request.urlopen(said[0] + "data.js") as answer:
        assert answer.read().startswith(b"window.ATLAS")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(said[0] + "../survey.json")
