"""Tokens by name: byte-level, sentence pieces, word pieces, and those of no tokenizer."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

import watch_cases as tiny
from sightline.errors import InputTypeError
from sightline.watching import watch
from sightline.watching.tokens import find_ids, text_of


def byte_level():
    vocabulary = {"Ġthe": 0, "Ċ": 1, "ä½": 2, "<|end|>": 3, "kids": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def test_bytes_become_text():
    text = text_of(byte_level())
    assert [text(i) for i in range(5)] == [" the", "\n", "<0xE4><0xBD>", "<|end|>", "kids"]
    assert text(99) == "<99>"


def test_pieces_keep_their_marks():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "##ing": 1, "▁a": 2}, unk_token="[UNK]"))
    text = text_of(tokenizer)
    assert [text(i) for i in range(3)] == ["[UNK]", "##ing", " a"]


def test_what_is_no_tokenizer():
    with pytest.raises(InputTypeError, match="not a tokenizer"):
        text_of(lambda text: [1])


def test_a_run_knows_its_tokens():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    given["input_ids"] = given["input_ids"] % 5
    with torch.no_grad(), watch(model, tokenizer=byte_level()) as seen:
        model(**given)
        assert seen.tokens is not None, "also while it runs"
    assert seen.ids == given["input_ids"].tolist()
    assert seen.tokens[0][:2] == [[" the", "\n", "<0xE4><0xBD>", "<|end|>", "kids"][i] for i in seen.ids[0][:2]]
    assert seen.memory_tokens is None
    with pytest.raises(InputTypeError, match="list of strings"):
        seen.tokens = ["a"]
    seen.tokens = [["x"] * 12] * 3
    assert seen.tokens[0][0] == "x"


def test_an_encoder_has_tokens_of_its_own():
    model, given = tiny.model("t5"), tiny.inputs("t5")
    with torch.no_grad(), watch(model, tokenizer=byte_level()) as seen:
        model(**given)
    assert seen.memory_ids == given["input_ids"].tolist()
    assert seen.ids == given["decoder_input_ids"].tolist()
    assert len(seen.memory_tokens[0]) == 12


def test_ids_among_the_arguments():
    ids = torch.tensor([[1, 2]])
    assert find_ids((ids,), {}).tolist() == [[1, 2]]
    assert find_ids((), {"input_ids": ids[0]}).tolist() == [[1, 2]]
    assert find_ids((torch.randn(1, 2),), {"input_ids": None}) is None
    assert find_ids((torch.randn(1, 2, 3),), {}) is None


def test_ids_in_a_dict_are_found():
    ids = torch.tensor([[4, 5, 6]])
    for args, kwargs in (
        (({"input_ids": ids, "attention_mask": torch.ones(1, 3)},), {}),
        ((), {"features": {"input_ids": ids}}),
    ):
        assert torch.equal(find_ids(args, kwargs), ids)
    assert find_ids(({"pixel_values": torch.zeros(1, 3, 4, 4)},), {}) is None


def test_a_sentence_transformer_names_the_tokens_of_its_dict():
    class Sentences(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.attn = torch.nn.Embedding(9, 8), torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, features):
            x = self.embed(features["input_ids"])
            return self.attn(x, x, x)[0]

    class Words:
        def convert_ids_to_tokens(self, number):
            return f"word{number}"

    class Holder:
        tokenizer = Words()

    model = Sentences().eval()
    with torch.no_grad(), watch(model, tokenizer=Holder()) as seen:
        model({"input_ids": torch.tensor([[1, 2]])})
    assert seen.tokens == [["word1", "word2"]]
