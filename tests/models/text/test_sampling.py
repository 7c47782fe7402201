from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.models.text.sampling import Sampler


def draws(logits: Tensor, times: int = 4000, **options: object) -> Tensor:
    """How often each token is drawn, as a share."""
    sampler = Sampler(1, seed=0, **options)  # type: ignore[arg-type]
    tokens = torch.stack([sampler(logits[None])[0] for _ in range(times)])
    return torch.bincount(tokens, minlength=len(logits)) / times


def test_without_temperature_the_likeliest_is_taken() -> None:
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Sampler(5)(logits), logits.argmax(-1))
    assert torch.equal(Sampler(5, top_k=3, top_p=0.5, seed=1)(logits), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_probabilities(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    expected = (logits.double() / temperature).softmax(-1)
    # Three standard deviations of a share of 4000 draws.
    slack = 3 * (expected * (1 - expected) / 4000).sqrt() + 1e-9
    assert ((draws(logits, temperature=temperature) - expected).abs() <= slack).all()


def test_top_k_keeps_the_likeliest() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0])
    got = draws(logits, temperature=1.0, top_k=2)
    assert got[0] == got[2] == 0
    torch.testing.assert_close(got[1], torch.tensor([3.0, 2.0]).softmax(0)[0], atol=0.025, rtol=0)
    assert torch.equal(draws(logits, 50, temperature=5.0, top_k=1), torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert draws(logits, 50, temperature=1.0, top_k=99).sum() == 1


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    assert (draws(logits, 400, temperature=1.0, top_p=0.45) > 0).tolist() == [False, True, False, False]
    assert (draws(logits, 400, temperature=1.0, top_p=0.55) > 0).tolist() == [False, True, True, False]
    got = draws(logits, temperature=1.0, top_p=0.75)
    torch.testing.assert_close(got[1], torch.tensor(0.5 / 0.8), atol=0.025, rtol=0)
    assert (draws(logits, 400, temperature=1.0, top_p=0.85) > 0).sum() >= 3


def test_a_row_draws_what_it_draws_alone_with_its_own_seed() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together = Sampler(3, temperature=1.0, top_p=0.9, seed=7)
    alone = [Sampler(1, temperature=1.0, top_p=0.9, seed=7 + row) for row in range(3)]
    for _ in range(10):
        assert together(logits).tolist() == [one(logits[row : row + 1]).item() for row, one in enumerate(alone)]


def test_without_a_seed_torch_decides() -> None:
    logits = torch.zeros(1, 1000)

    def run() -> list[int]:
        sampler = Sampler(1, temperature=1.0)
        return [int(sampler(logits)) for _ in range(5)]

    torch.manual_seed(3)
    first = run()
    assert run() != first
    torch.manual_seed(3)
    assert run() == first


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert 0 <= int(Sampler(2, temperature=1.0, seed=seed)(torch.zeros(2, 9))[1]) < 9


@pytest.mark.parametrize(
    "options, text",
    [
        ({"temperature": -0.1}, "temperature is out of range"),
        ({"temperature": float("nan")}, "temperature is out of range"),
        ({"temperature": float("inf")}, "temperature is out of range"),
        ({"top_p": 0.0}, "top_p keeps nothing"),
        ({"top_p": 1.5}, "0 to 1"),
        ({"top_k": 0}, "top_k is too small"),
    ],
)
def test_impossible_options_are_refused(options: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        Sampler(1, **options)


@pytest.mark.parametrize("options", [{"temperature": "hot"}, {"top_k": 1.5}, {"seed": 0.5, "temperature": 1.0}])
def test_options_of_another_kind_are_refused(options: dict) -> None:
    with pytest.raises(InputTypeError):
        Sampler(1, **options)
