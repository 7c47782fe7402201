"""The lesson on pictures, with a short training: what is said is what was computed."""

from __future__ import annotations

import pytest
import torch

from lesson_cases import give
from sightline.lessons import images


@pytest.mark.parametrize("found, says", [(True, "It has found the mirror image"), (False, "has not found the mirror")])
def test_the_lesson_says_what_was_learned(found: bool, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "train", lambda steps: (images.Vision().eval(), 0.125))
    looks = [torch.full((4, 8, 8), 1 / 64) for _ in range(2)]
    if found:
        looks[1][2] = 0.1 / 63
        looks[1][2, 2, 6] = 0.9  # the mirror image of row 2, column 1
    monkeypatch.setattr(images, "mirrored", lambda model, pictures: torch.full((4, 8, 64), 0.5))
    monkeypatch.setattr(images, "look", lambda model, image: looks.pop(0))
    _, text = give("images")
    folded = " ".join(text.split())
    assert says in folded
    assert "0.12 of the variance" in folded
    assert ["2", "0.016", "0.900" if found else "0.016"] in [line.split() for line in text.splitlines()]


def test_a_short_training_lowers_the_error_and_the_page_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "STEPS", 12)
    page, text = give("images")
    assert page.results["weights"].shape == (4, 8, 8)
    torch.testing.assert_close(page.results["weights"].sum((1, 2)), torch.ones(4))
    assert page.results["error"] < 1.5
    assert "(1, 64, 192)" in text
    assert page.to_html().count("<img") == 1
    assert page.results["others"].shape == (8, 64)


def test_every_patch_is_hidden_in_turn() -> None:
    torch.manual_seed(0)
    model = images.Vision().eval()
    pictures = images.pictures(2, torch.Generator().manual_seed(7))
    found = images.mirrored(model, pictures)
    assert found.shape == (4, 2, 64)
    row, column = images.QUERY
    alone = images.look(model, pictures[1])[:, row, images.COLUMNS - 1 - column]
    torch.testing.assert_close(found[:, 1, row * images.COLUMNS + column], alone)
