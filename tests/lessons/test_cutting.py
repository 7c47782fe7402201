"""Cuts, each with the number that the model gives, one of them by hand."""

from __future__ import annotations

import pytest

from lesson_cases import give


def test_the_lesson() -> None:
    page, text = give("cutting")
    plain, found = page.results["plain"], page.results["found"]
    assert page.results["second"] == 9
    assert plain == found["nothing"] == page.results["after"] == pytest.approx(6.12, abs=0.02)
    edge = found["that one edge, to position 9"]
    assert edge == pytest.approx(3.33, abs=0.02)
    assert found["the whole head"] == pytest.approx(3.08, abs=0.02)
    assert min(found, key=found.get) == "position 1 for the last word, in all heads of all layers"
    assert page.results["kept"] != edge
    rows = [line.split() for line in text.splitlines()]
    assert ["that", "one", "edge,", "to", "position", "9", f"{edge:.3f}", f"{edge - plain:.3f}"] in rows
    assert "28,350" in text
    assert "Exercises: predict, then run" in text
