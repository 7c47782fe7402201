"""The pages that need no explorer, in a real browser: a worked example, an atlas and a census of heads."""

from __future__ import annotations

import pytest
import torch
from playwright.sync_api import Browser

from census.test_take import found  # noqa: F401
from sightline.census import Census
from sightline.census.page import page as census_page
from sightline.steps import explain
from sightline.surveying import parts
from sightline.surveying.atlas import write_atlas
from sightline.surveying.texts import Text
from surveying.test_atlas import row
from web.browser import Visit
from web.test_first_minutes import PHONE

WORDS = [f"word{i}" for i in range(12)]


@pytest.fixture(scope="module")
def pages(found: Census, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:  # noqa: F811
    folder = tmp_path_factory.mktemp("pages")
    torch.manual_seed(0)
    explain(3 * torch.randn(len(WORDS), 8), labels=WORDS).save_html(folder / "steps.html")
    (folder / "heads.html").write_text(census_page(found, "tiny"), encoding="utf-8")
    parts.begin(folder / "survey", {"model": "tiny", "links": 3, "generate": 0})
    text = Text("a text", "text")
    parts.write_part(folder / "survey", [text], [row(text, n // 4, n % 4, n / 16) for n in range(16)])
    made = {"steps": folder / "steps.html", "heads": folder / "heads.html", "atlas": write_atlas(folder / "survey")}
    return {name: path.as_uri() for name, path in made.items()}


@pytest.mark.parametrize("name", ["steps", "heads", "atlas"])
@pytest.mark.parametrize("width, theme", [(1024, "dark"), (390, "light"), (390, "dark")])
def test_every_page_is_read_by_everyone(
    browser: Browser, pages: dict[str, str], name: str, theme: str, width: int
) -> None:
    screen = PHONE if width == 390 else {"viewport": {"width": width, "height": 768}}
    visit = Visit(browser, pages[name], color_scheme=theme, **screen)
    visit.page.goto(pages[name])
    visit.page.wait_for_selector("table td")
    visit.accessible(f"{name} {theme} {width}")
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    if width == 390:
        low = visit.page.locator("select, input").evaluate_all(
            "all => all.map(one => one.offsetHeight).filter(h => h < 44)"
        )
        assert not low
    visit.requests = [url for url in visit.requests if url.startswith("http")]
    visit.close()
