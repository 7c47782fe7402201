"""Measures of heads, each one number from 0 to 1: from the maps of a run and the ids of its tokens.

Each takes weights `[heads, queries, keys]` of one sequence and its ids `[tokens]`, and gives `[heads]`. They count only
queries that have what is asked for: a previous token, an earlier occurrence. Without one it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Measure(NamedTuple):
    """A measure, and what it says of a head."""

    name: str
    of: Callable[[Tensor, Tensor], Tensor]
    about: str


def previous(weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " heads"]:
    """The weight of the token before the query, the mean over all queries but the first.

    >>> previous(torch.eye(3).roll(-1, 1)[None].tril(-1), torch.arange(3))
    tensor([1.])
    """
    return _mean_at(weights, torch.arange(len(ids)) - 1)


def first(weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " heads"]:
    """The weight of the first token, the mean over all queries but the first."""
    return weights[:, 1:, 0].mean(-1) if len(ids) > 1 else weights.new_full(weights.shape[:1], torch.nan)


def duplicate(weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " heads"]:
    """The weight of the latest earlier occurrence of the query's own token."""
    return _mean_at(weights, earlier(ids))


def induction(weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " heads"]:
    """The weight of what followed the latest earlier occurrence of the query's own token."""
    at = earlier(ids)
    following = torch.where(at >= 0, at + 1, -1)
    return _mean_at(weights, following)


def retrieval(
    weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"], needle: range, written: range
) -> Float[Tensor, " heads"]:
    """The share of a needle's tokens that a head copies while the model writes.

    Of every written token, the query is the position before it. A head copies it if its strongest key lies in the
    needle and holds that very token (Wu et al., https://arxiv.org/abs/2404.15574).

    >>> ids, weights = torch.tensor([7, 8, 9, 8]), torch.zeros(1, 4, 4)
    >>> weights[0, 2, 1] = 1.0
    >>> retrieval(weights, ids, needle=range(1, 2), written=range(3, 4))
    tensor([1.])
    """
    copied = torch.zeros(weights.shape[0], len(ids), dtype=torch.bool)
    for place in written:
        key = weights[:, place - 1].argmax(-1).cpu()
        hit = (key >= needle.start) & (key < needle.stop) & (ids.cpu()[key] == ids[place].cpu())
        copied[hit.nonzero().flatten(), key[hit]] = True
    wanted = torch.isin(ids[needle.start : needle.stop], ids[written.start : written.stop])
    return copied.sum(-1) / max(1, int(wanted.sum()))


def earlier(ids: Int[Tensor, " tokens"]) -> Int[Tensor, " tokens"]:
    """Where each token stood last before, or -1.

    >>> earlier(torch.tensor([5, 6, 5, 5]))
    tensor([-1, -1,  0,  2])
    """
    last: dict[int, int] = {}
    found = []
    for place, token in enumerate(ids.tolist()):
        found.append(last.get(token, -1))
        last[token] = place
    return torch.tensor(found, dtype=torch.long)


def _mean_at(weights: Tensor, keys: Tensor) -> Tensor:
    """The mean weight of one key of each query; those without one (-1) do not count."""
    some = (keys >= 0).nonzero().flatten()
    if not len(some):
        return weights.new_full(weights.shape[:1], torch.nan)
    return weights[:, some.to(weights.device), keys[some].to(weights.device)].mean(-1)


MEASURES = (
    Measure("previous", previous, "looks at the token before"),
    Measure("induction", induction, "looks at what followed the same token before"),
    Measure("first", first, "looks at the first token"),
    Measure("duplicate", duplicate, "looks at the same token before"),
)
