"""A report in a real browser: what it says is true, what it lacks it says, and no key is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page

from explore_cases import exact, make_run, sights, words
from sightline.explore.report import report
from sightline.explore.run import Run
from web.browser import Visit

Show = Callable[[Run, str], Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    opened = Visit(browser, "file://")
    yield opened
    opened.close()


@pytest.fixture
def show(visit: Visit, tmp_path: Path) -> Show:
    def one(run: Run, address: str) -> Page:
        (tmp_path / "report.html").write_bytes(report(run))
        visit.page.goto(f"file://{tmp_path}/report.html#v=1&run={run.id}&{address}")
        visit.page.wait_for_selector(".app:not(.empty) .report-note")
        visit.settle()
        return visit.page

    return one


def rounded(weight: float) -> str:
    return f"{weight:.3f}"


def strong(tokens: int, heads: int = 3) -> tuple[Run, int, int, float]:
    """A run, and the cell of its first head whose weight a byte would show worst: 0.977 as 1."""
    run = make_run(sights(tokens, heads=heads), words(tokens))
    weights = exact(run, 0, 0)
    near = torch.where(torch.ones_like(weights).tril() > 0, (weights - 0.977).abs(), torch.inf)
    query, key = divmod(int(near.argmin()), tokens)
    return run, query, key, float(weights[query, key])


def test_a_small_report_has_exact_weights(visit: Visit, show: Show) -> None:
    run, query, key, weight = strong(25)
    page = show(run, f"L=0&H=0&q={query}&k={key}")
    page.wait_for_selector(f".sentence .weight >> text={rounded(weight)}")
    page.mouse.move(*visit.cell(query, key))
    page.wait_for_selector(f".tooltip .weight >> text={rounded(weight)}")
    assert "about" not in page.locator(".tooltip").inner_text()
    page.mouse.move(2, 2)
    page.wait_for_selector(f".top-keys .number >> text={rounded(weight)}")
    assert "exact" in page.locator(".report-note").inner_text()
    page.keyboard.press("4")
    page.wait_for_selector(".links-lines path", state="attached")
    lines = sum(int((row.topk(8).values >= 0.02).sum()) for row in exact(run, 0, 0))
    assert page.locator(".links-lines path").count() == lines


def test_what_a_report_lacks_is_no_error_and_not_a_matter_of_keep_qk(visit: Visit, show: Show) -> None:
    page = show(make_run(sights(25), words(25)), "L=0&H=0&q=9&k=3")
    for key, what in (("r", "rollout"), ("s", "steps"), ("5", "steps"), ("R", "rollout")):
        page.keyboard.press(key)
        page.wait_for_selector(f".notice >> text=a report has no {what}")
        visit.rest()
        assert page.locator(".problem:visible").count() == 0
        assert "view=map" in page.url
        assert "shade" not in page.url
    page.wait_for_selector(".about >> text=looks at")
    visit.accessible("a report", "html")
    page.goto(page.url.split("#")[0] + "#v=1&L=0&H=0&q=9&view=steps&shade=rollout")
    page.reload()
    page.wait_for_selector(".app:not(.empty) .report-note")
    page.wait_for_selector(".about:not(.problem) >> text=looks at")
    assert "keep_qk" not in page.locator("body").inner_text()
    assert page.locator(".centre-map .surface").is_visible()


def test_a_larger_report_is_exact_where_weights_are_large(visit: Visit, show: Show) -> None:
    run, query, key, weight = strong(401)
    page = show(run, f"L=0&H=0&q={query}&k={key}")
    page.wait_for_selector(f".sentence .weight >> text={rounded(weight)}")
    assert "about" not in page.locator(".sentence .weight").inner_text()
    row = exact(run, 0, 0)[400]
    weak = int(row.argsort(descending=True)[30])
    page = show(run, f"L=0&H=0&q=400&k={weak}")
    page.wait_for_selector(".sentence .weight >> text=about")
    said = page.locator(".sentence .weight").inner_text().removeprefix("about ").replace("−", "-")
    assert float(said) == pytest.approx(float(row[weak]), rel=0.09)


def test_a_long_report_says_no_number_it_does_not_hold(visit: Visit, show: Show) -> None:
    run, query, key, weight = strong(701, heads=1)
    page = show(run, f"L=0&H=0&q={query}&k={key}")
    page.wait_for_selector(f".sentence .weight >> text={rounded(weight)}")
    weak = int(exact(run, 0, 0)[700].argsort(descending=True)[30])
    page = show(run, f"L=0&H=0&q=700&k={weak}&view=links")
    page.wait_for_selector(".links-about >> text=This report does not hold the links")
    visit.rest()
    assert page.locator(".sentence .weight").inner_text() == ""
    assert "keep_qk" not in page.locator("body").inner_text()
