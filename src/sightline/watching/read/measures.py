"""What a head is like, in numbers: every measure once, with its name, its meaning and how it is shown.

The census, the wall of the explorer, the atlas of a survey and portraits all read this list, so that one word means one
thing in all of them. Functions below take weights `[heads, queries, keys]` of one sequence and its ids `[tokens]`, and
give `[heads]`. They count only queries that have what is asked for: a previous token, an earlier occurrence. Without
one it is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sightline.lens.statistics import DISTANCE, ENTROPY, Shown

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_SHARE = (0.0, 1.0)
_ALL = (
    Shown(
        "focus",
        "focus",
        about="How far the weights are from all alike: 100 % is one key for each query, 0 % is all visible keys alike. "
        "It is 1 - entropy / log(visible keys), the mean over all queries.",
        range=_SHARE,
    ),
    Shown("first", "first token", about="The share of the weight that goes to the first token.", range=_SHARE),
    Shown("previous", "previous token", about="The share that goes to the token before the query.", range=_SHARE),
    Shown("same", "itself", about="The share that goes to the query's own token.", range=_SHARE),
    Shown("next", "next token", about="The share that goes to the token after the query.", range=_SHARE),
    Shown(
        "induction",
        "induction",
        about="The share that goes to what followed the last time the same token stood in the text; over the queries "
        "whose token stood there before. A head that copies has much of it.",
        range=_SHARE,
    ),
    Shown(
        "duplicate",
        "duplicate",
        about="The share that goes to the last time the same token stood in the text; over the queries whose token "
        "stood there before.",
        range=_SHARE,
    ),
    Shown(
        "retrieval",
        "retrieval",
        about="How often the head looks most at the very token that the model writes next, where it stood before.",
        range=_SHARE,
    ),
    DISTANCE.described._replace(about="How many tokens lie between a query and what it looks at: the weighted mean."),
    ENTROPY.described._replace(
        about="How spread the weights of a query are, in nats: 0 is one key, log(n) is n keys alike. The mean over all "
        "queries."
    ),
    Shown("influence", "influence", about="How much the head raises the loss, at first order; below 0 it lowers it."),
    Shown(
        "effect", "effect", about="How much the head raises the loss: with it less without it; below 0 it lowers it."
    ),
)
MEASURES = {measure.name: measure for measure in _ALL}
# Of these the heads that matter most are the lowest: the loss is less with them.
LOWERS = ("influence", "effect")


def named(*names: str) -> tuple[Shown, ...]:
    """Some measures, in this order.

    >>> [shown.label for shown in named("first", "same")]
    ['first token', 'itself']
    """
    return tuple(MEASURES[name] for name in names)


def previous(weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " heads"]:
    """The weight of the token before the query, the mean over all queries but the first.

    >>> previous(torch.eye(3).roll(-1, 1)[None].tril(-1), torch.arange(3))
    tensor([1.])
    """
    return _mean_at(weights, torch.arange(len(ids)) - 1)


def first(weights: Float[Tensor, "heads queries keys"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " heads"]:
    """The weight of the first token, the mean over all queries: each has one to look at."""
    return weights[:, :, 0].mean(-1)


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


def copies(strongest: Int[Tensor, "heads queries"], ids: Int[Tensor, " tokens"], prompt: int) -> Tensor | None:
    """Of all tokens written after a prompt, the share whose own copy earlier in the text was the query's strongest key.

    It is retrieval without a needle: the whole text is what may be copied from. None if nothing was written.

    >>> copies(torch.tensor([[0, 0, 1]]), torch.tensor([7, 8, 9, 8]), prompt=3)
    tensor([1.], dtype=torch.float64)
    """
    last = min(strongest.shape[-1], len(ids) - 1)
    if last <= prompt - 1:
        return None
    looked = strongest[:, prompt - 1 : last].clamp_min(0)
    return ((ids[looked] == ids[prompt : last + 1]) & (looked > 0)).double().mean(-1)


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


# What is read off a map.
OF_MAPS = {"previous": previous, "induction": induction, "first": first, "duplicate": duplicate}
