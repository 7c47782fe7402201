"""What people see: text, pages, data and copied Python say the numbers of the tables."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import struct
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.errors import MissingExtraError
from sightline.steps import Steps, explain, explain_words
from sightline.steps.html import heat, rich_text, write
from sightline.steps.labels import find, shown
from sightline.steps.numbers import number, weight
from sightline.steps.terminal import Fitted, Heat, make_console


@pytest.fixture
def steps() -> Steps:
    q, k, v = torch.randn(3, 2, 3, 64, dtype=torch.float64)
    return explain(q, k, v, mask=sl.causal(), labels="Action gets results", head=1)


class Page(HTMLParser):
    """Well-formed, and nothing in it is fetched from anywhere."""

    void = ("meta", "img", "br", "input", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def test_the_terminal_shows_every_number(steps: Steps) -> None:
    table = steps.table("results")
    text = str(table)
    for line in table.lines:
        row = next(r for r in text.splitlines() if r.strip().startswith(line.label))
        for name in ("score", "scaled_score", "masked_score"):
            assert number(line.cells[name]) in row
        assert weight(line.cells["weight"]) in row
    assert "/ 8" in text
    assert "1.000" in text


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60])
def test_tables_fit_the_terminal(steps: Steps, width: int) -> None:
    console = make_console(width=width, record=True, file=io.StringIO())
    console.print(Fitted(steps.table(0)))
    text = console.export_text()
    assert all(len(row.rstrip()) <= width for row in text.splitlines())
    assert "…" not in text
    if width >= 80:  # all columns of the worked table, with fewer numbers of each vector
        assert all(symbol in text for symbol in ("q_i", "k_j", "v_j", "q_i.k_j", "/ 8", "x_ij", "z_i"))
        assert "No room" not in text
    else:
        assert "No room here for: q vector, k vector, v vector, weighted v." in text


@pytest.mark.parametrize("width", [120, 80, 40, 20])
def test_maps_in_a_narrow_terminal_keep_their_numbers_whole(width: int) -> None:
    words = ["I", "am", "not", "interested", "in", "this", "workshop", "now"]
    matrix = torch.arange(1, 65).view(8, 8) / 1000
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    console = make_console(width=width, record=True, file=io.StringIO())
    console.print(Heat(matrix, words, words, hidden=hidden))
    text = console.export_text()
    assert all(len(row.rstrip()) <= width for row in text.splitlines())
    found = sorted(word for word in text.split() if word.startswith("0.0"))
    assert found == sorted(f"{x:.3f}" for x in matrix[~hidden].tolist())
    assert text.count("·") == 28
    assert ("█" in text) == (width == 120)


def test_print_says_everything(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    steps.print()
    out = capsys.readouterr().out
    assert [word in out for word in ("Query: Action", "Query: gets", "Query: results")] == [True] * 3
    assert "differ by at most" in out


def test_the_page_stands_alone(steps: Steps) -> None:
    text = steps.to_html()
    page = Page(text)
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text
    for line in steps.table("results").lines:
        assert weight(line.cells["weight"]) in page.text
        assert number(line.cells["score"]) in page.text
    assert "Query: results" in page.text


def test_words_are_text_and_never_markup() -> None:
    hostile = ["<script>alert(1)</script>", '"><img src=x>', "\x1b[31m[bold]", "a\u202eb"]
    steps = explain(*torch.randn(3, 4, 8), labels=hostile)
    page = Page(steps.to_html())
    assert all(source.startswith(("data:", "#query-")) for source in page.sources)
    assert "<script>" not in steps.to_html()
    assert "\x1b" not in str(steps.table(0))
    assert "[bold]" in str(steps.table(0))
    assert "\u202e" not in steps.to_html()


def test_titles_and_notes_are_text_too(capsys: pytest.CaptureFixture[str]) -> None:
    steps = explain_words("<b> \x1b[31m [bold]")
    steps.notes = (*steps.notes, "a note \x1b[31m\u202e <i>")
    steps.print()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]" in out
    page = steps.to_html()
    assert "&lt;i&gt;" in page
    assert "\u202e" not in page


def pixels(source: str) -> torch.Tensor:
    """A PNG of ours, read without our code: RGBA, no filter."""
    data = base64.b64decode(source.partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", data[start - 8 : start - 4])
    rows = zlib.decompress(data[start : start + length])
    return torch.tensor(list(rows)).view(height, 1 + 4 * width)[:, 1:].view(height, width, 4)


def test_vectors_are_drawn_in_their_colours() -> None:
    from sightline.steps.html import vector

    x = torch.tensor([2.0, -1.0, 0.0, 1.0])
    image = pixels(re.search('src="([^"]+)"', vector(x, 2.0)).group(1))[0, :4]
    assert image[:, 3].tolist() == [255, 128, 0, 128]
    assert image[0, 0] > image[0, 2]  # orange above zero
    assert image[1, 2] > image[1, 0]  # blue below


def test_a_map_shows_hidden_cells_and_large_ones_become_pictures() -> None:
    small = heat(torch.tensor([[0.25, 0.75]]), ["a"], ["b", "c"], hidden=torch.tensor([[False, True]]))
    assert "0.250" in small
    assert "0.750" not in small
    assert 'class="hidden"' in small
    large = heat(torch.rand(30, 30), [str(i) for i in range(30)], [str(i) for i in range(30)])
    assert pixels(re.search('src="([^"]+)"', large).group(1)).shape == (30, 30, 4)


def test_a_page_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    write(target, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(OSError, match="No such file"):
        write(tmp_path / "missing" / "page.html", "new")


@pytest.mark.parametrize("normalizer", ["softmax", "relu", "sigmoid", "uniform"])
@pytest.mark.parametrize("key", [0, 2])
def test_copied_python_gives_the_cell(normalizer: str, key: int) -> None:
    q, k, v = torch.randn(3, 2, 3, 8, dtype=torch.float64)
    options = {"softcap": 2.0, "bias": torch.randn(2, 3, 3, dtype=torch.float64), "mask": sl.causal(), "scale": 0.3}
    steps = explain(q, k, v, normalizer=normalizer, labels="a b c", **options)
    for query in range(3):
        there: dict[str, float] = {}
        exec(steps.to_python(query, key, head=1), there)
        assert there["weight"] == pytest.approx(steps["weight"][1, query, key].item(), abs=1e-12)
        assert there["weighted_value"] == pytest.approx(steps["weighted_value"][1, query, key].tolist(), abs=1e-12)


def test_data_goes_out_as_numbers(steps: Steps) -> None:
    table = steps.table("gets")
    data = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert data["label"] == "gets"
    assert data["lines"][2]["hidden"]
    assert data["lines"][2]["masked_score"] is None
    assert data["lines"][0]["weight"] == table.lines[0].cells["weight"]
    frame = table.to_pandas()
    assert frame["word"].tolist() == ["Action", "gets", "results"]
    assert frame["weight"].sum() == pytest.approx(1)
    whole = steps.to_pandas()
    assert len(whole) == 9
    assert whole.query("query == 1 and key == 0")["weight"].item() == pytest.approx(steps["weight"][1, 1, 0].item())
    assert set(steps.to_dict()) == set(steps.names)


def test_without_pandas_the_error_says_so(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        steps.to_pandas()


def test_without_rich_the_error_names_the_extra(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingExtraError, match=re.escape("sightline[cli]")):
        steps.print()


def test_notebooks_show_tables(steps: Steps) -> None:
    Page(steps._repr_html_())
    Page(steps.table(0)._repr_html_())


def test_queries_are_found_by_word_and_by_position() -> None:
    labels = ["[CLS]", "the", "kid", "##s", "Ġthe", "they"]
    assert find(labels, "they") == [5]
    assert find(labels, "The") == [1, 4]
    assert find(labels, "s") == [3]
    assert find(labels, -1) == [5]
    steps = explain(*torch.randn(3, 6, 4), labels=labels)
    with pytest.raises(ValueError, match="stands more than once"):
        steps.table("The")
    with pytest.raises(ValueError, match="no token is this query"):
        steps.table("lions")
    with pytest.raises(TypeError, match="a word or a position"):
        steps.table(1.5)
    assert [t.query for t in steps.tables(["The", 0])] == [1, 4, 0]


def test_labels_are_safe_to_show() -> None:
    assert shown("\x00\ud800") == "\\x00\\ud800"
    assert rich_text("**a** `b<`") == "<strong>a</strong> <code>b&lt;</code>"
    assert number(math.nan) == "nan"
