"""Tables in the terminal, with rich: as many numbers of each vector as there is room for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sightline.errors import MissingExtraError
from sightline.steps.labels import shown
from sightline.steps.numbers import enough, number, vector, vectors, weight

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from sightline.steps.compute import Column
    from sightline.steps.steps import Steps
    from sightline.steps.table import Line, Table

# Where the output is no terminal there is no width to keep to.
WIDE = 120
_LONGEST = 20
# A larger map has no room in a terminal.
_MAP = 16
_SHADES = " ░▒▓█"


def make_console(**options: Any) -> Console:
    """A console as wide as the terminal, or WIDE where there is none."""
    try:
        from rich.console import Console
    except ImportError:
        raise MissingExtraError(
            "tables in the terminal need rich",
            expected="rich",
            got="not installed",
            hint="pip install 'sightline[cli]'",
        ) from None
    console = Console(highlight=False, **options)
    return console if console.is_terminal else Console(highlight=False, **{"width": WIDE, **options})


class Fitted:
    """A table that shows three numbers of its vectors, or as many as fit; what has no room at all is named below."""

    def __init__(self, table: Table, digits: int | None = None) -> None:
        self.table, self.digits = table, digits

    def __rich_console__(self, console: Any, options: Any) -> Any:
        columns = self.table.columns
        one = [c for c in columns if c.name != "q"]  # the query is the same in every line
        none = [c for c in columns if c.kind != "vector" or c.name == "sum"]
        tries = [(columns, 3, 0), (columns, 3, 1), (columns, 2, 1), (columns, 2, 2), (columns, 1, 2), (one, 1, 2)]
        for shown_columns, count, shorter in (*tries, (none, 3, 2)):
            made = rich_table(self.table, count, self.digits, shorter, shown_columns)
            if _fits(made, console, options):
                break
        yield made
        left = [c.heading for c in columns if c not in shown_columns]
        if left:
            yield _text(f"No room here for: {', '.join(left)}.")


def _fits(made: Any, console: Any, options: Any) -> bool:
    from rich.measure import Measurement

    return Measurement.get(console, options.update(width=10_000), made).maximum <= options.max_width


def rich_table(
    table: Table,
    count: int = 3,
    digits: int | None = None,
    shorter: int = 0,
    columns: Sequence[Column] | None = None,
) -> RichTable:
    """The table of one query; `count` numbers of each vector, all numbers with `digits` decimals if given.

    `shorter` saves room: with 1 one decimal for q, k and v where that is enough, with 2 shorter headings too.
    """
    from rich import box
    from rich.table import Table as RichTable

    made = RichTable(box=box.SIMPLE_HEAD, show_footer=True, padding=(0, 1), collapse_padding=True, pad_edge=False)
    made.add_column("word\nj", footer="sum", no_wrap=True)
    cells = []
    for column in table.columns if columns is None else columns:
        *lines, foot = _texts(table, column, count, digits, shorter > 0)
        cells.append(lines)
        justify = "left" if column.kind == "text" else "right"
        heading = f"{column.heading}\n{column.symbol}"
        if shorter > 1:
            heading = heading.replace(" vector\n", "\n").replace(" * ", "*")
        made.add_column(heading, justify=justify, no_wrap=True, footer=foot)  # type: ignore[arg-type]
    for line, *texts in zip(table.lines, *cells, strict=True):
        made.add_row(_text(_short(table.name(line))), *texts, style="dim" if line.hidden else None)
    return made


def _texts(table: Table, column: Column, count: int, digits: int | None, short: bool) -> list[Any]:
    """The cells of one column, and its foot."""
    foot = table.sum if column.name == "sum" and table.sum.numel() else None
    values = [_value(table, line, column) for line in table.lines]
    if column.kind == "text":
        return [*(_text(shown(str(x)) if x else "") for x in values), ""]
    if column.kind == "vector":
        found = [x for x in (*values, foot) if x is not None]
        if short and digits is None and column.name in "qkv" and any(bool((x.abs() >= 1).any()) for x in found):
            digits = 1
        return vectors([*values, foot], count, enough(found, digits))
    if column.kind == "weight":
        return [*(_shaded(x, digits) for x in values), weight(table.total, digits)]
    return ["" if x is None else number(x, digits) for x in (*values, foot)]


def _value(table: Table, line: Line, column: Column) -> Any:
    return table.q if column.name == "q" and line.key is not None else line.cells.get(column.name)


def _shaded(x: float, digits: int | None) -> Any:
    from rich.text import Text

    return Text(weight(x, digits), style="bold" if x >= 0.5 else "" if x >= 0.1 else "dim")


def _text(label: str) -> Any:
    """Text that rich takes as it is: a bracket in a word is no markup."""
    from rich.text import Text

    return Text(label)


def print_table(console: Console, table: Table, digits: int | None = None) -> None:
    """One query's table, with its heading and the check below."""
    console.print(_text(f"Query: {shown(table.label)}"), style="bold")
    console.print(Fitted(table, digits))
    if table.sum.numel():
        console.print(f"The sum and the library's output differ by at most {table.difference:.1e}.\n", style="dim")


def print_steps(steps: Steps, tables: list[Table], console: Console | None = None) -> None:
    """Title, notes, the tables, and the projection of all heads at the end."""
    console = console or make_console()
    console.print(_text(shown(steps.title)), style="bold underline")
    for note in steps.notes:
        console.print(_text(shown(note)))
    dim, value_dim = steps.done.q.shape[-1], steps.done.v.shape[-1]
    if max(dim, value_dim) > 3:
        console.print(f"q and k have {dim} numbers, v has {value_dim}; the first of them are shown.")
    console.print()
    for table in tables:
        print_table(console, table)
    queries, keys = len(steps.labels), len(steps.key_labels)
    if len(tables) == queries <= _MAP and keys <= _MAP:
        rows, head = slice(0, queries), tables[0].head
        console.print("Who looks at whom: a row is a query, a column a key.", style="bold")
        hidden = ~steps.done.visible(rows)[head]
        console.print(Heat(steps.done.band(rows)["weight"][head], steps.labels, steps.key_labels, hidden=hidden))
    if "projection" in steps.after:
        z, final = steps.after["concatenation"], steps.after["projection"]
        console.print(
            f"{steps.heads} heads side by side: {z.shape[1]} numbers for each word; times W_o: {final.shape[1]}."
        )
        for table in tables:
            console.print(_text(f"  {shown(table.label)}: {_start(final[table.query])}"))


def _start(x: Tensor, count: int = 6) -> str:
    return vector(x, count) + (f" ({len(x)} numbers)" if len(x) > count else "")


class Heat:
    """A matrix as numbers, each with a block that is the fuller the larger the number.

    Where the terminal is narrow, first the blocks go, then long words are cut, then the columns come in parts: a number
    is always whole.
    """

    def __init__(
        self,
        matrix: Tensor,
        rows: Sequence[str],
        columns: Sequence[str],
        *,
        hidden: Tensor | None = None,
        digits: int | None = None,
        largest: float | None = None,
    ) -> None:
        self.matrix, self.rows, self.columns = matrix, rows, columns
        self.hidden, self.digits = hidden, digits
        found = matrix[matrix.isfinite()]
        self.largest = largest or (found.abs().max().item() if found.numel() else 1.0) or 1.0

    def __rich_console__(self, console: Any, options: Any) -> Any:
        every = range(len(self.columns))
        for blocks, longest in ((True, _LONGEST), (False, _LONGEST), (False, 8)):
            made = self.made(every, blocks, longest)
            if _fits(made, console, options):
                yield made
                return
        for parts in range(2, len(every) + 1):
            size = -(-len(every) // parts)
            tables = [self.made(every[i : i + size], False, 8) for i in range(0, len(every), size)]
            if size == 1 or all(_fits(table, console, options) for table in tables):
                yield from tables
                return

    def made(self, columns: Sequence[int], blocks: bool, longest: int) -> RichTable:
        """Some of the columns, as a table for rich."""
        from rich.table import Table as RichTable
        from rich.text import Text

        made = RichTable(box=None, padding=(0, 1), header_style="dim", collapse_padding=True, pad_edge=False)
        made.add_column("", no_wrap=True)
        for j in columns:
            made.add_column(_text(_short(self.columns[j], longest)), justify="right", no_wrap=True)
        for i, word in enumerate(self.rows):
            cells = [self._cell(i, j, blocks) for j in columns]
            made.add_row(Text(_short(word, longest + 4), style="dim"), *cells)
        return made

    def _cell(self, i: int, j: int, blocks: bool) -> Any:
        from rich.text import Text

        if self.hidden is not None and bool(self.hidden[i, j]):
            return Text("·", style="dim")
        x = float(self.matrix[i, j])
        share = min(abs(x) / self.largest, 1.0) if abs(x) < float("inf") else 0.0
        colour, text = "blue" if x < 0 else "yellow", weight(x, self.digits)
        if not blocks:
            return Text(text, style=f"bold {colour}" if share >= 0.5 else "dim" if share < 0.05 else "")
        block = _SHADES[max(round(share * (len(_SHADES) - 1)), share >= 0.05)]
        return Text.assemble((block * 2, colour), " ", text)


def _short(word: str, longest: int = _LONGEST) -> str:
    label = shown(word)
    return label if len(label) <= longest else label[: longest - 1] + "…"


def as_text(table: Table) -> str:
    """The table as plain text."""
    out = io.StringIO()
    make_console(file=out, width=WIDE).print(Fitted(table))
    return out.getvalue().rstrip("\n")
