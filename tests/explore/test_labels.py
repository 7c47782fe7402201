"""Tokens of every kind of tokenizer become the text they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.explore.labels import _BYTES, BYTES, GLUED, SPECIAL, read


@pytest.mark.parametrize(
    "tokens, texts, kinds",
    [
        (["[CLS]", "play", "##ing", "[SEP]"], ["[CLS]", "play", "ing", "[SEP]"], [SPECIAL, 0, GLUED, SPECIAL]),
        (
            ["<|im_start|>", "user", "Ċ", "Hi", "Ġthere"],
            ["<|im_start|>", "user", "\n", "Hi", " there"],
            [1, 4, 4, 4, 4],
        ),
        (["<s>", "▁The", "▁kid", "s", "<0xE2>"], ["<s>", " The", " kid", "s", "e2"], [1, 4, 4, 4, 6]),
        (["Action", "gets", "results"], ["Action", "gets", "results"], [0, 0, 0]),
        (["The", " kids"], ["The", " kids"], [GLUED, GLUED]),
        (["##", "a", "##b"], ["##", "a", "b"], [0, 0, GLUED]),
        (["<", "Ġb", "<3"], ["<", " b", "<3"], [GLUED, GLUED, GLUED]),
        # Signs that stand in the text itself: Markdown's, and letters of Maltese.
        (["##", "ĠTitle", "Ċ", "###", "Ġmore"], ["##", " Title", "\n", "###", " more"], [4, 4, 4, 4, 4]),
        (["##", "Title", "ĊĊ", "###b"], ["##", "Title", "\n\n", "###b"], [4, 4, 4, 4]),
        (["▁##", "▁Title", "###"], [" ##", " Title", "###"], [4, 4, 4]),
        (["##", " Title", "###b"], ["##", " Title", "###b"], [4, 4, 4]),
        (["Ġ", "##urn", "##ata", "tajb", "##a"], ["Ġ", "urn", "ata", "tajb", "a"], [0, 4, 4, 0, 4]),
        ([], [], []),
    ],
)
def test_tokens(tokens: list[str], texts: list[str], kinds: list[int]) -> None:
    assert read(tokens) == (texts, kinds)


def test_parts_of_characters_are_shown_as_bytes() -> None:
    text, alphabet = "Ġ€", {byte: character for character, byte in _BYTES.items()}
    parts = [alphabet[byte] for byte in "€".encode()]
    found = read([text[0], *parts])
    assert found.texts == [" ", "e2", "82", "ac"]
    assert found.kinds[1] == GLUED | BYTES


@given(st.binary(max_size=40))
def test_the_byte_alphabet_is_whole(raw: bytes) -> None:
    alphabet = {byte: character for character, byte in _BYTES.items()}
    assert len(alphabet) == 256
    token = "".join(alphabet[byte] for byte in raw)
    text, kind = read(["Ġ", token]).texts[1], read(["Ġ", token]).kinds[1]
    if kind & SPECIAL:
        return
    assert text == (raw.hex(" ") if kind & BYTES else raw.decode())


@given(st.lists(st.text(max_size=8), max_size=20))
def test_any_tokens_can_be_read(tokens: list[str]) -> None:
    found = read(tokens)
    assert len(found.texts) == len(found.kinds) == len(tokens)
