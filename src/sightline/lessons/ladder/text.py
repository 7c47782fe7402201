"""The text all rungs read, as numbers: one for each character, with the last tenth held out."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sightline.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

# A ladder reads some two million characters per rung. Of a text much longer than that it would see a part.
MOST_BYTES = 5_000_000
# Rarer characters than so many share one number, so that a text in any script has a small readout.
MOST_CHARACTERS = 255
OTHER = "\N{REPLACEMENT CHARACTER}"
HELD_OUT = 10  # one part in ten


@dataclass(frozen=True)
class Text:
    """A text as numbers: `training` and `held_out` hold indices into `alphabet`."""

    name: str
    alphabet: str
    training: Tensor  # [characters], int64
    held_out: Tensor
    digest: str

    def spell(self, numbers: Tensor) -> str:
        """Numbers as characters again."""
        return "".join(self.alphabet[i] for i in numbers.tolist())


def python_text() -> str:
    """What Python itself ships: the help on its own language, topic after topic in alphabetical order.

    >>> len(python_text()) > 300_000
    True
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: Path) -> str:
    """The text of a file, or an error that says what is wrong with it."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(
            f"{path.name} is too long for a ladder",
            expected=f"at most {MOST_BYTES / 1e6:g} MB of text; a rung would see only a part of more",
            got=f"more than {MOST_BYTES / 1e6:g} MB",
            hint=f"a part of it: head -c {MOST_BYTES} {path.name} > part.txt",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} is not text",
            expected="a text file in UTF-8",
            got=f"byte {data[error.start]:#04x} at {error.start}",
            hint="convert it to UTF-8 first",
        ) from None
    # As Python's own text mode does, so that a text gives the same numbers wherever it was written.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def make_text(name: str, text: str, context: int) -> Text:
    """The numbers of a text whose held-out part has at least one window of `context` characters and the next one.

    >>> made = make_text("abc", "abcab" * 20, context=4)
    >>> made.alphabet, made.training.shape, made.spell(made.held_out)
    ('abc', torch.Size([90]), 'abcababcab')
    """
    least = HELD_OUT * (context + 1)
    if len(text) < least or not text.strip():
        raise InputError(
            f"{name} is too short for a ladder",
            expected=f"at least {least:,} characters, of which one in {HELD_OUT} is held out",
            got=f"{len(text):,} characters" if text.strip() or not text else "nothing but blanks",
            hint="a longer text, or the one Python ships: leave --text out",
        )
    counts = Counter(text)
    # Of equally frequent characters the one that comes first in Unicode, so that the alphabet depends on nothing else.
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[:MOST_CHARACTERS]
    alphabet = "".join(sorted({*frequent, OTHER} if len(counts) > MOST_CHARACTERS else frequent))
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    known = np.array([ord(c) for c in alphabet], dtype=np.uint32)  # sorted, as the alphabet is
    numbers = np.searchsorted(known, points).clip(max=len(known) - 1)
    if len(counts) > MOST_CHARACTERS:
        numbers = np.where(known[numbers] == points, numbers, alphabet.index(OTHER))
    cut = len(text) - len(text) // HELD_OUT
    ids = torch.from_numpy(numbers.astype(np.int64))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return Text(name, alphabet, ids[:cut], ids[cut:], digest)
