"""Tokens as people read them, whatever alphabet their tokenizer writes them in.

Tokenizers mark spaces and continuations in their own ways: `##s` (WordPiece), `Ġthe` (byte-level), `▁the`
(SentencePiece). Here every token becomes its real text, and a few bits that say how to show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# What a token is: a special one such as [CLS]; bytes that are no whole character, as hex; stuck to the one before;
# the first of a new line.
SPECIAL, BYTES, GLUED, NEW_LINE = 1, 2, 4, 8

_SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD|MASK|UNK)\]|<(?:\||/?[a-zA-Z_]+|)[^<>]{0,30}\|?>")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_HEX = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")


class Labels(NamedTuple):
    """The text of every token, and its bits.

    >>> read(["[CLS]", "the", "kid", "##s"])
    Labels(texts=['[CLS]', 'the', 'kid', 's'], kinds=[1, 0, 0, 4])
    """

    texts: list[str]
    kinds: list[int]


def read(tokens: Sequence[str]) -> Labels:
    """The labels of the tokens of one text.

    >>> read(["The", "Ġcaf", "Ã©", "Ġâ"]).texts
    ['The', ' caf', 'é', '20 e2']
    """
    # The sign that most tokens bear: a text may hold those of the others, as Markdown holds `##`.
    signs: tuple[tuple[Callable[[str], tuple[str, int]], int], ...] = (
        (_byte_level, sum("Ġ" in token or "Ċ" in token for token in tokens)),
        (_sentencepiece, sum(token.startswith("▁") for token in tokens)),
        (_wordpiece, sum(token.startswith("##") and len(token) > 2 for token in tokens)),
    )
    one, bear = max(signs, key=lambda sign: sign[1])
    # Tokens that bring their own spaces are the text itself, which no WordPiece has; others are words.
    own_spaces = any(token != token.strip() for token in tokens)
    if bear and not (one is _wordpiece and own_spaces):
        return _each(tokens, one)
    return _each(tokens, lambda token: _plain(token, GLUED if own_spaces else 0))


def placed(labels: Labels, text: str, spans: Sequence[Sequence[int]]) -> Labels:
    """The same labels with the letters of the text itself, where a tokenizer changed them (lower case, accents).

    >>> placed(read(["[CLS]", "the", "kid", "##s", "."]), "The kids.", [(0, 0), (0, 3), (4, 7), (7, 8), (8, 9)])
    Labels(texts=['[CLS]', 'The', 'kid', 's', '.'], kinds=[1, 0, 0, 4, 4])
    """
    texts, kinds, end = list(labels.texts), list(labels.kinds), 0
    for i, (start, stop) in enumerate(spans[: len(texts)]):
        if kinds[i] & (SPECIAL | BYTES) or not 0 <= start < stop <= len(text):
            continue
        gap, piece = text[end:start], text[start:stop]
        if texts[i] == texts[i].strip():
            # A tokenizer that drops spaces: they stand between the pieces.
            texts[i] = piece
            kinds[i] = 0 if i and gap else GLUED if end else 0
            if "\n" in gap:
                kinds[i] |= NEW_LINE
        end = stop
    return Labels(texts, kinds)


def _each(tokens: Sequence[str], one: Callable[[str], tuple[str, int]]) -> Labels:
    pairs = [(token, SPECIAL) if _is_special(token) else one(token) for token in tokens]
    return Labels([text for text, _ in pairs], [kind for _, kind in pairs])


def _is_special(token: str) -> bool:
    return bool(_SPECIAL.fullmatch(token)) and not _HEX.fullmatch(token)


def _plain(token: str, kind: int) -> tuple[str, int]:
    if _HEX.fullmatch(token):
        return " ".join(_BYTE.findall(token)).lower(), kind | BYTES
    return token, kind


def _wordpiece(token: str) -> tuple[str, int]:
    return (token[2:], GLUED) if token.startswith("##") and len(token) > 2 else (token, 0)


def _sentencepiece(token: str) -> tuple[str, int]:
    byte = _BYTE.fullmatch(token)
    if byte:
        return _text(bytes([int(byte[1], 16)]))
    return token.replace("▁", " "), GLUED


def _byte_level(token: str) -> tuple[str, int]:
    try:
        return _text(bytes(_BYTES[character] for character in token))
    except KeyError:
        return token, GLUED  # an added token, written as it is


def _text(raw: bytes) -> tuple[str, int]:
    try:
        return raw.decode("utf-8"), GLUED
    except UnicodeDecodeError:
        return raw.hex(" "), GLUED | BYTES


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in kept}
    others = [byte for byte in range(256) if byte not in kept]
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
