"""The look-up, exact and soft, as the same kind of tables (S1.2, S1.3)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sightline import lookup
from sightline.backends import reference
from sightline.steps.compute import Column, scale_text
from sightline.steps.labels import read_labels
from sightline.steps.steps import Steps
from sightline.steps.table import Line, Table

_VECTORS = (
    Column("q", "query", "q", "vector"),
    Column("k", "key", "k_j", "vector"),
    Column("v", "value", "v_j", "vector"),
)


class LookedUp:
    """A look-up among the rows of a tensor; exact if there is no temperature.

    The weights are the look-up's own: looked up among the rows of the identity, every value is its own place.
    """

    def __init__(self, query: Tensor, keys: Tensor, values: Tensor, temperature: float | None, missing: str) -> None:
        self._temperature, self._missing = temperature, missing
        self.output = self._look(query, keys, values)[None]
        self.q, self.k, self.v = query[None], keys[None], values[None]
        if temperature is None:
            weight: tuple[Column, ...] = (Column("weight", "equal", "1(q = k_j)", "weight"),)
            last = "1(q = k_j) * v_j"
        else:
            root = 1 / math.sqrt(max(1, keys.shape[-1]))
            weight = (
                Column("score", "score", "q.k_j", "number"),
                Column("scaled_score", "score", scale_text(root), "number"),
                Column("weight", "softmax", f"at temperature {temperature:g}", "weight"),
            )
            last = "weight * v_j"
        ends = (Column("weighted_value", "weighted value", last, "vector"), Column("sum", "sum", "z", "vector"))
        self.columns: tuple[Column, ...] = (*_VECTORS, *weight, *ends)

    def _look(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self._temperature is None:
            found: Tensor = lookup.exact(query, keys, values, self._missing)  # type: ignore[arg-type]
            return found
        return lookup.soft(query, keys, values, self._temperature)

    def band(self, rows: slice) -> dict[str, Tensor]:
        q, k = self.q[:, rows], self.k
        parts = {}
        if self._temperature is not None:
            parts = {"score": reference.scores(q, k, scale=1.0), "scaled_score": reference.scores(q, k)}
        places = torch.eye(k.shape[1], dtype=self.v.dtype, device=k.device)
        parts["weight"] = self._look(q[0], k[0], places)[None]
        return parts

    def visible(self, rows: slice) -> Tensor:
        return torch.ones(1, rows.stop - rows.start, self.k.shape[1], dtype=torch.bool, device=self.k.device)

    def sink_share(self, query: int) -> None:
        return None

    def output_of(self, query: int) -> Tensor:
        return self.output[:, query]

    def python(self, head: int, query: int, key: int) -> list[str]:
        if self._temperature is None:
            return ["weight = 1.0 if q == k else 0.0"]
        if not self._temperature:
            weight = self.band(slice(query, query + 1))["weight"][head, 0, key].item()
            return [f"weight = {weight!r}  # at temperature 0 the strongest keys share all"]
        scores = self.band(slice(query, query + 1))["scaled_score"][head, 0] / self._temperature
        return [
            "score = sum(a * b for a, b in zip(q, k))",
            f"score = score / math.sqrt({max(1, self.k.shape[-1])}) / {self._temperature!r}",
            f"lse = {scores.logsumexp(0).item()!r}  # log of the sum of exp(score) over the keys",
            "weight = math.exp(score - lse)",
        ]


def explain_lookup(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    temperature: float | None = None,
    missing: str = "error",
    labels: str | Sequence[str] | None = None,
    key_labels: str | Sequence[str] | None = None,
) -> Steps:
    """The steps of `sl.lookup.exact`, or with a temperature of `sl.lookup.soft`, for queries `[queries, dim]`.

    >>> keys, values = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> explain_lookup(torch.tensor([[0.0, 1.0]]), keys, values)["weight"]
    tensor([[0., 1.]])
    >>> explain_lookup(torch.tensor([[0.0, 1.0]]), keys, values, temperature=1.0)["weight"]
    tensor([[0.3302, 0.6698]])
    """
    if isinstance(query, Tensor) and query.dim() == 1:
        query = query[None]
    done = LookedUp(query, keys, values, temperature, missing)
    how = "exact" if temperature is None else f"soft, at temperature {temperature:g}"
    return Steps(
        done,
        labels=read_labels("labels", labels, len(query)),
        key_labels=read_labels("key_labels", key_labels, len(keys)),
        flat=True,
        title=f"Look-up, {how}",
    )


def explain_record(query: Hashable, keys: Iterable[Hashable], values: Iterable[Any]) -> Table:
    """The table of an exact look-up in a record of any keys and values, such as a dictionary (S1.2).

    >>> record = {"Name": "Ada", "Date of birth": "May 5th 2000"}
    >>> table = explain_record("Date of birth", record.keys(), record.values())
    >>> [line.cells["weight"] for line in table.lines]
    [0.0, 1.0]
    """
    keys, values = list(keys), list(values)
    found = lookup.exact(query, keys, values)
    weight = lookup.exact(query, keys, torch.eye(len(keys)))
    columns = (
        Column("value", "value", "v_j", "text"),
        Column("weight", "equal", "1(q = k_j)", "weight"),
        Column("answer", "answer", "z", "text"),
    )
    lines = tuple(
        Line(str(key), j, {"value": str(value), "weight": w, "answer": str(found) if w else ""})
        for j, (key, value, w) in enumerate(zip(keys, values, weight.tolist(), strict=True))
    )
    nothing = torch.zeros(0)
    return Table(0, str(query), 0, 1, columns, lines, nothing, nothing, nothing, weight.sum().item())
