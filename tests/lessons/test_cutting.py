"""Cuts, each with the number that the model gives, one of them by hand."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from lesson_cases import give
from sightline.lessons import cutting


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
    # The same edge in thirty sentences: one of them is the lesson's own, and one is run alone here.
    plain_of, cut, control = page.results["other names"].values()
    assert len(plain_of) == 30
    assert plain_of[0] == pytest.approx(plain, abs=0.01)
    assert cut[0] == pytest.approx(edge, abs=0.01)
    assert ((plain_of - cut) > (plain_of - control).abs()).all()
    assert "In 30 of 30 sentences the cut took more than the control did" in " ".join(text.split())
    model, tokenizer = sl.models.load("smollm2")
    ids = torch.tensor([tokenizer.encode(cutting.TEXT.replace("Mary", "Tom").replace("John", "Sarah")).ids])
    tom, sarah = (tokenizer.encode(name).ids[0] for name in (" Tom", " Sarah"))
    answer = sl.targets.logit(tom, than=sarah)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=-1, keys=9, heads=[(23, 3)])
        assert float(answer(model(ids))) == pytest.approx(float(cut[-1]), abs=0.01)  # Tom and Sarah come last


def test_the_exercises_run_and_have_answers() -> None:
    model, tokenizer = sl.models.load("smollm2")
    ids = torch.tensor([tokenizer.encode(cutting.TEXT).ids])
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    answer = sl.targets.logit(mary, than=john)

    def asked(do: str) -> float:
        with torch.no_grad(), sl.edit(model) as edits:
            eval(do, {"edits": edits})
            return float(answer(model(ids)))

    cut = 6.12 - 3.33
    assert 0 < asked("edits.boost(4.0, keys=9, queries=-1, heads=[(23, 3)])") - 6.12 < cut  # less than the cut took
    assert asked("edits.cut(queries=9, keys=3)") < 5.5  # the second John no longer knows of the first
    assert asked('edits.force("uniform", heads=[(23, 3)])') < 4.5  # much as without the head
