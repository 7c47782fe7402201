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
    # Each station silent in turn: that of the lesson has the weights of the table.
    best = int(weights[:, near].sum(1).argmax())
    query = int(stations.kilometres(page.results["places"], stations.LINE).argmin())
    torch.testing.assert_close(page.results["around"][query], weights[best, near].sum())
    # A guess that repeats the nearest station is far better than the mean, and than twelve steps.
    assert page.results["copied"] == pytest.approx(0.23, abs=0.02)
    assert page.results["error"] > page.results["copied"]
    assert "is not done learning" in " ".join(text.split())


def test_what_the_error_is_worth_by_hand() -> None:
    places = stations.scattered(30)
    apart = torch.stack([stations.kilometres(places, (float(a), float(b))) for a, b in places])

    class Mean(torch.nn.Module):
        def forward(self, values: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(values)

    model = Mean()
    model.places = places
    error, copied = stations.errors(model, apart)
    generator = torch.Generator().manual_seed(4321)
    values = stations.fields(stations.FRESH, places, generator)
    hidden = torch.rand(values.shape, generator=generator) < stations.HIDDEN
    misses = []
    for field, silent in zip(values, hidden):
        for i in silent.nonzero().flatten().tolist():
            speak = [j for j in range(30) if not silent[j]]
            misses.append((field[i] - field[min(speak, key=lambda j: float(apart[i, j]))]) ** 2)
    assert copied == pytest.approx(float(torch.stack(misses).mean()), rel=1e-5)
    assert error == pytest.approx(float((values[hidden] ** 2).mean()), rel=1e-5)
    assert [stations.beside(e, 0.2).split()[1] for e in (0.1, 0.2, 0.3)] == ["it"] * 3
    assert len({stations.beside(e, 0.2) for e in (0.1, 0.2, 0.3)}) == 3
