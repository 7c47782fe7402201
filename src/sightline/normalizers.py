"""How scores become weights: softmax, or one of three others (S0.1, S3.3).

Each weight is a function of its own score and of one number per row, so a tile of the map can be computed
alone. For softmax that number is the row's log-sum-exp; for the others it is how many keys the row may see.

| name      | weight of a visible key                     | rows sum to |
| --------- | ------------------------------------------- | ----------- |
| `softmax` | exp(score - lse)                            | 1           |
| `relu`    | relu(score) / visible                       | anything    |
| `sigmoid` | sigmoid(score - log(visible))               | about 1     |
| `uniform` | 1 / visible: the plain average of the past  | 1           |

A hidden key has weight 0, and so has every key of a row that may see nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sightline.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class Normalizer:
    """A rule from scores to weights, tile by tile.

    `weights(scores, row, visible)`: scores `[..., rows, columns]` with -inf where hidden, `row` `[..., rows, 1]`
    the row's number, `visible` a boolean tile or None if all of it is visible.
    `slope(weights, scores, row, visible)`: the derivative of each weight by its own score, the row's number held fixed;
    None if scores do not matter.
    """

    name: str
    by_row: str  # "lse" or "visible": the one number per row that the weights need
    weights: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    slope: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor | None]

    def __reduce__(self) -> tuple[Callable[[str], Normalizer], tuple[str]]:
        return get, (self.name,)  # there is one of each, and a copy is that one

    @property
    def is_softmax(self) -> bool:
        """Whether rows are coupled through their log-sum-exp."""
        return self.by_row == "lse"


def _softmax(scores: Tensor, lse: Tensor, visible: Tensor | None) -> Tensor:
    # A row that sees nothing has lse -inf: -inf - -inf would be NaN, so it is compared with 0 instead.
    return (scores - lse.masked_fill(lse == -torch.inf, 0.0)).exp()


def _relu(scores: Tensor, count: Tensor, visible: Tensor | None) -> Tensor:
    return scores.relu() / count.clamp_min(1)


def _sigmoid(scores: Tensor, count: Tensor, visible: Tensor | None) -> Tensor:
    return (scores - count.clamp_min(1).log()).sigmoid()


def _uniform(scores: Tensor, count: Tensor, visible: Tensor | None) -> Tensor:
    share = (1 / count.clamp_min(1)).expand_as(scores)
    return share if visible is None else share * visible


NORMALIZERS = {
    n.name: n
    for n in (
        Normalizer("softmax", "lse", _softmax, lambda w, s, lse, visible: w),
        Normalizer("relu", "visible", _relu, lambda w, s, count, visible: (s > 0) / count.clamp_min(1)),
        Normalizer("sigmoid", "visible", _sigmoid, lambda w, s, count, visible: w * (1 - w)),
        Normalizer("uniform", "visible", _uniform, lambda w, s, count, visible: None),
    )
}


def get(name: str) -> Normalizer:
    """The normaliser of a name, or an error that lists the names.

    >>> get("softmax").is_softmax
    True
    """
    if not isinstance(name, str):
        raise InputTypeError(
            "the normalizer is given by name",
            expected=f"one of {', '.join(NORMALIZERS)}",
            got=type(name).__name__,
            hint='normalizer="softmax"',
        )
    if name not in NORMALIZERS:
        raise InputError(
            "unknown normalizer",
            expected=f"one of {', '.join(NORMALIZERS)}",
            got=repr(name),
            hint='normalizer="softmax"',
        )
    return NORMALIZERS[name]


def normalize(
    scores: Float[Tensor, "*any queries keys"],
    visible: Bool[Tensor, "*any queries keys"],
    name: str = "softmax",
    sink: Float[Tensor, "*any"] | None = None,
) -> Float[Tensor, "*any queries keys"]:
    """The weights of whole rows of scores, for any normaliser: the definition.

    `sink` is one more logit per row that takes weight and has no value (softmax only).

    >>> normalize(torch.tensor([[0.0, 1.0]]), torch.tensor([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    normalizer = get(name)
    scores = scores.masked_fill(~visible, -torch.inf)
    if not normalizer.is_softmax:
        row = visible.sum(-1, keepdim=True).to(scores.dtype).expand(*scores.shape[:-1], 1)
        return normalizer.weights(scores, row, visible).masked_fill(~visible, 0.0)
    if not scores.shape[-1]:
        return scores
    largest = scores.amax(-1, keepdim=True)
    if sink is not None:
        sink = sink[..., None].to(scores.dtype)
        largest = torch.maximum(largest, sink)
    # The largest score only keeps exp in range; a row that sees nothing is compared with 0, since -inf - -inf is NaN.
    level = largest.detach().masked_fill(largest == -torch.inf, 0.0)
    shares = (scores - level).exp()
    total = shares.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - level).exp()
    # Once more, for a row that is NaN: what is hidden from it has no weight either.
    return (shares / total.masked_fill(total == 0, 1.0)).masked_fill(~visible, 0.0)
