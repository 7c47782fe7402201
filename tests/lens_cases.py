"""What the tests of the lens compare with: every statistic computed from the whole map, in any precision.

In float64 this is the definition; in the dtype of the inputs it is what eager torch makes of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cases import Case
from sightline.backends import reference
from sightline.lens import Sight

FLOAT32_LIMIT = 1e-5
FLOAT64_LIMIT = 1e-12

# Logarithms: an error of 1e-5 in one of them is an error of 1e-5 in a weight, also where the logarithm is near 0.
LOGARITHMS = ("lse", "max_score", "entropy")
# Shares of 1: they are compared with 1.
SHARES = ("sink_share", "total")


class Map(NamedTuple):
    """The whole map `[*batch, heads, queries, keys]`, and what it is made of; scores are -inf where hidden."""

    weights: Tensor
    scores: Tensor
    visible: Tensor
    lse: Tensor
    sink_share: Tensor
    magnitude: float  # the largest sum of absolute terms in a score: rounding errors are relative to it


def lift(x: Tensor, case: Case) -> Tensor:
    """A result of a 2-D call with its axis of heads."""
    return x[None] if case.q.dim() == 2 else x


def whole_map(case: Case, dtype: torch.dtype = torch.float64) -> Map:
    """The map of a case by eager torch in a dtype: scores, softmax, weights, all of it written down."""
    o = case.options
    q, k = (lift(t, case).to(dtype) for t in (case.q, case.k))
    bias = o.get("bias")
    if isinstance(bias, Tensor):
        bias = bias.to(dtype)
    scores = reference.scores(q, k, bias=bias, scale=o.get("scale"), softcap=o.get("softcap")).to(dtype)
    visible = torch.ones_like(scores, dtype=torch.bool) if case.table is None else case.table.expand(scores.shape)
    scores = scores.masked_fill(~visible, -torch.inf)
    count = visible.sum(-1, keepdim=True).clamp_min(1).to(dtype)
    lse = torch.logsumexp(scores, -1)
    share = torch.zeros_like(lse)
    name = o.get("normalizer", "softmax")
    if name == "softmax":
        column = (
            torch.full_like(scores[..., :1], -torch.inf)
            if scores.shape[-1]
            else scores.new_full((*lse.shape, 1), -torch.inf)
        )
        if o.get("sinks") is not None:
            column = o["sinks"][..., None, None].to(dtype).expand(column.shape)
            lse = torch.logaddexp(lse, column[..., 0])
        both = torch.cat([scores, column], -1).softmax(-1).nan_to_num(0.0)
        weights, share = both[..., :-1], both[..., -1]
    elif name == "relu":
        weights = scores.relu() / count
    elif name == "sigmoid":
        weights = (scores - count.log()).sigmoid()
    else:
        weights = visible.to(dtype) / count
    return Map(weights, scores, visible, lse, share, _magnitude(case, q, k, bias))


def _magnitude(case: Case, q: Tensor, k: Tensor, bias: Any) -> float:
    if not q.numel() or not k.numel():
        return 0.0
    scale = case.options.get("scale")
    terms = reference.scores(q.abs(), k.abs(), scale=None if scale is None else abs(scale)).double()
    if isinstance(bias, Tensor):
        terms = terms + bias.double().abs().nan_to_num(posinf=0.0)
    elif bias is not None:
        terms = terms + bias.to_dense(q.shape[-2], k.shape[-2]).double().abs()
    return float(terms.max())


def gaps(queries: int, keys: int) -> Tensor:
    """|i - j| with the last query at the last key."""
    return (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()


def statistics(m: Map) -> dict[str, Tensor]:
    """Every row statistic, and what the keys received, from the whole map."""
    w = m.weights
    total = w.sum(-1)
    some = total > 0
    p = (w / total[..., None]).masked_fill(~some[..., None], 0.0)
    gap = gaps(*w.shape[-2:]).to(w.dtype)
    nothing = torch.full_like(total, -torch.inf)
    return {
        "lse": m.lse,
        "entropy": torch.special.entr(p).sum(-1),
        "distance": (p * gap).sum(-1),
        "max_score": m.scores.amax(-1) if w.shape[-1] else nothing,
        "total": total,
        "sink_share": m.sink_share,
        "received": w.sum(-2),
    }


def stretches(start: int, stop: int, size: int | None, cell: int | None) -> list[tuple[int, int]]:
    """The cells of every pixel along one axis, as design.md says them."""
    n = stop - start
    if cell is not None:
        return [(start + i, min(start + i + cell, stop)) for i in range(0, n, cell)]
    assert size is not None
    spans = [(i * n // size, (i + 1) * n // size) for i in range(size)]
    return [(start + a, start + max(b, a + 1)) for a, b in spans]


def painted(
    m: Map,
    rows: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
    size: tuple[int, int] | None = None,
    cell: tuple[int, int] | None = None,
    reduce: str = "mean",
    visible_only: bool = False,
) -> Tensor:
    """A picture, pixel by pixel."""
    queries, keys = m.weights.shape[-2:]
    down = stretches(*(rows or (0, queries)), size and size[0], cell and cell[0])
    across = stretches(*(columns or (0, keys)), size and size[1], cell and cell[1])
    lines = []
    for a, b in down:
        line = []
        for c, d in across:
            w, seen = m.weights[..., a:b, c:d].flatten(-2), m.visible[..., a:b, c:d].flatten(-2).sum(-1)
            pixel = w.amax(-1) if reduce == "max" else w.sum(-1)
            if reduce == "mean":
                pixel = pixel / (seen.clamp_min(1) if visible_only else (b - a) * (d - c))
            line.append(pixel.masked_fill(seen == 0, torch.nan) if visible_only else pixel)
        lines.append(torch.stack(line, -1))
    return torch.stack(lines, -2)


def gap(found: Tensor, truth: Tensor, name: str = "") -> float:
    """The largest difference relative to the largest number of the truth; infinite where inf or NaN do not agree."""
    if found.shape != truth.shape:
        raise AssertionError(f"{name}: shape {tuple(found.shape)}, expected {tuple(truth.shape)}")
    found, truth = found.double(), truth.double()
    finite = truth.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return math.inf
    if not torch.equal(found[~finite].nan_to_num(nan=7.0), truth[~finite].nan_to_num(nan=7.0)):
        return math.inf
    if not finite.any():
        return 0.0
    difference = float((found - truth)[finite].abs().max())
    largest = float(truth[finite].abs().max())
    if name in LOGARITHMS or name in SHARES:
        largest = max(largest, 1.0)
    return 0.0 if difference == 0 else difference / largest if largest else math.inf


def limit(dtype: torch.dtype, magnitude: float) -> float:
    """The error that is allowed: 1e-5 in float32, for scores whose terms add up to 32 at most.

    A score is rounded relative to its terms, and an error of a score is a relative error of its weight.
    """
    base = FLOAT64_LIMIT if dtype == torch.float64 else FLOAT32_LIMIT
    return base * max(1.0, magnitude / 32)


def agrees_with_itself(sight: Sight, within: float = 5e-6) -> torch.Tensor:
    """Whether all that a sight says fits together, and to rows that sum to 1; gives the map."""
    weights = sight.tile(slice(None), slice(None)).double()
    *_, queries, keys = weights.shape
    due = torch.where(sight.lse == -torch.inf, 0.0, 1.0).double() - sight.sink_share.double()
    assert torch.isfinite(weights).all()
    assert (weights.sum(-1) - due).abs().max() <= within
    assert (sight.total.double() - due).abs().max() <= within
    assert abs(sight.received().double().sum() - due.sum()) <= within * weights.shape[:-1].numel()
    assert abs(sight.picture(cell=(7, 5), reduce="sum").double().sum() - due.sum()) <= within * due.numel()
    assert (sight.received().double() - weights.sum(-2)).abs().max() <= 100 * within
    strongest = sight.top(3)
    assert (strongest.weights[..., 0].double() - weights.amax(-1)).abs().max() <= 100 * within
    share = (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
    known = (weights.sum(-1) > 1e-30).double()
    spread, far = torch.special.entr(share).sum(-1), (share * gaps(queries, keys).to(weights.device)).sum(-1)
    assert ((sight.entropy.double() - spread) * known).abs().max() <= 200 * within
    assert ((sight.distance.double() - far) * known / keys).abs().max() <= 200 * within
    return weights
