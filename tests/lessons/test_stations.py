"""The lesson on stations, with a short training: places on the sphere, fields, and what is said of the weights."""

from __future__ import annotations

import pytest
import torch

from lesson_cases import give
from sightline.lessons import stations
from sightline.positions.latlon import unit_vector


def test_stations_are_spread_evenly_over_the_sphere() -> None:
    places = stations.scattered(4000, seed=1)
    assert unit_vector(places).mean(0).abs().max() < 0.05
    assert (places[:, 0].abs() < 30).float().mean() == pytest.approx(0.5, abs=0.03)  # half of a sphere's surface


def test_a_short_training_and_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stations, "STEPS", 12)
    page, text = give("stations")
    weights, near = page.results["weights"], page.results["near"]
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    assert weights.shape == (4, 240)
    across = near & (page.results["places"][:, 1] < 0)
    assert across.any()
    assert not across.all()
    rows = [line.split() for line in text.splitlines()]
    for head in range(4):
        before, after, beyond = (
            float(maps[head, chosen].sum())
            for maps, chosen in ((page.results["before"], near), (weights, near), (weights, across))
        )
        assert [str(head), f"{before:.3f}", f"{after:.3f}", f"{beyond:.3f}"] in rows
    assert page.to_html().count("<img") == 2
