"""What `explain` returns: every intermediate by its name, and the table of any query."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.memory import require
from sightline.positions.base import whole
from sightline.steps import labels as words
from sightline.steps.compute import BAND, Computation
from sightline.steps.html import fragment, write
from sightline.steps.show import body, whole_page
from sightline.steps.table import Table, make_table, pandas_module
from sightline.steps.terminal import print_steps

if TYPE_CHECKING:
    import pandas as pd

# Lines of a table before the rest is added up in one (more on request).
TOP = 16


class Steps:
    """Every intermediate of an attention computation, named; made by `explain`.

    `steps["weight"]` gives one of them, `steps.names` lists them. Maps are `[heads, queries, keys]`, vectors
    `[heads, time, dim]`; without the first axis if q, k and v came without heads. `steps.table(query)` is the table of
    one query in linear memory, however long the input.

    >>> import torch
    >>> from sightline.steps import explain
    >>> steps = explain(torch.eye(3), torch.eye(3), torch.eye(3), labels="Action gets results")
    >>> steps.names
    ('q', 'k', 'v', 'score', 'scaled_score', 'weight', 'weighted_value', 'sum')
    >>> steps["weight"].sum(-1).round()
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        done: Computation,
        *,
        labels: list[str],
        key_labels: list[str],
        before: dict[str, Tensor] | None = None,
        after: dict[str, Tensor] | None = None,
        head: int | None = None,
        flat: bool = False,
        title: str = "Attention, step by step",
        notes: Sequence[str] = (),
    ) -> None:
        self.done, self.labels, self.key_labels = done, labels, key_labels
        self.before, self.after = before or {}, after or {}
        self.title, self.notes = title, tuple(notes)
        self._flat = flat
        self.head = None if head is None else self._head(head)

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return len(self.done.q)

    @property
    def names(self) -> tuple[str, ...]:
        """The intermediates in the order in which they come about."""
        return (*self.before, "q", "k", "v", *self._of_map(), "weighted_value", "sum", *self.after)

    def __getitem__(self, name: str) -> Tensor:
        """An intermediate by its name. Maps are queries x keys: what does not fit into memory is refused."""
        named = {**self.before, **self.after, "q": self.done.q, "k": self.done.k, "v": self.done.v}
        if name in self.before or name in self.after:
            return named[name]
        if name == "sum":
            return self._shaped(self._sums())
        if name in named:
            return self._shaped(named[name])
        if name not in (*self._of_map(), "weighted_value"):
            raise InputError(
                "no step has this name", expected=f"one of {', '.join(self.names)}", got=repr(name), hint="'weight'"
            )
        queries, keys = len(self.labels), len(self.key_labels)
        cells = self.heads * queries * keys * (self.done.v.shape[-1] if name == "weighted_value" else 1)
        hint = "steps.table(query), which takes one row at a time"
        require(f"the {name} of every cell", 4 * cells * self.done.q.element_size(), self.done.q.device, hint)
        rows = slice(0, queries)
        if name != "weighted_value":
            return self._shaped(self.done.band(rows)[name])
        seen = self.done.visible(rows)[..., None]
        weighted = self.done.band(rows)["weight"][..., None] * self._values()[:, None]
        return self._shaped(torch.where(seen, weighted, 0.0))

    def table(self, query: int | str, head: int | None = None, top: int = TOP) -> Table:
        """The table of one query, by its word or position (S2.4).

        Past `top` keys, the strongest come first and one line adds up all others, so that the sums stay exact.

        >>> import torch
        >>> from sightline.steps import explain
        >>> table = explain(torch.eye(40), torch.eye(40), torch.eye(40)).table(7, top=3)
        >>> [line.label for line in table.lines], round(table.total, 3)
        (['7', '0', '1', 'all 37 others'], 1.0)
        """
        i = words.find_one(self.labels, query)
        return make_table(self.done, i, self._head(head), self.labels[i], self.key_labels, whole("top", top))

    def tables(
        self, queries: Sequence[int | str] | None = None, head: int | None = None, top: int = TOP
    ) -> list[Table]:
        """The tables of some queries, of all if none are named; a word that stands twice has two."""
        found = range(len(self.labels)) if queries is None else self._find(queries)
        return [self.table(i, head, top) for i in found]

    @property
    def difference(self) -> float:
        """The largest difference between the sums of all tables and what the library's function returned."""
        sums, output = self._sums(), self.done.output
        gap = (sums - output).abs()[~(sums == output)]
        return gap.max().item() if gap.numel() else 0.0

    def to_python(self, query: int | str, key: int | str, head: int | None = None) -> str:
        """A few lines of plain Python that recompute one cell, with its numbers in them.

        >>> import torch
        >>> from sightline.steps import explain
        >>> print(explain(torch.eye(2), torch.eye(2), torch.eye(2)).to_python(0, 1))
        import math
        <BLANKLINE>
        q = [1.0, 0.0]  # query 0
        k = [0.0, 1.0]  # key 1
        v = [0.0, 1.0]
        score = sum(a * b for a, b in zip(q, k))
        score = 0.7071067811865475 * score
        lse = 1.1079...  # log of the sum of exp(score) over the row
        weight = math.exp(score - lse)
        weighted_value = [weight * x for x in v]
        print(weight)
        """
        i, j = words.find_one(self.labels, query), words.find_one(self.key_labels, key, "key")
        h = self._head(head)
        kv = h // (self.heads // len(self.done.k))
        vectors = (self.done.q[h, i], self.done.k[kv, j], self.done.v[kv, j])
        q, k, v = ("[" + ", ".join(map(_literal, x.tolist())) + "]" for x in vectors)
        lines = ["import math", "", f"q = {q}  # query {words.shown(self.labels[i])}"]
        lines += [f"k = {k}  # key {words.shown(self.key_labels[j])}", f"v = {v}"]
        lines += self.done.python(h, i, j)
        return "\n".join([*lines, "weighted_value = [weight * x for x in v]", "print(weight)"])

    def to_dict(self) -> dict[str, Tensor]:
        """Every intermediate by its name."""
        return {name: self[name] for name in self.names}

    def to_pandas(self, head: int | None = None) -> pd.DataFrame:
        """The map of one head as a data frame: a line for each query and key, a column for each number."""
        pandas = pandas_module()
        h, queries, keys = self._head(head), len(self.labels), len(self.key_labels)
        require(
            "a data frame of every cell", 64 * queries * keys, torch.device("cpu"), "steps.table(query).to_pandas()"
        )
        parts = {name: part[h].flatten().tolist() for name, part in self.done.band(slice(0, queries)).items()}
        index = {
            "query": [i for i in range(queries) for _ in range(keys)],
            "key": list(range(keys)) * queries,
            "query_label": [label for label in self.labels for _ in range(keys)],
            "key_label": self.key_labels * queries,
        }
        return pandas.DataFrame({**index, **parts})

    def to_html(self, queries: Sequence[int | str] | None = None, head: int | None = None, top: int = TOP) -> str:
        """A page of its own: the vectors as coloured cells, the map, and the table of each query."""
        return whole_page(self, self.tables(queries, head, top))

    def save_html(self, path: str | os.PathLike[str], **choice: Any) -> None:
        """Write `to_html` to a file, which appears whole or not at all."""
        write(path, self.to_html(**choice))

    def print(self, queries: Sequence[int | str] | None = None, head: int | None = None, top: int = TOP) -> None:
        """Show the tables in the terminal."""
        print_steps(self, self.tables(queries, head, top))

    def _repr_html_(self) -> str:
        return fragment(body(self, self.tables(range(min(len(self.labels), 8)))))

    def __repr__(self) -> str:
        queries, keys = len(self.labels), len(self.key_labels)
        return f"Steps({self.title!r}, heads={self.heads}, queries={queries}, keys={keys}: {', '.join(self.names)})"

    def _find(self, queries: Sequence[int | str]) -> list[int]:
        many = [queries] if isinstance(queries, str | int) else queries
        return [i for query in many for i in words.find(self.labels, query)]

    def _head(self, head: int | None) -> int:
        if head is None:
            return 0 if self.__dict__.get("head") is None else self.head  # type: ignore[return-value]
        if isinstance(head, bool) or not isinstance(head, int) or not -self.heads <= head < self.heads:
            raise InputError(
                "there is no such head", expected=f"0 to {self.heads - 1}", got=head, hint="heads count from 0"
            )
        return head % self.heads

    def _of_map(self) -> tuple[str, ...]:
        """The names of what is queries x keys."""
        return tuple(self.done.band(slice(0, min(1, len(self.labels)))))

    def _values(self) -> Tensor:
        return self.done.v.repeat_interleave(self.heads // len(self.done.v), 0)

    def _sums(self) -> Tensor:
        """The sums of all tables, `[heads, queries, value_dim]`, band by band."""
        v, sums = self._values(), torch.empty_like(self.done.output)
        bad = not bool(v.isfinite().all())
        for start in range(0, len(self.labels), BAND):
            rows = slice(start, min(start + BAND, len(self.labels)))
            weight = self.done.band(rows)["weight"]
            if not bad:
                sums[:, rows] = weight @ v
                continue
            seen = self.done.visible(rows)[..., None]
            sums[:, rows] = torch.where(seen, weight[..., None] * v[:, None], 0.0).sum(-2)
        return sums

    def _shaped(self, x: Tensor) -> Tensor:
        return x[0] if self._flat and x.shape[0] == 1 else x


def _literal(x: float) -> str:
    return repr(x) if x == x and abs(x) != float("inf") else f"float('{x}')"
