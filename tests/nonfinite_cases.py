"""Calls with NaN and inf in them, drawn by Hypothesis, and what they must give: written down without the library."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from cases import DTYPES, Case, cases

# Around the numbers of a vector: 4, 8 and 16, with all, some and none left over.
AROUND_LANES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33)


class Plant(NamedTuple):
    """A value put into one number, or into a whole vector, of q, k or v."""

    name: str
    value: float
    at: float  # which vector, as a share of all of them
    channel: int | None  # None: all of them


@st.composite
def strange_cases(draw: Any, dtypes: tuple[torch.dtype, ...] = DTYPES, plain: bool = False) -> tuple[Case, list[Plant]]:
    """A call of `cases` with one to three plants in it."""
    few = {"batches": ((), (2,), (0,)), "groups": ((1, 1), (2, 1), (4, 2))}
    case = draw(cases(dtypes=dtypes, rarely=(), usually=AROUND_LANES, plain=plain, **few))
    plants = draw(
        st.lists(
            st.builds(
                Plant,
                st.sampled_from("qkv"),
                st.sampled_from((math.nan, math.inf, -math.inf)),
                st.floats(0, 1, exclude_max=True),
                st.none() | st.integers(0, 7),
            ),
            min_size=1,
            max_size=3,
        )
    )
    for plant in plants:
        tensor = getattr(case, plant.name)
        flat = tensor.view(-1, tensor.shape[-1])
        if flat.numel():
            where = slice(None) if plant.channel is None else plant.channel % tensor.shape[-1]
            flat[int(plant.at * len(flat)), where] = plant.value
    return case, plants


def of_what_is_read(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition over the keys a row may see and no others, in float64; rows that see the same go together."""
    flat = q.dim() == 2
    heads, queries, keys = (1 if flat else q.shape[-3]), q.shape[-2], k.shape[-2]
    kv_heads = 1 if flat else k.shape[-3]
    batch = tuple(q.shape[:-3])
    number = math.prod(batch)
    shape = (*batch, heads, queries, keys)
    o = case.options
    visible = torch.ones(shape, dtype=torch.bool) if case.table is None else case.table.expand(shape)
    bias = o.get("bias", torch.zeros(()))
    bias = bias if isinstance(bias, Tensor) else bias.to_dense(queries, keys, dtype=torch.float64)
    sinks = o.get("sinks", torch.full((), -torch.inf)).double().expand(*batch, heads).reshape(number, heads)
    visible, bias = (t.expand(shape).reshape(number, heads, queries, keys) for t in (visible, bias.double()))
    q4, k4, v4 = (t.double().reshape(number, n, *t.shape[-2:]) for t, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    scale = o.get("scale", 1 / math.sqrt(q.shape[-1]))
    rows_out: list[list[Tensor]] = []
    for b in range(number):
        for h in range(heads):
            g = h // (heads // kv_heads)
            rows = [q4.new_zeros(v.shape[-1])] * queries
            for see in visible[b, h].unique(dim=0) if queries else ():
                which = (visible[b, h] == see).all(-1).nonzero().flatten()
                if not see.any():
                    continue
                score = scale * (q4[b, h][which] @ k4[b, g][see].mT)
                if o.get("softcap") is not None:
                    score = o["softcap"] * torch.tanh(score / o["softcap"])
                score = score + bias[b, h][which][:, see]
                part = _weights(score, sinks[b, h], o.get("normalizer", "softmax")) @ v4[b, g][see]
                for i, row in zip(which.tolist(), part, strict=True):
                    rows[i] = row
            rows_out.append(rows)
    out = [row for rows in rows_out for row in rows]
    whole = torch.stack(out) if out else q4.new_zeros(0, v.shape[-1])
    return whole.reshape(*q.shape[:-1], v.shape[-1])


def _weights(score: Tensor, sink: Tensor, normalizer: str) -> Tensor:
    count = score.shape[-1]
    if normalizer == "relu":
        return score.relu() / count
    if normalizer == "sigmoid":
        return (score - math.log(count)).sigmoid()
    if normalizer == "uniform":
        return torch.full_like(score, 1 / count)
    # A row whose scores are all -inf gives 0.
    dead = (score == -torch.inf).all(-1, keepdim=True)
    with_sink = torch.cat([score.masked_fill(dead, 0.0), sink.expand(len(score), 1)], -1)
    return with_sink.softmax(-1)[..., :-1].masked_fill(dead, 0.0)
