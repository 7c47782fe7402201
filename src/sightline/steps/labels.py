"""Words and tokens as labels: given by the user, found again, and safe to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from sightline.errors import InputError, InputTypeError

# Blanks that a reader could not see.
_VISIBLE = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣", "": "∅"}


def read_labels(name: str, labels: object, count: int) -> list[str]:
    """One label for each token: a list, a sentence that is split at its blanks, or the positions if None.

    >>> read_labels("labels", "Action gets results", 3)
    ['Action', 'gets', 'results']
    >>> read_labels("labels", None, 2)
    ['0', '1']
    """
    if labels is None:
        return [str(i) for i in range(count)]
    words = labels.split() if isinstance(labels, str) else labels
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise InputTypeError(
            f"{name} are words",
            expected="a list of str, or one sentence",
            got=type(labels).__name__,
            hint=f'{name}="Action gets results"',
        )
    if len(words) != count:
        raise InputError(
            f"{name} do not fit the tokens",
            expected=f"{count} labels, one for each token",
            got=f"{len(words)} labels",
            hint=f"leave {name} out, and positions are shown",
        )
    return list(words)


def find(labels: Sequence[str], query: int | str, what: str = "query") -> list[int]:
    """Where a token stands: by its position, which may count from the end, or by its word.

    A word is found as it is written; else without the marks that tokenizers put in front of it; else in any case.

    >>> find(["The", "kids", "saw", "the", "lions"], "the"), find(["[CLS]", "Ġkids"], "KIDS"), find(["a", "b"], -1)
    ([3], [1], [1])
    """
    if isinstance(query, bool) or not isinstance(query, int | str):
        raise InputTypeError(
            f"a {what} is a word or a position", expected="str or int", got=type(query).__name__, hint=f"{what}=0"
        )
    if isinstance(query, int):
        if not -len(labels) <= query < len(labels):
            raise InputError(
                f"there is no {what} {query}",
                expected=f"0 to {len(labels) - 1}" if labels else "at least one token",
                got=query,
                hint="count from 0",
            )
        return [query % len(labels)]
    forms = (lambda word: word, bare, lambda word: bare(word).casefold())
    for form in forms:
        found = [i for i, label in enumerate(labels) if form(label) == form(query)]
        if found:
            return found
    some = ", ".join(repr(shown(label)) for label in labels[:12]) + (", …" if len(labels) > 12 else "")
    raise InputError(
        f"no token is this {what}", expected=f"one of {some}", got=repr(query), hint="a token, or its position"
    )


def find_one(labels: Sequence[str], query: int | str, what: str = "query") -> int:
    """The same where one token is meant: a word that stands twice is refused."""
    found = find(labels, query, what)
    if len(found) > 1:
        raise InputError(
            f"this {what} stands more than once",
            expected="a word that stands once, or a position",
            got=f"{query!r} at {', '.join(map(str, found[:12]))}",
            hint=f"{what}={found[0]}",
        )
    return found[0]


def bare(token: str) -> str:
    """A token without the marks of word pieces and bytes.

    >>> bare("Ġkids"), bare("##s"), bare("▁so"), bare("#")
    ('kids', 's', 'so', '#')
    """
    word = token.lstrip("Ġ▁ ")
    word = word[2:] if word.startswith("##") and len(word) > 2 else word
    return word or token


def shown(label: str) -> str:
    """A label that is safe in a terminal and on a page: blanks made visible, control characters spelled out.

    >>> shown("a\\nb"), shown("\\x1b[31m"), shown(" "), shown("Ġkids")
    ('a⏎b', '\\\\x1b[31m', '␣', '␣kids')
    """
    if label in _VISIBLE:
        return _VISIBLE[label]
    return "".join(_character(c) for c in label.replace("Ġ", "␣").replace("▁", "␣").replace("Ċ", "⏎"))


def _character(c: str) -> str:
    if c in "\n\t\r":
        return _VISIBLE[c]
    # Cc control, Cf format (turns the direction of text), Cs half of a pair, Co private, Cn none.
    if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn") and c != "\u200d":
        return ascii(c)[1:-1]
    return c
