"""The sources' lessons: short scripts that a teacher can read and change, each with its text, numbers and pictures.

A lesson is a module here with a `TITLE`, its `SOURCES`, and a function `lesson(page)`. To add one, write the file and
put its name into `LESSONS`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, NamedTuple

from sightline.errors import InputError
from sightline.lessons.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["LESSONS", "Lesson", "Page", "find", "run"]

# In the order in which they are best read; each is a file of this name, with _ for -.
LESSONS = (
    "average",
    "dictionary",
    "basic",
    "table",
    "views",
    "normalisers",
    "masks",
    "heads",
    "aspects",
    "positions",
    "images",
    "stations",
    "fixed-or-dynamic",
    "kids-and-lions",
    "homonyms",
    "three-readings",
    "cutting",
    "dates",
)


class Lesson(NamedTuple):
    """One lesson: what it is called, which parts of the sources it shows, and the function that gives it.

    >>> find("basic").title
    'Self-attention without weights'
    """

    name: str
    title: str
    sources: tuple[str, ...]
    give: Callable[[Page], None]


def find(name: str) -> Lesson:
    """The lesson of a name, or an error that lists them.

    >>> find("average").sources
    ('S0.1', 'S0.2', 'S0.3')
    """
    if name not in LESSONS:
        near = difflib.get_close_matches(str(name), LESSONS, n=1)
        raise InputError(
            "there is no such lesson",
            expected=f"one of {', '.join(LESSONS)}",
            got=repr(name),
            hint=near[0] if near else LESSONS[0],
        )
    module = importlib.import_module(f"sightline.lessons.{name.replace('-', '_')}")
    return Lesson(name, module.TITLE, tuple(module.SOURCES), module.lesson)


def run(name: str, console: Console | None = None) -> Page:
    """Give a lesson: in the console if there is one, else on the page that is returned.

    >>> run("average").results["sentence"]
    'I am not interested in this workshop now'
    """
    lesson = find(name)
    page = Page(lesson.title, lesson.sources, console)
    lesson.give(page)
    return page
