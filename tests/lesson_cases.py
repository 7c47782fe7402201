"""What the tests of lessons share: the text of a lesson, the rows of its tables, and softmax in numpy."""

from __future__ import annotations

import io

import numpy as np

from sightline.lessons import Page, find
from sightline.steps.terminal import make_console


def give(name: str) -> tuple[Page, str]:
    """A lesson, and what the terminal shows of it."""
    out = io.StringIO()
    lesson = find(name)
    page = Page(lesson.title, lesson.sources, make_console(file=out, width=120))
    lesson.give(page)
    return page, out.getvalue()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def fixed(x: float, digits: int) -> str:
    """A number with so many decimals, without the sign of zero."""
    text = f"{x:.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def small(x: float, digits: int) -> str:
    """The same for weights: what would round to nothing stands in powers of ten."""
    return f"{x:.0e}" if 0 < abs(x) < 0.5 * 10**-digits else fixed(x, digits)


def rows(text: str, query: str) -> list[list[str]]:
    """The rows of the table of one query, cell by cell; the last begins with `sum`."""
    part = text.split(f"Query: {query}\n", 1)[1].split("differ by at most")[0]
    lines = [line.split() for line in part.splitlines()]
    start = next(i for i, line in enumerate(lines) if line and set(line[0]) == {"─"})
    return [line for line in lines[start + 1 :] if line and line[:2] != ["The", "sum"]]
