"""One attention call, opened up: the numbers between q, k, v and the output, for any band of queries.

Nothing is computed a second time for show: scores come from the definition (`backends/reference.py`), weights from
the sight of the call, and the output is what `sl.attention` gave. Of a long input only the rows that are looked at
are computed, each by a call of its own with that row of the mask and of the bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sightline.backends import attention, reference
from sightline.backends.call import make_call
from sightline.backends.tiles import bias_tile
from sightline.errors import InputError
from sightline.lens import look
from sightline.masks import dense
from sightline.shapes import default_scale

if TYPE_CHECKING:
    from sightline.lens import Sight

# Rows that are opened at a time when the whole map is gone through.
BAND = 64
# Up to so many cells the whole call is made at once.
_SMALL = 1 << 22


@dataclass(frozen=True)
class Column:
    """One column of a table: its name in the data, what stands above it, its symbol, and what its cells are."""

    name: str
    heading: str
    symbol: str
    kind: str  # "vector", "number" or "weight"


class Computation(Protocol):
    """What the tables are made of. Tensors are `[heads, queries, dim]`, `[kv_heads, keys, dim]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    columns: tuple[Column, ...]  # of the map: between the vectors and the weighted values

    @property
    def output(self) -> Tensor:
        """What the library's function returned, `[heads, queries, value_dim]`."""
        ...

    def output_of(self, query: int) -> Tensor:
        """The same for one query, `[heads, value_dim]`, without computing the others of a long input."""
        ...

    def band(self, rows: slice) -> dict[str, Tensor]:
        """Every intermediate of a band of queries by its name, each `[heads, rows, keys]`; the weight is the last."""
        ...

    def visible(self, rows: slice) -> Tensor:
        """Which keys a band of queries may see, `[heads, rows, keys]`."""
        ...

    def sink_share(self, query: int) -> Tensor | None:
        """How much weight of a query went to the sink, `[heads]`, if there is one."""
        ...

    def python(self, head: int, query: int, key: int) -> list[str]:
        """Lines of plain Python that make the weight of one cell from lists q and k."""
        ...


class Attended:
    """A call of `sl.attention`; `output` is what it gave, if it was done already."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: Mapping[str, Any],
        output: Tensor | None = None,
        symbols: Mapping[str, str] | None = None,
    ) -> None:
        with torch.no_grad():
            call = make_call(q, k, v, **options)
            if torch.Size(call.sizes.batch).numel() != 1:
                raise InputError(
                    "the steps are those of one sequence",
                    expected="[heads, time, dim] or [time, dim], or a batch of one",
                    got=f"q of shape {tuple(q.shape)}",
                    hint="one of the batch, e.g. q[0], k[0], v[0]",
                )
        self._given = tuple((x[None] if x.dim() == 2 else x).detach() for x in (q, k, v))
        # The call's own q is turned round when the scale is negative: tables show q as it came.
        self._options, self._call = dict(options), call
        self.q, self.k, self.v = (self._heads(x) for x in self._given)
        self._done = None if output is None else self._heads(output)
        self._whole = call.sizes.queries * call.sizes.keys <= _SMALL
        scale = options.get("scale")
        self.scale = default_scale(call.sizes.dim) if scale is None else float(scale)
        self.columns = _columns(self, {**_SYMBOLS, **(symbols or {})})

    @property
    def normalizer(self) -> str:
        return self._call.normalizer.name

    @cached_property
    def output(self) -> Tensor:
        if self._done is None:
            with torch.no_grad():
                self._done = self._heads(attention(*self._given, **self._options))
        return self._done

    def output_of(self, query: int) -> Tensor:
        if self._whole or self._done is not None:
            return self.output[:, query]
        q, k, v = self._given
        rows = slice(query, query + 1)
        with torch.no_grad():
            return self._heads(attention(q[..., rows, :], k, v, **self._options_of(rows)))[:, 0]

    @cached_property
    def _sight(self) -> Sight:
        return look(*self._given[:2], **self._options)

    def _sight_of(self, rows: slice) -> tuple[Sight, slice]:
        """A sight that has these rows, and where they are in it."""
        if self._whole:
            return self._sight, rows
        q, k, _ = self._given
        return look(q[..., rows, :], k, **self._options_of(rows)), slice(0, rows.stop - rows.start)

    def _options_of(self, rows: slice) -> dict[str, Any]:
        """The options of a call of some of the rows: rules about positions are spelled out for them."""
        spelled: dict[str, Any] = dict(self._options)
        if self._call.mask is not None:
            spelled["mask"] = dense(self.visible(rows))
        if self._call.bias is not None:
            spelled["bias"] = self._bias(rows)
        return spelled

    def band(self, rows: slice) -> dict[str, Tensor]:
        call, softcap = self._call, self._call.softcap
        q = self.q[:, rows]
        parts = {
            "score": reference.scores(q, self.k, scale=1.0),
            "scaled_score": reference.scores(q, self.k, scale=self.scale),
        }
        last = parts["scaled_score"]
        if softcap is not None:
            last = parts["capped_score"] = reference.scores(q, self.k, scale=self.scale, softcap=softcap)
        if call.bias is not None:
            last = parts["biased_score"] = last + self._bias(rows)
        if call.mask is not None:
            parts["masked_score"] = last.masked_fill(~self.visible(rows), -torch.inf)
        parts["weight"] = self._weights(rows)
        return parts

    def visible(self, rows: slice) -> Tensor:
        s, mask = self._call.sizes, self._call.mask
        if mask is None:
            return torch.ones(s.heads, rows.stop - rows.start, s.keys, dtype=torch.bool, device=self.q.device)
        return self._cells(mask.tile(rows, slice(0, s.keys), s.queries, s.keys, self.q.device), rows)

    def sink_share(self, query: int) -> Tensor | None:
        if self._call.sinks is None:
            return None
        sight, rows = self._sight_of(slice(query, query + 1))
        return sight.sink_share.reshape(len(self.q), -1)[:, rows.start]

    def _weights(self, rows: slice) -> Tensor:
        sight, where = self._sight_of(rows)
        return self._cells(sight.tile(where, slice(None)), rows)

    def python(self, head: int, query: int, key: int) -> list[str]:
        rows = slice(query, query + 1)
        if not bool(self.visible(rows)[head, 0, key]):
            return ["weight = 0.0  # the mask hides this key"]
        parts = {name: part[head, 0, key].item() for name, part in self.band(rows).items()}
        lines = []
        if self.normalizer != "uniform":
            lines += ["score = sum(a * b for a, b in zip(q, k))", f"score = {self.scale!r} * score"]
            if "capped_score" in parts:
                lines.append(f"score = {self._call.softcap!r} * math.tanh(score / {self._call.softcap!r})")
            if "biased_score" in parts:
                bias = self._bias(rows)[head, 0, key].item()
                lines.append(f"score = score + {bias!r}  # the bias of this cell")
        count = int(self.visible(rows)[head].sum())
        match self.normalizer:
            case "softmax":
                sight, where = self._sight_of(rows)
                lse = sight.lse.reshape(len(self.q), -1)[head, where.start].item()
                lines.append(f"lse = {lse!r}  # log of the sum of exp(score) over the row")
                lines.append("weight = math.exp(score - lse)")
            case "relu":
                lines.append(f"weight = max(score, 0.0) / {count}  # keys that may be seen")
            case "sigmoid":
                lines.append(f"weight = 1 / (1 + math.exp(math.log({count}) - score))  # {count} keys may be seen")
            case "uniform":
                lines.append(f"weight = 1 / {count}  # keys that may be seen")
            case name:
                lines.append(f"weight = {parts['weight']!r}  # {name} of the score")
        return lines

    def _heads(self, x: Tensor) -> Tensor:
        """In compute precision, a batch of one dropped: `[heads, time, dim]`."""
        return x.detach().to(self._call.compute_dtype).reshape(-1, *x.shape[-2:])

    def _bias(self, rows: slice) -> Tensor:
        return self._cells(bias_tile(self._call, rows, slice(0, self._call.sizes.keys)), rows)

    def _cells(self, x: Tensor, rows: slice) -> Tensor:
        """A tile with all its heads and cells spelled out, `[heads, rows, keys]`; a batch of one is dropped."""
        s = self._call.sizes
        shape = (*s.batch, s.heads, rows.stop - rows.start, s.keys)
        return x.expand(shape).reshape(shape[-3:])


# What the sources call things; the weight-free form has symbols of its own (S4.1).
_SYMBOLS = {
    "q": "q_i",
    "k": "k_j",
    "v": "v_j",
    "score": "q_i.k_j",
    "weight": "x_ij",
    "weighted_value": "x_ij * v_j",
    "sum": "z_i",
}
WEIGHT_FREE = {
    "q": "x_i",
    "k": "x_j",
    "v": "x_j",
    "score": "omega_ij",
    "weight": "alpha_ij",
    "weighted_value": "alpha_ij * x_j",
    "sum": "z_i",
}


def _columns(done: Attended, symbols: Mapping[str, str]) -> tuple[Column, ...]:
    call = done._call
    columns = []
    uniform = done.normalizer == "uniform"  # an average asks for no score
    if not uniform:
        columns += [Column(n, f"{symbols[n][0]} vector", symbols[n], "vector") for n in "qk"]
    if uniform or symbols["v"] != symbols["k"]:
        columns.append(Column("v", f"{symbols['v'][0]} vector", symbols["v"], "vector"))
    if not uniform:
        columns.append(Column("score", "score", symbols["score"], "number"))
        if done.scale != 1:
            columns.append(Column("scaled_score", "score", scale_text(done.scale), "number"))
        if call.softcap is not None:
            columns.append(Column("capped_score", "capped", f"at {call.softcap:g}", "number"))
        if call.bias is not None:
            columns.append(Column("biased_score", "score", "+ bias", "number"))
        if call.mask is not None:
            columns.append(Column("masked_score", "score", "masked", "number"))
    name = "average" if uniform else done.normalizer
    columns.append(Column("weight", name, "1 / visible" if uniform else symbols["weight"], "weight"))
    weighted = f"1/n * {symbols['v']}" if uniform else symbols["weighted_value"]
    columns.append(Column("weighted_value", f"weighted {symbols['v'][0]}", weighted, "vector"))
    columns.append(Column("sum", "sum", symbols["sum"], "vector"))
    return tuple(columns)


def scale_text(scale: float) -> str:
    """A scale as the sources write it: divided by a root.

    >>> scale_text(0.125), scale_text(32**-0.5), scale_text(2.0)
    ('/ 8', '/ 5.657', '* 2')
    """
    if 0 < scale < 1:
        return f"/ {round(1 / scale, 3):g}"
    return f"* {scale:g}"
