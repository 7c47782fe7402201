"""What a lesson is written on: headings, text, numbers, tables and pictures, shown in the terminal or as a page.

A lesson is a module with a `TITLE`, its `SOURCES`, and a function `lesson(page)` that puts one thing after the other
on the page. With a console each is shown at once; without, they are collected for `page.to_html()`.
"""

from __future__ import annotations

import base64
import io
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from sightline.errors import InputError
from sightline.lessons.sources import in_words
from sightline.plots.canvas import style
from sightline.steps import Table, html
from sightline.steps import numbers as format_of
from sightline.steps.labels import shown
from sightline.steps.show import query_table
from sightline.steps.terminal import Heat as TerminalHeat
from sightline.steps.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


# A picture that is wider, in letters, has small letters of its own: a phone shows a part of it, which can be pushed.
WIDEST = 44


class Block(Protocol):
    """One thing on a page."""

    def html(self) -> str: ...

    def show(self, console: Console) -> None: ...


class Page:
    """Collects what a lesson says, or shows it at once.

    >>> page = Page("Averages", ("S0.1",))
    >>> page.text("Every word becomes the **mean** of itself and its past, `tril(1) / n`.")
    >>> page.table(["word", "context"], [["I", "I"], ["am", "I am"]])
    >>> page.keep("mean", 0.5)
    >>> page.results["mean"], "<strong>mean</strong>" in page.to_html()
    (0.5, True)
    """

    def __init__(self, title: str, sources: Sequence[str] = (), console: Console | None = None) -> None:
        self.title, self.sources, self.console = title, tuple(sources), console
        self.blocks: list[Block] = []
        self.results: dict[str, Any] = {}
        if console is not None:
            console.print(_rich(title), style="bold underline")
            if sources:
                console.print(f"Sources: {in_words(sources)}", style="dim", highlight=False)

    def heading(self, text: str) -> None:
        """A heading inside the lesson."""
        self._add(Heading(text))

    def text(self, *paragraphs: str) -> None:
        """Paragraphs; `code` and **strong** words are marked as here. Line breaks and indents inside do not matter."""
        for paragraph in paragraphs:
            self._add(Paragraph(" ".join(textwrap.dedent(paragraph).split())))

    def code(self, text: str) -> None:
        """Lines of code, formulas or output, as they are."""
        self._add(Code(textwrap.dedent(text).strip("\n")))

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[Any]], *, digits: int = 3, caption: str = ""
    ) -> None:
        """A table of words, numbers (with `digits` decimals) and short vectors."""
        cells = [[_cell(x, digits) for x in row] for row in rows]
        places = [i for i in range(len(headings)) if any(isinstance(row[i], Tensor) and row[i].dim() for row in rows)]
        for i in places:
            vectors = [row[i] if isinstance(row[i], Tensor) and row[i].dim() else None for row in rows]
            longest = max(len(x) for x in vectors if x is not None)
            lined_up = format_of.vectors(vectors, longest, digits)
            for row, text in zip(cells, lined_up, strict=True):
                row[i] = text or row[i]
        self._add(Grid(list(headings), cells, caption, frozenset(places)))

    def heat(
        self,
        matrix: Tensor,
        rows: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        caption: str = "",
        hidden: Tensor | None = None,
        digits: int | None = None,
        largest: float | None = None,
    ) -> None:
        """A matrix as shaded numbers, such as a map: a row for each query. `hidden` cells are left out."""
        self._add(Heat(matrix, list(rows), list(columns or rows), caption, hidden, digits, largest))

    def steps(self, table: Table, *, digits: int | None = None) -> None:
        """The table of one query, made by `sl.steps`."""
        self._add(Worked(table, digits))

    def picture(self, draw: Callable[[], Figure], about: str, *, width: int = 40) -> None:
        """A picture of `sightline.plots`: `draw` is called only where it can be shown. `about` says what is on it.

        `width` is in letters of the text; a narrower page shows it smaller.
        """
        self._add(Picture(draw, about, width))

    def keep(self, name: str, value: Any) -> None:
        """Remember a result by its name, in `page.results`."""
        self.results[name] = value

    def agree(self, what: str, one: Tensor, other: Tensor, at_most: float = 1e-12) -> None:
        """State that two results are the same, with their largest difference; a lesson that is wrong stops here."""
        difference = (one - other).abs().max().item() if one.numel() else 0.0
        if not difference <= at_most:
            raise InputError(
                f"{what} do not agree", expected=f"at most {at_most:g}", got=f"{difference:.3g}", hint="the lesson"
            )
        same = "the same numbers to the last bit" if difference == 0 else "the same numbers, largest difference"
        self._add(Paragraph(f"{what}: {same}{f' {difference:.1e}' if difference else ''}."))

    def to_html(self) -> str:
        """The page as one file that needs nothing else."""
        about = f'<p class="check">Sources: {in_words(self.sources)}</p>' if self.sources else ""
        return html.page(self.title, "\n".join([about, *(block.html() for block in self.blocks)]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page; the file appears whole or not at all."""
        html.write(path, self.to_html())

    def _add(self, block: Block) -> None:
        self.blocks.append(block)
        if self.console is not None:
            block.show(self.console)


@dataclass(frozen=True)
class Heading:
    text: str

    def html(self) -> str:
        return f"<h2>{html.rich_text(self.text)}</h2>"

    def show(self, console: Console) -> None:
        console.print()
        console.print(_rich(self.text), style="bold")


@dataclass(frozen=True)
class Paragraph:
    text: str

    def html(self) -> str:
        return f"<p>{html.rich_text(self.text)}</p>"

    def show(self, console: Console) -> None:
        console.print()
        console.print(_rich(self.text), width=min(console.width, 100))


@dataclass(frozen=True)
class Code:
    text: str

    def html(self) -> str:
        return html.code(self.text)

    def show(self, console: Console) -> None:
        from rich.text import Text

        console.print()
        console.print(Text(textwrap.indent(self.text, "    ")), soft_wrap=True)


@dataclass(frozen=True)
class Grid:
    headings: list[str]
    rows: list[list[str]]
    caption: str
    vectors: frozenset[int] = frozenset()  # columns of numbers that stand below each other

    def html(self) -> str:
        rows = [[html.rich_text(shown(cell)) for cell in row] for row in self.rows]
        for row in rows:
            for i in self.vectors:
                row[i] = f'<span class="numbers all">{row[i]}</span>'
        headings = [html.rich_text(heading) for heading in self.headings]
        text = [i for i in range(len(headings)) if not self._numbers(i)]
        return html.table(headings, rows, caption=self.caption, cards=False, text=text)

    def show(self, console: Console) -> None:
        from rich import box
        from rich.table import Table as RichTable

        made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, heading in enumerate(self.headings):
            made.add_column(_rich(heading), justify="right" if i and self._numbers(i) else "left")
        for row in self.rows:
            made.add_row(*(_rich(shown(cell)) for cell in row))
        console.print()
        console.print(made)
        if self.caption:
            console.print(_rich(self.caption), style="dim")

    def _numbers(self, column: int) -> bool:
        return all(row[column].rstrip("%")[-1:].isdigit() for row in self.rows if row[column])


@dataclass(frozen=True)
class Heat:
    matrix: Tensor
    rows: list[str]
    columns: list[str]
    caption: str
    hidden: Tensor | None
    digits: int | None
    largest: float | None

    def html(self) -> str:
        return html.heat(self.matrix, self.rows, self.columns, caption=self.caption, **self._how())

    def show(self, console: Console) -> None:
        console.print()
        if self.matrix.shape[0] > 40 or self.matrix.shape[1] > 16:
            console.print(f"[a map of {self.matrix.shape[0]} x {self.matrix.shape[1]}: --html shows it]", markup=False)
        else:
            console.print(TerminalHeat(self.matrix, self.rows, self.columns, **self._how()))
        if self.caption:
            console.print(_rich(self.caption), style="dim")

    def _how(self) -> Mapping[str, Any]:
        return {"hidden": self.hidden, "digits": self.digits, "largest": self.largest}


@dataclass(frozen=True)
class Worked:
    table: Table
    digits: int | None

    def html(self) -> str:
        return f"<h3>Query: {html.label(self.table.label)}</h3>{query_table(self.table, self.digits)}"

    def show(self, console: Console) -> None:
        console.print()
        print_table(console, self.table, self.digits)


@dataclass(frozen=True)
class Picture:
    draw: Callable[[], Figure]
    about: str
    width: int

    def html(self) -> str:
        out = io.BytesIO()
        with style():
            self.draw().savefig(out, format="png", dpi=160, metadata={"Software": None}, bbox_inches="tight")
        data = base64.b64encode(out.getvalue()).decode()
        about = html.escape(self.about)
        size = f"width:min(100%,{self.width}rem)"
        image = f'<img src="data:image/png;base64,{data}" alt="{about}" style="{size}">'
        if self.width > WIDEST:
            image = f'<div class="wide large">{image}</div>'
        return f"<figure>{image}<figcaption>{html.rich_text(self.about)}</figcaption></figure>"

    def show(self, console: Console) -> None:
        console.print()
        console.print(f"[picture, drawn by --html: {self.about}]", markup=False, style="dim")


def _cell(x: Any, digits: int) -> str:
    if isinstance(x, Tensor):
        x = x.item() if x.dim() == 0 else x
    return format_of.weight(x, digits) if isinstance(x, float) else str(x)


def _rich(text: str) -> Any:
    """A sentence with `code` and **strong** words, for rich; nothing else in it is markup."""
    from rich.text import Text

    made = Text()
    for i, part in enumerate(text.split("`")):
        for j, piece in enumerate([part] if i % 2 else part.split("**")):
            made.append(piece, style="cyan" if i % 2 else "bold" if j % 2 else "")
    return made
