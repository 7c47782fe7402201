"""The rungs: each is what it says, sees only the past, and adds one thing to the rung below."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sightline.lessons.ladder import RUNGS, Sizes

SIZES = Sizes(width=12, heads=3, layers=2)
ALPHABET = 7
NAMES = [rung.name for rung in RUNGS]


def model(name: str, seed: int = 0) -> torch.nn.Module:
    made = RUNGS[NAMES.index(name)].model(ALPHABET, SIZES, seed).double()
    # Embeddings of the usual size, so that a softmax that is left out would show.
    torch.nn.init.normal_(made.embed.weight)
    return made


def characters(time: int = 9) -> Tensor:
    return torch.randint(ALPHABET, (2, time))


def test_the_rungs_and_their_order() -> None:
    assert NAMES == [
        "no communication",
        "average",
        "weight-free",
        "one head",
        "several heads",
        "feed-forward",
        "residuals and norms",
        "positions",
        "several layers",
    ]


def plain(name: str, made: torch.nn.Module, ids: Tensor) -> Tensor:
    """The first rungs once more, written out."""
    x = made.embed.weight[ids]
    time, width = x.shape[-2:]
    past = torch.ones(time, time).tril().bool()
    if name == "no communication":
        known = x
    elif name == "average":
        known = torch.cat((x, x.cumsum(1) / torch.arange(1, time + 1)[:, None]), -1)
    else:
        parts = (x, x, x)
        if name == "one head":
            head = made.gather
            parts = tuple(x @ linear.weight.T for linear in (head.query, head.key, head.value))
        q, k, v = parts
        scores = (q @ k.transpose(-1, -2) / width**0.5).masked_fill(~past, -torch.inf)
        known = torch.cat((x, scores.softmax(-1) @ v), -1)
    return known @ made.readout.weight.T + made.readout.bias


@pytest.mark.parametrize("name", NAMES[:4])
def test_the_first_rungs_written_out(name: str) -> None:
    made, ids = model(name), characters()
    torch.testing.assert_close(made(ids), plain(name, made, ids), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_no_rung_sees_the_future(name: str) -> None:
    made, ids = model(name), characters()
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % ALPHABET
    one, two = made(ids), made(changed)
    torch.testing.assert_close(one[:, :5], two[:, :5], atol=1e-12, rtol=0)
    assert not torch.allclose(one[:, 5:], two[:, 5:])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_rung_knows_of_the_past(name: str) -> None:
    """The first sees none of it, the next ones which characters were there, and with positions also where."""
    made, ids = model(name), characters()
    ids[:, :4] = torch.tensor([1, 2, 3, 4])
    turned = torch.cat((ids[:, :4].flip(1), ids[:, 4:]), 1)
    other = torch.cat((torch.full_like(ids[:, :4], 6), ids[:, 4:]), 1)
    last, after_turn, after_other = (made(x)[:, -1] for x in (ids, turned, other))
    assert torch.allclose(last, after_other, atol=1e-12) == (name == "no communication")
    assert torch.allclose(last, after_turn, atol=1e-12) == (name not in ("positions", "several layers"))


@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_the_same_seed_gives_the_same_weights_and_leaves_other_random_numbers_alone(rung: object) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = (rung.model(ALPHABET, SIZES, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), wanted)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_each_rung_has_at_least_the_parameters_of_the_one_below() -> None:
    counts = [sum(p.numel() for p in model(name).parameters()) for name in NAMES]
    assert counts == sorted(counts)
