"""What else is asked for in the same pass may change the last bits of a statistic, and no more than that."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import sightline as sl

STATS = (
    "entropy",
    "max_score",
    "distance",
    "total",
    "received",
    sl.Top(4),
    sl.Picture(64, 48),
    sl.Picture(cell=(7, 5)),
)


def found(sight: sl.Sight, stat: object) -> torch.Tensor:
    if isinstance(stat, sl.Top):
        return sight.top(stat.n).weights
    return sight.kept[stat]


@pytest.mark.parametrize("size", [(2, 61, 67), (2, 300, 310), (4, 1031, 1100)], ids=["walk", "sweep", "compiled"])
@pytest.mark.parametrize("mask", [None, sl.causal()], ids=str)
def test_alone_or_together(size: tuple[int, int, int], mask: sl.Mask | None) -> None:
    heads, queries, keys = size
    torch.manual_seed(0)
    q, k = torch.randn(heads, queries, 32), torch.randn(heads, keys, 32)

    def look(*stats: object) -> sl.Sight:
        return sl.look(q, k, mask=mask, stats=stats)

    alone = {stat: found(look(stat), stat) for stat in STATS}
    groups = [STATS, *combinations(STATS[3:], 2)]
    for stats in groups:
        sight = look(*stats)
        again = look(*stats)
        for stat in stats:
            value, largest = found(sight, stat), alone[stat].abs().max()
            assert torch.equal(value, found(again, stat)), "the same requests give the same bits"
            assert (value - alone[stat]).abs().max() <= 4e-6 * largest, stat
