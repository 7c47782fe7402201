"""The text of a ladder: numbers that can be spelled again, and clear words about texts that cannot serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.lessons.ladder import make_text, python_text, read_text
from sightline.lessons.ladder.text import MOST_BYTES, MOST_CHARACTERS, OTHER


def test_what_python_ships_is_the_same_every_time() -> None:
    from pydoc_data.topics import topics

    text = python_text()
    assert text == python_text()
    assert len(text) > 300_000
    assert all(body in text for body in topics.values())


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=40, max_size=80).filter(lambda t: t.strip()))
def test_numbers_can_be_spelled_again(text: str) -> None:
    made = make_text("drawn", text, context=3)
    assert made.spell(torch.cat((made.training, made.held_out))) == text
    assert list(made.alphabet) == sorted(set(text))
    assert len(made.held_out) == len(text) // 10


def test_rare_characters_share_one_number() -> None:
    common = "".join(chr(0x4E00 + i) * 2 for i in range(MOST_CHARACTERS))
    made = make_text("many", common + "xyz", context=3)
    assert len(made.alphabet) == MOST_CHARACTERS + 1
    assert made.spell(torch.cat((made.training, made.held_out))) == common + 3 * OTHER


def test_the_digest_is_of_the_text() -> None:
    one, two = (make_text("a", text, context=3).digest for text in ("ab" * 40, "ba" * 40))
    assert one != two


def test_a_file_is_read_alike_wherever_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "unix").write_bytes("é\nb\n".encode())
    (tmp_path / "dos").write_bytes(b"\xef\xbb\xbf" + "é\r\nb\r\n".encode())
    assert read_text(tmp_path / "unix") == read_text(tmp_path / "dos") == "é\nb\n"


@pytest.mark.parametrize("text, got", [("", "0 characters"), ("ab" * 20, "40 characters"), (" \n" * 99, "blanks")])
def test_too_short(text: str, got: str) -> None:
    with pytest.raises(InputError, match=f"note.txt is too short for a ladder\n.*at least 50 characters.*\n.*{got}"):
        make_text("note.txt", text, context=4)


def test_too_long(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"a" * (MOST_BYTES + 1))
    with pytest.raises(InputError, match=r"long.txt is too long for a ladder\n  expected: at most 5 MB"):
        read_text(path)
    path.write_bytes(b"a" * MOST_BYTES)
    assert len(read_text(path)) == MOST_BYTES


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(InputError, match=r"picture.png is not text\n.*\n  got: byte 0x89 at 0"):
        read_text(tmp_path / "picture.png")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "no.txt")
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)
