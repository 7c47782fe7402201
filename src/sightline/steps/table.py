"""The table of one query (S2.4): a line for each key, with every number on the way to the sum z_i."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import MissingExtraError
from sightline.steps.compute import Column, Computation
from sightline.steps.html import fragment
from sightline.steps.show import query_table
from sightline.steps.terminal import as_text, rich_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Line:
    """One key and its numbers; `key` is None for the line of all others, and for a sink.

    >>> from sightline.steps import explain_words
    >>> line = explain_words("Action gets results").table("gets").lines[0]
    >>> line.label, line.key, sorted(line.cells)
    ('Action', 0, ['k', 'scaled_score', 'score', 'v', 'weight', 'weighted_value'])
    """

    label: str
    key: int | None
    cells: dict[str, Any]  # by the name of the column: a vector, a number, or None
    hidden: bool = False


@dataclass(frozen=True)
class Table:
    """How the output of one query comes about, key by key.

    `sum` is what the lines add up to, `output` what the library's function returned, `difference` the largest
    difference between the two.

    >>> import sightline as sl, torch
    >>> from sightline.steps import explain
    >>> q, k, v = torch.eye(3), torch.eye(3), torch.eye(3)
    >>> table = explain(q, k, v, labels="Action gets results").table("gets")
    >>> [line.label for line in table.lines], round(table.total, 3)
    (['Action', 'gets', 'results'], 1.0)
    >>> table.difference < 1e-6
    True
    """

    query: int
    label: str
    head: int
    heads: int
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    q: Tensor = field(repr=False)
    sum: Tensor = field(repr=False)
    output: Tensor = field(repr=False)
    total: float  # of the weights
    folded: bool = False  # whether the strongest keys stand for all, strongest first

    @property
    def difference(self) -> float:
        """The largest difference between the sum of the lines and what the library's function returned."""
        gap = (self.sum - self.output).abs()
        gap = gap[~(self.sum == self.output)]  # equal infinities have no difference
        return gap.max().item() if gap.numel() else 0.0

    def name(self, line: Line) -> str:
        """What a line is called: its word, and where it stands if the lines are not in the order of the text."""
        return f"{line.label} @ {line.key:,}" if self.folded and line.key is not None else line.label

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, ready for JSON: what is not finite is None."""
        return {
            "query": self.query,
            "label": self.label,
            "head": self.head,
            "heads": self.heads,
            "folded": self.folded,
            "columns": [vars(column) for column in self.columns],
            "lines": [
                {
                    "label": line.label,
                    "key": line.key,
                    "hidden": line.hidden,
                    **{name: _plain(x) for name, x in line.cells.items()},
                }
                for line in self.lines
            ],
            "q": _plain(self.q),
            "total": _plain(self.total),
            "sum": _plain(self.sum),
            "output": _plain(self.output),
            "difference": _plain(self.difference),
        }

    def to_pandas(self) -> pd.DataFrame:
        """The same as a data frame, a line for each key; vectors are lists."""
        pandas = pandas_module()
        data = self.to_dict()
        names = [c.name for c in self.columns if c.name not in ("q", "sum")]
        rows = [{"word": line["label"], **{name: line.get(name) for name in names}} for line in data["lines"]]
        return pandas.DataFrame(rows, columns=["word", *names])

    def __rich__(self) -> Any:
        return rich_table(self)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return fragment(query_table(self))


def make_table(done: Computation, query: int, head: int, label: str, key_labels: list[str], top: int) -> Table:
    """Open one row of the map. Past `top` keys the strongest are shown, and one line adds up all others exactly."""
    rows = slice(query, query + 1)
    band = {name: part[head, 0] for name, part in done.band(rows).items()}
    visible, weight = done.visible(rows)[head, 0], band["weight"]
    kv = head // (len(done.q) // len(done.k))
    k, v = done.k[kv], done.v[kv]
    weighted = _weighted(weight, v, visible)  # [keys, value_dim]
    keys = len(k)
    # A stable sort: of equal weights the lower key comes first.
    strongest = weight.abs().nan_to_num(torch.inf).sort(descending=True, stable=True).indices[:top].tolist()
    shown = list(range(keys)) if keys <= top else strongest
    lines = []
    for j in shown:
        cells: dict[str, Any] = {name: part[j].item() for name, part in band.items()}
        cells |= {"k": k[j], "v": v[j], "weighted_value": weighted[j]}
        lines.append(Line(key_labels[j], j, cells, not bool(visible[j])))
    if len(shown) < keys:
        others = torch.ones(keys, dtype=torch.bool, device=weight.device)
        others[shown] = False
        sums = {"weight": weight[others].sum().item(), "weighted_value": weighted[others].sum(0)}
        lines.append(Line(f"all {keys - len(shown):,} others", None, sums))
    share = done.sink_share(query)
    if share is not None:
        sums = {"weight": share[head].item(), "weighted_value": torch.zeros_like(v[0])}
        lines.append(Line("sink", None, sums))
    total = sum(line.cells["weight"] for line in lines)
    z = torch.stack([line.cells["weighted_value"] for line in lines]).sum(0) if lines else v.new_zeros(v.shape[-1])
    q, output, folded = done.q[head, query], done.output_of(query)[head], len(shown) < keys
    return Table(query, label, head, len(done.q), done.columns, tuple(lines), q, z, output, float(total), folded)


def _weighted(weight: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """weight * v, and 0 for a hidden key even where its value is not a number."""
    return torch.where(visible[..., None], weight[..., None] * v, 0.0)


def _plain(x: Any) -> Any:
    if isinstance(x, Tensor):
        return [_plain(value) for value in x.tolist()]
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x


def pandas_module() -> Any:
    """pandas, or an error that says what to install."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError(
            "a data frame needs pandas", expected="pandas", got="not installed", hint="pip install pandas"
        ) from None
    return pandas
