from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from model_cases import smollm2_tokenizer
from sightline.models.text.stream import TextStream, _overlap


def pieces(
    tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, stop: tuple[str, ...] = ()
) -> list[str]:
    stream, made = TextStream(tokenizer, prompt or [], stop), []
    for token in ids:
        made.append(stream.add(token))
        if stream.stopped:
            break
    return [*made, stream.end()]


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd", max_codepoint=0x1FFFF), max_size=12),
    prompt=st.sampled_from(["", "Say: ", "🦁"]),
)
def test_pieces_are_the_text_and_break_no_character(text: str, prompt: str) -> None:
    tokenizer = smollm2_tokenizer()
    before, ids = tokenizer.encode(prompt).ids, tokenizer.encode(text).ids
    assume(tokenizer.decode(ids) == text)  # it has no tokens for some rare bytes
    made = pieces(tokenizer, ids, tuple(before))
    assert "".join(made) == text
    assert not any("\ufffd" in piece for piece in made)


def test_a_character_of_several_tokens_comes_as_one() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode("🦁!").ids
    assert len(ids) > 2
    assert [piece for piece in pieces(tokenizer, ids) if piece] == ["🦁", "!"]


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode("Hi 🦁").ids[:-1]
    assert "".join(pieces(tokenizer, ids)).rstrip() == "Hi"


@cache
def words() -> Tokenizer:
    """A tokenizer that marks the beginning of words, as those of the first Llamas do: the text's first is dropped."""
    tokens = ["<unk>", "▁Once", "▁upon", "▁a", "▁time", "s", "▁\n"]
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def test_blanks_between_words_stay_also_behind_the_prompt() -> None:
    assert words().decode([3, 4]) == "a time"
    assert "".join(pieces(words(), [3, 4, 5], prompt=(1, 2))) == " a times"
    assert "".join(pieces(words(), [3, 4, 5])) == "a times"


def test_text_ends_before_a_stop_string() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode("one two\n\nthree four").ids
    assert "".join(pieces(tokenizer, ids, stop=("\n\n",))) == "one two"
    assert "".join(pieces(tokenizer, ids, stop=("three", " two"))) == "one"
    assert "".join(pieces(tokenizer, ids, stop=("five",))) == "one two\n\nthree four"


@settings(max_examples=100, deadline=None)
@given(st.text("ab ", max_size=12), st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3))
def test_stopping_is_cutting_the_whole_text(text: str, stop: list[str]) -> None:
    tokenizer = smollm2_tokenizer()
    found = [text.find(one) for one in stop if one in text]
    expected = text[: min(found)] if found else text
    assert "".join(pieces(tokenizer, tokenizer.encode(text).ids, stop=tuple(stop))) == expected


@pytest.mark.parametrize("text, stop, held", [("one\n", "\n\n", 1), ("aab", "aba", 2), ("abc", "x", 0), ("", "x", 0)])
def test_what_may_be_a_beginning_is_held_back(text: str, stop: str, held: int) -> None:
    assert _overlap(text, stop) == held
