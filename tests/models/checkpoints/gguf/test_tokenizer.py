"""Tokenizers made from GGUF settings: equal to transformers' conversion, and to the model's own where that differs."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from model_files import LLAMA, llama_tensors, write_gguf
from sightline.models.checkpoints.base import CheckpointError
from sightline.models.checkpoints.builtin import BUILTINS
from sightline.models.checkpoints.formats import open_path
from sightline.models.checkpoints.opening import open_checkpoint

TEXTS = [
    "The kids were scared of the lions, so they left right away.",
    "don't we'll I'M they've 'quoted' it's",
    "x = {'a': 1, \"b\": [2, 3.14e-10]}\n\tdef f(x):\n        return x**2  # ok\n",
    "12345 67 1,000,000.50 2³ ½",
    "e = mc², 第3章, ٣٤ １２３",
    "👩‍👩‍👧‍👦🎉 🇩🇪 a👍b",
    "中文测试，标点。日本語テスト 한국어 mixed 文字",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x<file_sep>",
    "<|im_start|",
    "   \n\n  \t a   b  \r\n\r\n c\n",
    "naïve café “quotes” ﬁ \u200b zero\u00a0width",
    "الله أكبر नमस्ते привет",
    "\x00\x07\x7f",
    " ",
    "",
]


def random_texts(count: int) -> list[str]:
    draw = random.Random(0)
    kinds = [
        lambda: chr(draw.randrange(32, 127)),
        lambda: chr(draw.randrange(160, 0x3000)),
        lambda: chr(draw.randrange(0x4E00, 0x9000)),
        lambda: chr(draw.randrange(0x1F300, 0x1F6FF)),
        lambda: draw.choice(["  ", " ", "\n", "\t", " the", "ing", "<|im_end|>"]),
    ]
    return ["".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 40))) for _ in range(count)]


def ours() -> Tokenizer:
    tokenizer = open_path(BUILTINS["smollm2"].require()).tokenizer
    assert tokenizer is not None
    return tokenizer


@cache
def transformers_conversion() -> Tokenizer:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, settings, _ = get_gguf_tokenizer(str(BUILTINS["smollm2"].require()))
    return convert_gguf_tokenizer(architecture, settings)[0]


def test_smollm2_equals_transformers_conversion() -> None:
    """transformers does not know the rule "smollm" and splits as GPT-2 does: it differs where a space meets a digit."""
    tokenizer, theirs = ours(), transformers_conversion()
    compared = 0
    for text in TEXTS + random_texts(1500):
        if any(a.isspace() and b.isnumeric() for a, b in pairwise(text)):
            continue
        compared += 1
        mine, other = tokenizer.encode(text), theirs.encode(text)
        assert (mine.ids, mine.tokens, mine.offsets) == (other.ids, other.tokens, other.offsets), text
        for skip in (False, True):
            assert tokenizer.decode(mine.ids, skip_special_tokens=skip) == theirs.decode(other.ids, skip)
        assert tokenizer.decode(mine.ids, skip_special_tokens=False) == text
    assert compared > 1000


def test_smollm2_sets_digits_apart_first_as_its_own_tokenizer_does() -> None:
    tokenizer, theirs = ours(), transformers_conversion()
    assert tokenizer.encode("a  1").tokens == ["a", "ĠĠ", "1"]
    assert theirs.encode("a  1").tokens == ["a", "Ġ", "Ġ", "1"]
    # With that rule put into transformers' conversion, the two are equal everywhere.
    digits = pre_tokenizers.Digits(individual_digits=True)
    corrected = Tokenizer.from_str(theirs.to_str())
    corrected.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    for text in TEXTS + random_texts(500):
        assert tokenizer.encode(text).ids == corrected.encode(text).ids, text


def test_special_tokens_stay_whole() -> None:
    tokenizer = ours()
    encoded = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert encoded.tokens == ["<|im_start|>", "user", "Ċ", "hi", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids) == "user\nhi"
    assert tokenizer.get_vocab_size() == 49152


# Small vocabularies


def alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_settings(**changes: Any) -> dict[str, Any]:
    tokens = [*alphabet(), "ab", "Ġa", "<s>", "<think>"]
    said = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["a b", "Ġ a"]}
    said["token_type"] = [1] * 258 + [3, 4]
    return {f"tokenizer.ggml.{key}": value for key, value in {**said, **changes}.items() if value is not None}


def piece_settings(**changes: Any) -> dict[str, Any]:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    scored = {"▁": -9.0, "a": -9.5, "b": -9.6, "c": -9.7, "ab": -1.0, "bc": -0.5, "▁a": -2.0, "▁ab": -3.0, "abc": -4.0}
    said: dict[str, Any] = {"model": "llama", "tokens": [*pieces, *scored], "scores": [0.0] * 259 + [*scored.values()]}
    said["token_type"] = [2, 3, 3] + [6] * 256 + [1] * len(scored)
    said |= {"unknown_token_id": 0, "bos_token_id": 1}
    return {f"tokenizer.ggml.{key}": value for key, value in {**said, **changes}.items() if value is not None}


def tokenizer_of(tmp_path: Path, settings: dict[str, Any], rows: int = 300) -> Tokenizer:
    config = {**LLAMA, "vocab_size": rows}
    path = write_gguf(tmp_path / "x.gguf", llama_tensors(config), config, settings=settings)
    tokenizer = open_checkpoint(path).tokenizer
    assert tokenizer is not None
    return tokenizer


def converted(settings: dict[str, Any]) -> Tokenizer:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    said = {key.removeprefix("tokenizer.ggml."): value for key, value in settings.items()}
    said = {"tokenizer_type": said.pop("model"), "pre_tokenizer_type": said.pop("pre", None), **said}
    return convert_gguf_tokenizer("llama", said)[0]


@pytest.mark.parametrize("rule", ["gpt-2", "default", "llama-bpe", "qwen2"])
def test_rules_for_splitting_equal_transformers(rule: str, tmp_path: Path) -> None:
    settings = byte_settings(pre=rule)
    tokenizer, theirs = tokenizer_of(tmp_path, settings), converted(settings)
    for text in [*TEXTS, "ab a<think>b <s>x", *random_texts(300)]:
        text = text.replace("<|endoftext|>", "")  # which transformers adds to every such vocabulary
        mine = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert mine == theirs.pre_tokenizer.pre_tokenize_str(text), text
        assert tokenizer.encode(text).ids == theirs.encode(text).ids, text


def test_sentence_pieces_equal_transformers(tmp_path: Path) -> None:
    settings = piece_settings(add_bos_token=False)
    tokenizer, theirs = tokenizer_of(tmp_path, settings), converted(settings)
    for text in ["ab abc", "abcabc  ab", " a", "cab ü ab", "ab<s>ab</s>", "日本 a", "", "aab bbc abcb"]:
        assert tokenizer.encode(text).ids == theirs.encode(text).ids, text
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids), text


def test_a_bos_token_is_put_in_front_where_the_file_says_so(tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path, piece_settings()).encode("ab").tokens == ["<s>", "▁ab"]
    assert tokenizer_of(tmp_path, piece_settings(add_bos_token=False)).encode("ab").tokens == ["▁ab"]
    with_bos = byte_settings(bos_token_id=258, add_bos_token=True)
    assert tokenizer_of(tmp_path, with_bos).encode("ab").tokens == ["<s>", "ab"]
    assert tokenizer_of(tmp_path, byte_settings(bos_token_id=258)).encode("ab").tokens == ["ab"]


def test_no_space_in_front_where_the_file_says_so(tmp_path: Path) -> None:
    settings = piece_settings(add_space_prefix=False, add_bos_token=False)
    tokenizer = tokenizer_of(tmp_path, settings)
    assert tokenizer.encode("ab ab").tokens == ["ab", "▁ab"]
    assert tokenizer.decode(tokenizer.encode(" ab").ids) == " ab"


@pytest.mark.parametrize(
    "settings, message",
    [
        (byte_settings(model="unigram"), "the kind 'unigram'"),
        (byte_settings(model=["gpt2"]), "the kind ['gpt2']"),
        (byte_settings(pre=["gpt-2"]), "the rule ['gpt-2']"),
        (byte_settings(pre="falcon"), "the rule 'falcon' for splitting a text"),
        (byte_settings(merges=["a z z"]), "cannot be understood"),
        (byte_settings(merges=["a 日"]), "cannot be understood"),
        (byte_settings(merges=None), "tokenizer.ggml.merges"),
        (byte_settings(merges=[1, 2]), "a list of str"),
        (byte_settings(tokens=[1, 2]), "a list of str"),
        (byte_settings(token_type=[1, 3]), "2 of tokenizer.ggml.token_type"),
        (byte_settings(bos_token_id=9999, add_bos_token=True), "bos_token_id 9999, of 260 tokens"),
        (piece_settings(scores=None), "tokenizer.ggml.scores"),
        (piece_settings(unknown_token_id=9999), "unknown_token_id 9999"),
        (piece_settings(unknown_token_id="<unk>"), "unknown_token_id <unk>"),
    ],
)
def test_what_is_not_known_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        tokenizer_of(tmp_path, settings)
    assert message in str(error.value)


def test_more_tokens_than_the_model_has_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="belongs to another model"):
        tokenizer_of(tmp_path, byte_settings(), rows=259)


def test_without_types_every_token_is_plain(tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path, byte_settings(token_type=None)).encode("<s>").tokens == ["<", "s", ">"]
