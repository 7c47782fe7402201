"""Numbers in addresses: `9,12` and `100:200`."""

from __future__ import annotations

import re

from sightline.web.problems import Problem

_SPAN = re.compile(r"(\d{1,12})(?::(\d{1,12}))?")
_LIST = re.compile(r"\d{1,12}(?:,\d{1,12})*")


def numbers(name: str, text: str, most: int) -> list[int]:
    """Whole numbers with commas between them, each once.

    >>> numbers("q", "9,12,9", most=8)
    [9, 12]
    """
    if not _LIST.fullmatch(text):
        raise Problem(
            422, f"{name} cannot be understood", expected="numbers such as 9,12", got=text[:40], hint=f"{name}=9"
        )
    found = list(dict.fromkeys(int(part) for part in text.split(",")))
    if len(found) > most:
        raise Problem(422, f"too many in {name}", expected=f"at most {most}", got=len(found), hint=f"fewer in {name}")
    return found


def span(name: str, text: str) -> slice:
    """One place or a stretch of them.

    >>> span("rows", "9"), span("rows", "100:200")
    (slice(9, 10, None), slice(100, 200, None))
    """
    found = _SPAN.fullmatch(text)
    if not found or (found[2] is not None and int(found[2]) <= int(found[1])):
        raise Problem(
            422, f"{name} cannot be understood", expected="9 or 100:200", got=text[:40], hint=f"{name}=100:200"
        )
    start = int(found[1])
    return slice(start, start + 1 if found[2] is None else int(found[2]))
