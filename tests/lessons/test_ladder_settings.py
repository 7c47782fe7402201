"""The budget: the same for all, and stops that cover it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import InputError, SightlineError
from sightline.lessons.ladder import QUICK, Settings


@given(st.integers(1, 5000))
def test_every_budget_is_looked_at_and_kept_at_its_end(steps: int) -> None:
    settings = Settings(steps=steps)
    assert settings.evaluations[-1] == settings.stops[-1] == steps
    assert settings.evaluations[0] >= 1
    assert set(settings.evaluations) <= set(settings.stops)
    assert settings.stops == sorted(set(settings.stops))


@given(st.integers(1, 5000))
def test_rates_rise_and_fall_and_stay_above_nothing(steps: int) -> None:
    settings = Settings(steps=steps)
    rates = [settings.rate(step) for step in range(steps)]
    assert all(0 < rate <= settings.learning_rate for rate in rates)
    highest = rates.index(max(rates))
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)


@pytest.mark.parametrize("name", ["steps", "batch", "context", "width", "heads", "layers", "sample", "threads"])
def test_sizes_must_be_whole_and_positive(name: str) -> None:
    for value in (0, -1, 1.5, True, "1"):
        with pytest.raises(SightlineError, match=name):
            Settings(**{name: value})


def test_a_seed_must_not_be_negative() -> None:
    with pytest.raises(InputError, match="seed is too small"):
        Settings(seed=-1)


def test_quick_is_a_budget() -> None:
    assert Settings(**QUICK).characters < Settings().characters / 100
