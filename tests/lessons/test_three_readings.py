"""Three readings of a row: by hand from q, k, v and autograd, and the sentence that the design fixes."""

from __future__ import annotations

import pytest
import torch

from lesson_cases import give
from sightline.lessons import Page


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("three-readings")


def test_readings_agree_with_each_other(given: tuple[Page, str]) -> None:
    page, _ = given
    rows = page.results["rows"]
    assert page.results["answer"] == pytest.approx(6.12, abs=0.02)
    assert rows["weights"].sum() == pytest.approx(1.0, abs=1e-5)
    assert page.results["best"] == 9
    assert page.results["words"][9] == "John"
    # Carried is the weight times one length for each key, whatever the query: never negative, 0 where the weight is.
    assert (rows["norms"] >= 0).all()
    # Position 0 is looked at more than Mary, and carries less, and matters less.
    assert rows["weights"][0] > 2 * rows["weights"][1]
    assert rows["norms"][0] < rows["norms"][1] / 2
    assert rows["influence"][0].abs() < rows["influence"][1].abs() / 2


def test_influence_is_close_to_what_the_model_loses(given: tuple[Page, str]) -> None:
    page, text = given
    exact, estimate = page.results["effects"][23, 3]
    assert exact == pytest.approx(3.04, abs=0.02)
    assert estimate == pytest.approx(exact, rel=0.3)
    # The last word's row is nearly all of the head: nothing else of it is read by the answer in so late a layer.
    assert page.results["rows"]["influence"].sum() == pytest.approx(estimate, rel=0.15)
    effects = page.results["effects"]
    assert sorted(effects, key=lambda at: effects[at][0]) == sorted(effects, key=lambda at: effects[at][1])
    assert f"loses {effects[16, 5][0]:.2f}, and the estimate was {effects[16, 5][1]:.2f}" in " ".join(text.split())
    weights, worth = page.results["other"]
    assert weights.max() > 0.25
    assert worth.abs().max() < 0.1
    folded = " ".join(text.split())
    assert f"{page.results['rows']['influence'][9]:.2f} of 6.12" in folded
    assert "Exercises: predict, then run" in text
    assert torch.isfinite(torch.stack(list(page.results["rows"].values()))).all()
