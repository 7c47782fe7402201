"""The five teaching documents that lessons follow: what the tags in front of their parts stand for."""

from __future__ import annotations

from collections.abc import Iterable

DOCUMENTS = {
    "S0": "a workshop, from averages to attention",
    "S1": "a lecture, attention as a soft dictionary",
    "S2": "a course, the computation word by word",
    "S3": "lecture notes, vector view and matrix view",
    "S4": "a course, the mechanism without weights",
}


def in_words(tags: Iterable[str]) -> str:
    """The documents of some parts, each with its parts.

    >>> in_words(("S0.1", "S0.2", "S4.3"))
    'a workshop, from averages to attention (S0.1, S0.2); a course, the mechanism without weights (S4.3)'
    """
    parts: dict[str, list[str]] = {}
    for tag in tags:
        parts.setdefault(tag.partition(".")[0], []).append(tag)
    return "; ".join(f"{DOCUMENTS[document]} ({', '.join(told)})" for document, told in parts.items())
