"""Ask it why, in a real browser: one link in every head, paths, the wall, readings, edits, bookmarks, pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser

import sightline as sl
from sightline.explore.model_runs import RunRequest, watched
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.browser import SENTENCE, Live, Trained, Visit, trained

OPEN_IN_VIEW = """(() => {
    const [open, rail] = ['.head[aria-selected=true]', '.heads-grid'].map(
        (one) => document.querySelector(one)?.getBoundingClientRect());
    return open && rail && open.top >= rail.top - 1 && open.bottom <= rail.bottom + 1;
})()"""
TEXT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("runs")
    for name, text, model in (("a-kids", SENTENCE, "minilm"), ("b-mary", TEXT, "smollm2")):
        watched(*trained(model), RunRequest(text, model), folder / name, lambda **_: None)
    picture(folder / "c-picture")
    models = Trained(["smollm2"])
    service = Service(performer(models, lambda run: service.library.add(run)), models)
    assert service.library.shelve_folder(folder) == []
    server = Live(service)
    server.ids = [run["id"] for run in service.library.listed()]  # type: ignore[attr-defined]
    yield server
    server.close()


def picture(folder: Path) -> None:
    """A class token and 4 x 4 patches: patch 5 looks at patch 10 alone, all others at themselves."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(32, 1, batch_first=True).eval()
    with torch.no_grad():
        layer.in_proj_weight[:32] = layer.in_proj_weight[32:64] = 6 * torch.eye(32)
        layer.in_proj_bias.zero_()
    q = torch.eye(17, 32)[None]
    k = q.clone()
    q[0, 1 + 5] = k[0, 1 + 10]
    with torch.no_grad(), sl.watch(layer, keep_qk=True) as seen:
        layer(q, k, k)
    seen.meta["grid"] = [4, 4, 1]
    white = io.BytesIO()
    Image.new("RGB", (64, 64), (255, 255, 255)).save(white, "PNG")
    seen.save(folder, image=white.getvalue())


def address(live: Live, run: int, **state: object) -> str:
    return "#v=2&" + "&".join(f"{name}={value}" for name, value in {"run": live.ids[run], **state}.items())  # type: ignore[attr-defined]


def test_one_link_in_every_head_leads_there_and_so_does_a_path(browser: Browser, live: Live) -> None:
    visit = Visit(browser, live.base)
    page = visit.open(address(live, 0, L=3, H=1, q=10, k=2, rail="link"))
    sight = live.service.run(live.ids[0]).account["encoder.layers.5.attention"]  # type: ignore[attr-defined]
    cell = page.locator("#link-5-2")
    weight = float(sight.tile(slice(10, 11), slice(2, 3))[0, 2].item())
    assert cell.get_attribute("title") == f"layer 5 head 2: {weight:.3f}"
    assert page.locator(".link-cell").count() == 72
    visit.accessible("link")
    cell.click()
    visit.until("location.hash.includes('L=5&H=2')")
    page.click("#rail-tab-path")
    first = page.locator(".path li").first
    first.locator(".source").first.wait_for()
    assert first.inner_text().split() == [
        "5",
        "they",
        "H2",
        "kids",
        "0.716",
        "H5",
        "lions",
        "0.572",
        "H8",
        "kids",
        "0.501",
        "H11",
        "lions",
        "0.483",
    ]
    first.locator(".source").nth(1).click()
    visit.until("location.hash.includes('H=5') && location.hash.includes('k=7')")
    visit.until("document.querySelectorAll('.path li')[1].innerText.includes('lions')")
    visit.accessible("path")
    page.keyboard.press("b")
    page.keyboard.type("who they are")
    page.keyboard.press("Enter")
    visit.until("location.hash.includes('marks=5~5~10~7~')")
    visit.accessible("bookmarks", "dialog[open]")
    page.keyboard.press("Escape")
    visit.until("document.querySelector('dialog[open]') === null")
    told = "document.querySelector('.notice')?.textContent.includes('link ') ?? false"
    page.keyboard.press("n")
    visit.until(told, 20)
    visit.until("!location.hash.includes('q=10&k=7&')")
    page.reload()
    visit.until("document.querySelector('.marks-button')?.textContent === '☆ 1'")
    visit.close()


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_the_wall_holds_all_heads_and_finds_some(browser: Browser, live: Live, width: int, theme: str) -> None:
    visit = Visit(browser, live.base, viewport={"width": width, "height": 900}, color_scheme=theme)
    page = visit.open(address(live, 1, L=23, H=3, view="wall"))
    if width < 900:
        page.click("[data-panel=more]")
    page.locator(".wall-head").nth(269).wait_for()
    assert page.locator(".wall-count").inner_text() == "270 of 270 heads"
    page.locator("[aria-label='at least']").fill("0.9")
    visit.until("document.querySelector('.wall-count').textContent.startsWith('270') === false")
    inside = page.locator(".wall-head:not(.out)").count()
    assert page.locator(".wall-count").inner_text().startswith(f"{inside} of 270")
    visit.accessible("wall")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width > 900:
        page.locator("#wall-3-1").click(modifiers=["Control"])
        page.locator("#wall-4-2").click(modifiers=["Control"])
        page.click("text=Compare 2")
        visit.until("location.hash.includes('view=compare') && location.hash.includes(',4,2')")
    visit.close()


def test_what_mattered_for_mary_and_what_is_left_without_that_head(browser: Browser, live: Live) -> None:
    visit = Visit(browser, live.base)
    page = visit.open(address(live, 1, L=23, H=3, q=13, k=9))
    page.locator(".why-bar button", has_text="for the next token").click()
    page.fill("#target-token", "Mary")
    page.fill("#target-than", "John")
    visit.accessible("target", "dialog[open]")
    page.click("dialog[open] [type=submit]")
    visit.until("document.querySelector('.reading-about').textContent === '= 6.12'", 300)
    visit.settle()
    visit.until("document.querySelector('.sentence .weight').textContent === '2.785'")
    visit.until(OPEN_IN_VIEW)  # the reading ranks the heads anew
    page.click("[data-order=influence]")
    page.click("#rail-tab-path")
    page.locator(".path li").first.wait_for()
    assert "at least 30 % of the largest from that token" in page.locator(".path-view .summary").inner_text()
    page.click("#rail-tab-heads")
    assert "L23 H3" in [one.inner_text().split("\n")[0] for one in page.locator(".head .caption").all()[:3]]
    visit.accessible("mattered")
    aim = "mattered for “Mary” instead of “John”"
    for format, has in (("CSV", "query,key,query_token,key_token,influence\n"), ("SVG", f"layer 23 head 3, {aim}:")):
        page.keyboard.press("e")
        if format == "CSV":
            assert f"exact numbers, {aim}" in page.locator("dialog[open] li", has_text="CSV").inner_text()
        with page.expect_download() as caught:
            page.click(f"dialog[open] button:text-is('{format}')")
        assert has in caught.value.path().read_text(encoding="utf-8")
        page.keyboard.press("Escape")
    page.keyboard.press("c")
    visit.accessible("cut", "dialog[open]")
    page.locator("[data-where=head] button", has_text="ablate it").click()
    visit.until("!document.querySelector('.outcome').hidden", 300)
    told = page.locator(".outcome").inner_text()
    assert told.startswith(
        "without layer 23 head 3: Mary 0.923 → 0.873, John 0.002 → 0.040; difference of their logits"
    )
    assert told.endswith("6.12 → 3.08")
    assert "edits=ablate:23.3" in page.url
    visit.until("document.querySelectorAll('.compare-side').length === 2", 300)
    page.locator(".edit-chip input").click()
    visit.until("location.hash.includes('edits=!ablate:23.3') && location.hash.includes('view=map')")
    visit.close()


def test_a_patch_shows_on_the_picture_what_it_looks_at(browser: Browser, live: Live) -> None:
    visit = Visit(browser, live.base)
    page = visit.open(address(live, 2, L=0, H=0))
    frame = page.locator(".image-frame")
    visit.until("document.querySelector('.image-frame img').naturalWidth > 0")
    box = frame.bounding_box()
    assert box is not None
    side = box["width"] / 4
    page.mouse.click(box["x"] + 1.5 * side, box["y"] + 1.5 * side)  # patch 5
    visit.until("location.hash.includes('q=6')")
    page.mouse.move(5, 5)
    visit.rest()
    drawn = np.asarray(Image.open(io.BytesIO(frame.screenshot())).convert("L")).astype(int)
    n = drawn.shape[0] // 4
    means = np.array(
        [[drawn[n * i + 8 : n * (i + 1) - 8, n * j + 8 : n * (j + 1) - 8].mean() for j in range(4)] for i in range(4)]
    )
    others = np.delete(means.ravel(), 10)
    assert means[2, 2] < others.min() - 60
    assert np.ptp(others) < 12
    visit.accessible("picture")
    visit.close()
