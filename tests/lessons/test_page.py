"""The page of a lesson: what is put on it is shown in the terminal and on a page that stands alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import sightline.lessons as lessons
from sightline.errors import InputError
from sightline.lessons import LESSONS, Page, find, run, sources
from sightline.steps import explain
from sightline.steps.terminal import make_console


def fill(page: Page) -> None:
    from sightline import plots

    page.heading("A heading")
    page.text("First `code` and **strong**,\n        folded.", "Second [not markup] <b>.")
    page.code("z = a @ v")
    page.table(["word", "number", "vector"], [["a", 0.12345, torch.tensor([1.0, -2.0])], ["b", 7, torch.tensor(0.5)]])
    page.heat(torch.tensor([[0.5, 0.25]]), ["row"], ["x", "y"], hidden=torch.tensor([[False, True]]), caption="`map`")
    page.heat(torch.rand(30, 30), [str(i) for i in range(30)], caption="large")
    page.steps(explain(torch.eye(2), torch.eye(2), torch.eye(2), labels="left right").table("left"), digits=4)
    page.picture(lambda: plots.map([[1.0, 0.0], [0.5, 0.5]]), "what it shows")
    page.agree("One and one", torch.ones(2), torch.ones(2))
    page.agree("Nearly", torch.ones(2), torch.ones(2) + 2**-23, at_most=1e-6)


@pytest.fixture(scope="module")
def page() -> str:
    page = Page("A title", ("S0.1",))
    fill(page)
    return page.to_html()


def test_the_terminal_shows_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    fill(Page("A title", ("S0.1",), make_console()))
    out = capsys.readouterr().out
    for text in (
        *("A title", "Sources: a workshop, from averages to attention (S0.1)", "A heading"),
        *("First code and strong, folded.", "[not markup] <b>."),
        *("    z = a @ v", "0.123", "1.000 -2.000", "0.500", "a map of 30 x 30", "0.6698", "picture, drawn by --html"),
        "One and one: the same numbers to the last bit.",
        "Nearly: the same numbers, largest difference 1.2e-07.",
    ):
        assert text in out, text
    assert "0.250" not in out  # hidden


def test_the_page_has_all_of_it(page: str) -> None:
    for text in ("<h1>A title</h1>", "<h2>A heading</h2>", "<code>code</code>", "<strong>strong</strong>", "0.6698"):
        assert text in page
    assert "&lt;b&gt;" in page
    assert page.count("data:image/png;base64,") >= 2
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert "<script" not in page
    assert 'alt="what it shows"' in page


def test_vectors_below_each_other_have_columns(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    two = [["a", torch.tensor([1.0, -22.0])], ["b", torch.tensor([-1.0, 2.0])]]
    Page("A title", (), make_console()).table(["word", "vector"], two, digits=1)
    assert re.findall("[ab] +(-?1.0 .*2.0)", capsys.readouterr().out) == ["1.0 -22.0", "-1.0   2.0"]
    assert '<span class="numbers all">1.000 -2.000</span>' in page


def test_results_that_do_not_agree_stop_the_lesson() -> None:
    with pytest.raises(InputError, match="Left and right do not agree"):
        Page("A title").agree("Left and right", torch.ones(2), torch.zeros(2))
    with pytest.raises(InputError, match="do not agree"):
        Page("A title").agree("Left and right", torch.tensor([torch.nan]), torch.zeros(1))


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    Page("A title").save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_an_unknown_lesson_names_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        find("avarage")
    assert str(error.value).endswith("try: average")


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_says_what_it_shows(name: str) -> None:
    lesson = find(name)
    assert lesson.title
    assert all(re.fullmatch(r"S\d\.\d", source) for source in lesson.sources)
    assert set(sources.DOCUMENTS) >= {source[:2] for source in lesson.sources}


def test_every_file_here_is_in_the_list() -> None:
    folder = Path(lessons.__file__).parent
    titled = [path for path in folder.glob("*.py") if re.search("^TITLE = ", path.read_text("utf-8"), re.MULTILINE)]
    assert {path.stem.replace("_", "-") for path in titled} == set(LESSONS)


def test_run_gives_a_lesson_on_a_page() -> None:
    assert run(LESSONS[0]).blocks
