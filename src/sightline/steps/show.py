"""Steps as a page: the words with their vectors, the map, the table of each query, and the projection at the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.steps import html
from sightline.steps.labels import shown
from sightline.steps.numbers import enough, number, weight

if TYPE_CHECKING:
    from sightline.steps.compute import Column
    from sightline.steps.steps import Steps
    from sightline.steps.table import Line, Table

# Words whose vectors are drawn; of longer inputs the tables show what matters.
_WORDS = 64


def whole_page(steps: Steps, tables: list[Table]) -> str:
    """The page of `steps.to_html`."""
    return html.page(steps.title, body(steps, tables))


def body(steps: Steps, tables: list[Table]) -> str:
    """Everything between the title and the end of the page."""
    parts = [f"<p>{html.rich_text(shown(note))}</p>" for note in steps.notes]
    head = tables[0].head if tables else 0
    parts += [_vectors(steps, head), _map(steps, head)]
    if len(tables) > 3:
        links = " ".join(f'<a href="#query-{table.query}">{html.label(table.label)}</a>' for table in tables)
        parts.append(f'<nav aria-label="Queries">Tables of: {links}</nav>')
    for table in tables:
        # Open, so that paper has it all; a reader can close what is read.
        title = f'<summary><h2 id="query-{table.query}">Query: {html.label(table.label)}</h2></summary>'
        parts.append(f"<details open>{title}{query_table(table)}</details>")
    if "projection" in steps.after:
        parts.append(_projection(steps, tables))
    return "\n".join(part for part in parts if part)


def query_table(table: Table, digits: int | None = None) -> str:
    """One query's table, and the check below it."""
    vectors = {c.name: _column(table, c) for c in table.columns if c.kind == "vector"}
    largest = {name: _largest(x) for name, x in vectors.items()}
    decimals = {name: enough(x, digits) for name, x in vectors.items()}
    headings = ["word<br>j"]
    headings += [f"{html.escape(c.heading)}<br>{_symbol(c.symbol)}" for c in table.columns]
    rows = []
    for line in table.lines:
        cells = [_cell(table, line, column, largest, decimals.get(column.name, digits)) for column in table.columns]
        rows.append([html.label(table.name(line)), *cells])
    foot = {"weight": weight(table.total, digits)}
    if table.sum.numel():
        foot["sum"] = _stack(html.vector(table.sum, largest["sum"], digits=decimals["sum"]))
    words = [i for i, c in enumerate(table.columns, start=1) if c.kind == "text"]
    made = html.table(headings, rows, footer=["sum", *(foot.get(c.name, "") for c in table.columns)], text=words)
    if not table.sum.numel():
        return made
    gap = f"{table.difference:.1e}"
    return made + f'<p class="check">The sum and the output of the library differ by at most {gap}.</p>'


def _cell(table: Table, line: Line, column: Column, largest: dict[str, float], digits: int | None) -> str:
    x: Any = table.q if column.name == "q" and line.key is not None else line.cells.get(column.name)
    if x is None or column.name == "sum":
        return ""
    if column.kind == "text":
        return html.label(str(x)) if x else ""
    if column.kind == "vector":
        return _stack(html.vector(x, largest[column.name], digits=digits))
    if column.kind == "weight":
        share = min(max(x, 0.0), 1.0)
        return f'<span class="bar" style="--w:{share:.3f}">{weight(x, digits)}</span>'
    return number(x, digits)


def _column(table: Table, column: Column) -> list[Tensor]:
    """The vectors of one column."""
    vectors = [table.q] if column.name == "q" else [table.sum] if column.name == "sum" else []
    return vectors + [x for line in table.lines if isinstance(x := line.cells.get(column.name), Tensor)]


def _largest(vectors: list[Tensor]) -> float:
    """The number of the deepest colour: the same for a whole column, so that its cells can be compared.

    Trained models have a few channels that are far larger than all others; the largest 2 % are drawn alike, so that
    the rest can be seen.
    """
    sizes = [x.nan_to_num(0, 0, 0).abs().flatten() for x in vectors if x.numel()]
    if not sizes:
        return 1.0
    together = torch.cat(sizes).double()
    count = max(1, math.ceil(0.98 * len(together)))
    return together.kthvalue(count).values.item() or together.max().item() or 1.0


def _stack(inner: str) -> str:
    return f'<div class="stack">{inner}</div>'


def _symbol(symbol: str) -> str:
    """q_i as letters with an index."""
    out = []
    for word in html.escape(symbol).split(" "):
        dotted = []
        for part in word.split("."):
            name, mark, index = part.partition("_")
            plain = not mark or not index or not name.isalpha()
            dotted.append(part if plain else f"<i>{name}</i><sub>{index}</sub>")
        out.append("·".join(dotted) if "_" in word else word)
    return " ".join(out).replace(" * ", " × ")


def _vectors(steps: Steps, head: int) -> str:
    """Each word with its embedding and with q, k and v of one head."""
    done, count = steps.done, len(steps.labels)
    if count > _WORDS or steps.labels != steps.key_labels:
        return ""
    kv = head // (len(done.q) // len(done.k))
    drawn: dict[str, Tensor] = {}
    for name in ("embeddings", "positions", "input"):
        x = steps.before.get(name)
        if x is not None and x.dim() == 2 and len(x) == count:
            drawn[name] = x
    drawn |= {"q": done.q[head], "k": done.k[kv], "v": done.v[kv]}
    largest = {name: _largest([x]) for name, x in drawn.items()}
    rows = [
        [html.label(word), *(_stack(html.vector(x[i], largest[name])) for name, x in drawn.items())]
        for i, word in enumerate(steps.labels)
    ]
    what = ", ".join(f"{name} {x.shape[1]}" for name, x in drawn.items())
    scale = "Each number is a cell: orange above 0, blue below, the deeper the larger; the largest 2 % alike."
    return "<h2>Words as vectors</h2>" + html.table(["word", *drawn], rows, caption=f"{scale} Numbers in each: {what}.")


def _map(steps: Steps, head: int) -> str:
    """The map of one head."""
    queries, keys = len(steps.labels), len(steps.key_labels)
    if not queries or not keys or queries * keys > 1 << 20:
        return ""
    rows = slice(0, queries)
    weights, visible = steps.done.band(rows)["weight"][head], steps.done.visible(rows)[head]
    caption = "A row is a query, a column a key; hatched: hidden by the mask."
    if bool(visible.all()):
        caption = "A row is a query, a column a key."
    drawn = html.heat(weights, steps.labels, steps.key_labels, hidden=~visible, caption=caption)
    return f"<h2>Who looks at whom</h2>{drawn}"


def _projection(steps: Steps, tables: list[Table]) -> str:
    together, final = steps.after["concatenation"], steps.after["projection"]
    sizes = [_largest([together]), _largest([final])]
    rows = [
        [
            html.label(t.label),
            *(_stack(html.vector(x[t.query], s)) for x, s in zip((together, final), sizes, strict=True)),
        ]
        for t in tables
    ]
    caption = (
        f"{steps.heads} heads side by side give {together.shape[1]} numbers for each word; "
        f"times W_o they become {final.shape[1]}."
    )
    headings = ["word", "concatenation<br>Z_0 … Z_n", "projection<br>Z_f"]
    return "<h2>All heads together</h2>" + html.table(headings, rows, caption=caption)
