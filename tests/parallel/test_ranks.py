"""Attention and sights over two and four processes on gloo: equal to one process, and what goes wrong is named."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import rank_checks
import rank_checks_long
import rank_world
import sightline as sl
from sightline.errors import InputTypeError
from sightline.parallel.places import pieces
from sightline.parallel.ranks import Ranks


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[str]]]:
    return rank_world.outcomes([2, 4], tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    "name, size",
    [(name, size) for name in rank_checks.checks(2) for size in (2, 4)]
    + [(name, 2) for name in rank_checks_long.checks(2)],
)
def test_ranks(said: dict[int, dict[str, list[str]]], name: str, size: int) -> None:
    ranks = range(size - 1) if name.endswith("_dies") else range(size)
    assert name in said[size], "no rank came so far"
    wrong = {rank: said[size][name][rank] for rank in ranks if said[size][name][rank] != "ok"}
    assert not wrong, "\n".join(f"rank {rank}: {what}" for rank, what in wrong.items())


def test_one_process_is_a_group_of_one() -> None:
    assert Ranks().size == 1
    q, k, v = torch.randn(3, 2, 9, 8).unbind()
    out, sight = sl.parallel.observe(q, k, v, mask=sl.causal(), stats=("entropy", "received"))
    wanted, whole = sl.observe(q, k, v, mask=sl.causal())
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(sight.entropy, whole.entropy)
    torch.testing.assert_close(sight.received(), whole.received())


def test_what_is_no_group_is_refused() -> None:
    q = torch.randn(4, 8)
    with pytest.raises(InputTypeError, match="a group is one of torch"):
        sl.parallel.attention(q, q, q, group="all")
    assert not dist.is_initialized()


@pytest.mark.parametrize("balance", ["contiguous", "head-tail"])
@pytest.mark.parametrize("lengths", [[3, 2], [5, 4, 4], [0, 1, 0, 7], [2, 2, 2, 2]])
def test_pieces_cover_the_sequence_once(lengths: list[int], balance: str) -> None:
    found = pieces(lengths, balance)
    covered = sorted(
        place for own in found for piece in own for place in range(piece.start, piece.start + piece.length)
    )
    assert covered == list(range(sum(lengths)))
    assert [sum(piece.length for piece in own) for own in found] == lengths
