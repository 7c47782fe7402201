"""How often each head of a model is right, what chance gives to the best of them, and whether the best is so again."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hits:
    """Hits of all heads over groups of cases; a head that does not care is right in half of them.

    >>> right = torch.tensor([[[0.5, 1.0]], [[0.5, 0.75]]])  # two groups, one layer of two heads
    >>> hits = Hits(right, torch.zeros(2, 1, 2), count=8)
    >>> hits.best(), hits.rates.tolist()
    ([(0, 1)], [[0.5, 0.875]])
    """

    right: Tensor  # [groups, layers, heads]: the share of cases in which the head is right
    weights: Tensor  # [2, layers, heads]: mean weight on what is right, and on the other
    count: int  # of cases in all

    @property
    def rates(self) -> Tensor:
        """Over all groups, `[layers, heads]`."""
        return self.right.mean(0)

    def best(self, count: int = 1) -> list[tuple[int, int]]:
        """The heads that are right most often, as (layer, head); of equals the first."""
        order = self.rates.flatten().argsort(descending=True, stable=True)[:count]
        return [divmod(i, self.rates.shape[1]) for i in order.tolist()]

    @property
    def equals(self) -> int:
        """How many heads are right as often as the best."""
        return int((self.rates > self.rates.max() - 1e-6).sum())

    def by_chance(self) -> tuple[float, float]:
        """How often the best of all heads would be right if groups told nothing, and how probable a best like ours is.

        A head that does not care would be right as often as wrong when right and wrong change places. So we change
        them in every possible choice of groups (4,096 for twelve) and take the best head each time. Heads that are
        alike stay alike, and so do the cases of a group.
        """
        lead = self.right.flatten(1) - 0.5  # [groups, heads]
        signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=len(lead))), dtype=lead.dtype)
        best = (signs @ lead).amax(1) / len(lead)
        return 0.5 + float(best.mean()), float((best >= best[0] - 1e-9).double().mean())

    def held_out(self) -> list[tuple[int, int, float]]:
        """The best head of one half of the groups, and how often it is right in the other; then the other way."""
        found = []
        for part in (0, 1):
            chosen, tested = self.right[part::2].mean(0), self.right[1 - part :: 2].mean(0)
            layer, head = divmod(int(chosen.argmax()), chosen.shape[1])
            found.append((layer, head, float(tested[layer, head])))
        return found

    @property
    def holds(self) -> bool:
        """Whether the best head is right in three of four cases, also in those that did not choose it."""
        layer, head = self.best()[0]
        return float(self.rates[layer, head]) >= 0.75 and all(share >= 0.75 for *_, share in self.held_out())


def counted(right: Tensor, other: Tensor, groups: int) -> Hits:
    """Hits from the weights on what is right and on the other, each `[cases, layers, heads]`, group after group."""
    shares = (right > other).double().unflatten(0, (groups, -1)).mean(1)
    return Hits(shares, torch.stack((right.mean(0), other.mean(0))), len(right))
