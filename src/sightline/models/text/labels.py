"""What a token stands for: the piece of the text it covers, as a reader would write it.

Tokenizers mark pieces in their own ways (`##ing`, `Ġkids`, three tokens for one emoji). Here a label is always the
same thing: the characters of the text that the token stands for, without the blanks around them. A token of blanks
alone is shown by signs, one of several tokens that make up one character has that character, and one that stands for
nothing in the text ([CLS]) has its own name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# What decoders give for bytes that are not yet a character.
UNFINISHED = "\ufffd"
_SIGNS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"})


def labels_of_text(encoding: Encoding, text: str) -> list[str]:
    """The labels of a text that was just encoded."""
    pieces = [text[start:stop] for start, stop in encoding.offsets]
    return [_readable(piece) or token for piece, token in zip(pieces, encoding.tokens, strict=True)]


def labels_of_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The labels of ids whose text is not at hand: of each the text that it adds to the one before."""
    labels: list[str] = []
    start = 0  # where the character that is being made began
    for end, token in enumerate(ids, start=1):
        piece = _added(tokenizer, ids[max(0, start - 1) : start], ids[start:end])
        if piece.endswith(UNFINISHED) and end < len(ids):
            continue
        name = tokenizer.id_to_token(token) or str(token)
        labels += [name if UNFINISHED in piece else _readable(piece) or name] * (end - start)
        start = end
    return labels


def _added(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ids that stand behind another one: blanks and `##` depend on it."""
    front = tokenizer.decode(list(before), skip_special_tokens=False)
    both: str = tokenizer.decode([*before, *ids], skip_special_tokens=False)
    return both[len(front) :] if both.startswith(front) else both


def _readable(piece: str) -> str:
    return piece.strip() or piece.translate(_SIGNS)
