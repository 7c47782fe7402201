"""Bookmarks of a run: places with a sentence. Those of a saved run lie in its folder, beside its index."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from sightline.errors import InputError
from sightline.explore.run import Run
from sightline.files import write_whole

FILE = "bookmarks.json"
MOST, LONGEST, BYTES = 200, 300, 1 << 20
_FIELDS = ("layer", "head", "q", "k", "text")

Mark = dict[str, Any]


def read(run: Run) -> list[Mark]:
    """The bookmarks of a run; a file that does not hold is as if there were none."""
    if run.folder is None:
        return list(run.marks)
    path = run.folder / FILE
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode) or path.stat().st_size > BYTES:
            return []
        return checked(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError, RecursionError):
        return []


def write(run: Run, marks: list[Mark]) -> None:
    """Keep these bookmarks in place of those before: with the run, and in its folder where it has one."""
    marks = checked(marks)
    if run.folder is None:
        run.marks = marks
        return
    text = json.dumps(marks, ensure_ascii=False)
    try:
        write_whole(run.folder / FILE, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise InputError(
            "the bookmarks cannot be written into the saved run",
            expected="a folder that may be written to",
            got=error.strerror or type(error).__name__,
            hint="they stay in the address of the page: copy it",
        ) from error


def checked(marks: Any) -> list[Mark]:
    """Bookmarks as they may be kept, or an error that says what is wrong.

    >>> checked([{"layer": 3, "head": 1, "q": 10, "k": 2, "text": "they are the kids"}])[0]["text"]
    'they are the kids'
    """
    if not isinstance(marks, list) or len(marks) > MOST or not all(_sound(mark) for mark in marks):
        raise InputError(
            "these are no bookmarks",
            expected=f"at most {MOST}, each with {', '.join(_FIELDS)}: places from 0 on, a text of {LONGEST} letters",
            got=repr(marks)[:80],
            hint='[{"layer": 3, "head": 1, "q": 10, "k": 2, "text": "they are the kids"}]',
        )
    return [{name: mark[name] for name in _FIELDS} for mark in marks]


def _sound(mark: Any) -> bool:
    if not isinstance(mark, dict) or set(mark) != set(_FIELDS) or not isinstance(mark["text"], str):
        return False
    places = [mark["layer"], mark["head"], *(mark[name] for name in ("q", "k") if mark[name] is not None)]
    return len(mark["text"]) <= LONGEST and all(type(place) is int and 0 <= place < 1 << 31 for place in places)
