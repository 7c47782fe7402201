"""Tokenizers from tokenizer.json, and which tokens begin, end and pad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from model_files import LLAMA, llama_tensors, write_folder
from sightline.models.checkpoints.base import CheckpointError, SpecialTokens
from sightline.models.checkpoints.opening import open_checkpoint


def words(count: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def folder_with(tmp_path: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    write_folder(tmp_path, llama_tensors(), {**LLAMA, **files.pop("config", {})})
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_padding_and_truncation_of_the_file_are_turned_off(tmp_path: Path) -> None:
    tokenizer = words(40)
    tokenizer.enable_padding(length=1_000_000_000)
    tokenizer.enable_truncation(2)
    loaded = open_checkpoint(folder_with(tmp_path, tokenizer)).tokenizer
    assert loaded is not None
    assert loaded.encode("w1 w2 w3").ids == [1, 2, 3]


@pytest.mark.parametrize("added", [False, True])
def test_a_tokenizer_of_another_model_is_refused(added: bool, tmp_path: Path) -> None:
    tokenizer = words(40 if added else 41)
    if added:
        tokenizer.add_special_tokens(["<extra>"])
    checkpoint = open_checkpoint(folder_with(tmp_path, tokenizer))
    with pytest.raises(CheckpointError) as error:
        _ = checkpoint.tokenizer
    assert "belongs to another model" in str(error.value)
    assert "token ids below 40" in str(error.value)
    assert ("'<extra>' with id 40" if added else "'w40' with id 40") in str(error.value)


def test_ids_with_gaps_count_by_the_largest(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, words(2))
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"w1":1', '"w1":4000000000').replace('"w1": 1', '"w1": 4000000000'))
    with pytest.raises(CheckpointError, match="'w1' with id 4000000000"):
        _ = open_checkpoint(folder).tokenizer


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[[[", b'{"model": {"type": "BPE", "vocab": 3}}'])
def test_a_tokenizer_that_cannot_be_understood_is_refused(content: bytes, tmp_path: Path) -> None:
    write_folder(tmp_path, llama_tensors())
    (tmp_path / "tokenizer.json").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be understood"):
        _ = checkpoint.tokenizer


def test_special_tokens_come_from_the_files_in_order(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(
        folder_with(
            tmp_path,
            words(40),
            config={"bos_token_id": 3, "eos_token_id": 4},
            generation_config={"eos_token_id": [5, 6, 5000, -1, "x"]},
            tokenizer_config={"pad_token": {"content": "w7"}, "unk_token": "w8", "chat_template": "{{ messages }}"},
            special_tokens_map={"unk_token": "w9", "bos_token": "w10"},
        )
    )
    assert checkpoint.special == SpecialTokens(bos=3, eos=(5, 6), pad=7, unk=8, chat_template="{{ messages }}")


def test_a_chat_template_may_be_one_of_several_or_a_file(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    folder = folder_with(tmp_path, words(40), tokenizer_config={"chat_template": several})
    assert open_checkpoint(folder).special.chat_template == "d"
    (folder / "chat_template.jinja").write_text("from the file")
    assert open_checkpoint(folder).special.chat_template == "from the file"


def test_without_any_of_these_files_nothing_is_special(tmp_path: Path) -> None:
    assert open_checkpoint(write_folder(tmp_path, llama_tensors())).special == SpecialTokens()
