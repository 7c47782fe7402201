"""The map in the terminal: the right sign at the right place, beside the right words."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from rich.console import Console

import sightline as sl
from explore_cases import Sights, exact, make_run, sights, words
from sightline.cli.picture import SHADES, picture
from sightline.explore.run import Run


def drawn(run: Run, layer: int, head: int, width: int = 80, color: str | None = None) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, color_system=color, force_terminal=color is not None, highlight=False
    )
    console.print(picture(run, layer, head, console))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


@pytest.mark.parametrize("tokens", [1, 7, 13, 32])
def test_every_cell_has_the_sign_of_its_weight(tokens: int) -> None:
    run = make_run(sights(tokens), words(tokens))
    heading, ticks, *lines, legend = drawn(run, 1, 2)
    assert heading == "L1 H2: queries down, keys across, by position"
    assert ticks.split() == [str(i) for i in range(0, tokens, 5)]
    assert len(lines) == tokens
    weights, floor = exact(run, 1, 2).numpy(), 0.1 / tokens
    for i, line in enumerate(lines):
        assert line[:15].split() == [str(i), words(tokens)[i]]
        signs = line[15:].ljust(2 * tokens)
        for j in range(tokens):
            assert signs[2 * j] == signs[2 * j + 1]
            if np.isnan(weights[i, j]) or j > i:
                assert signs[2 * j] == " "
                continue
            place = np.clip(np.log(max(weights[i, j], 1e-12) / floor) / -np.log(floor), 0, 1)
            nearest = [min(int(np.clip(place + by, 0, 1) * 10), 9) for by in (-0.02, 0, 0.02)]  # bytes are rounded
            assert SHADES.index(signs[2 * j]) in nearest
    assert "blank below" in legend


def test_keys_of_another_text_and_more_of_them() -> None:
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8)
    run = make_run(Sights(cross=sl.look(q, k)), words(5), memory=words(9))
    _, ticks, *lines, _ = drawn(run, 0, 1)
    assert ticks.split() == ["0", "5"]
    assert len(lines) == 5


@pytest.mark.parametrize("color", [None, "truecolor"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_long_map_is_pooled_and_says_so(color: str | None, width: int) -> None:
    run = make_run(sights(301), words(301))
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in drawn(run, 0, 0, width, color)]
    assert max(map(len, lines)) <= width
    found = re.search(r"mean of (\d+) x (\d+)", " ".join(lines))
    assert found is not None
    assert found[1] == found[2]
    marks = [int(line.split()[0]) for line in lines if re.match(r" *\d+ +[^\d ]", line)]
    step = 4 * int(found[1]) * (1 if color is None else 2)
    assert marks
    assert marks == [step * i for i in range(len(marks))]
    assert ("▀" in "".join(lines)) == (color is not None)


def test_a_token_cannot_move_the_cursor() -> None:
    run = make_run(sights(3), ["a\x1b[2J", "\r", "b\nc"])
    text = "\n".join(drawn(run, 0, 0))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "a?[2J" in text
