"""Examples of docstrings as code: what follows `>>>`, up to an empty line, becomes a fenced block in the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

# Lines from a prompt to the next empty line, wherever they are indented.
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring with its examples in fences.

    >>> print(fenced("Doubles.\\n\\n>>> double(2)\\n4\\n\\nMore."))
    Doubles.
    <BLANKLINE>
    ```pycon
    >>> double(2)
    4
    ```
    <BLANKLINE>
    More.
    """
    return EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


class Fences(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
