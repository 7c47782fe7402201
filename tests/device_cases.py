"""Small checkpoints with tokenizers, and two accounts of the same compared: what runs of an explorer are tried on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from word_model import WORDS, word_model

TOLERANCE = 1e-4
TEXT = "the kids saw the lions so they left and Mary gave to"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def encoder(folder: Path) -> Path:
    """An encoder like BERT whose tokens are words; heads look somewhere."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 1,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertModel(config).eval().save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("[UNK]", *WORDS))}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def decoder(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """The model of words, a small Llama; its file in any precision."""
    from safetensors.torch import load_file, save_file

    word_model(folder)
    file = folder / "model.safetensors"
    save_file({name: x.to(dtype) for name, x in load_file(file).items()}, file, {"format": "pt"})
    return folder


def assert_alike(one: Any, other: Any, tolerance: float = TOLERANCE, place: str = "") -> None:
    """Two answers are the same: numbers within a tolerance, all else to the letter; bytes of pictures by one step."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for name in one:
            assert_alike(one[name], other[name], tolerance, f"{place}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), place
        for i, both in enumerate(zip(one, other, strict=True)):
            assert_alike(*both, tolerance, f"{place}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert_alike(one.detach().cpu().double().numpy(), other.detach().cpu().double().numpy(), tolerance, place)
    elif isinstance(one, np.ndarray):
        step = 1 if one.dtype == np.uint8 else tolerance
        both = (x.astype(np.float64) for x in (one, other))
        np.testing.assert_allclose(*both, rtol=0, atol=step, equal_nan=True, err_msg=place)
    elif isinstance(one, float):
        assert abs(one - other) <= tolerance or (one != one and other != other), f"{place}: {one} and {other}"
    else:
        assert one == other, place


def assert_said_alike(one: str, other: str) -> None:
    """Two texts of a command are the same, but that a number may differ by one in its last digit."""
    assert _NUMBER.sub("#", one) == _NUMBER.sub("#", other)
    for first, second in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True):
        digits = len(first.partition(".")[2])
        assert abs(float(first.replace(",", "")) - float(second.replace(",", ""))) <= 1.01 * 10**-digits, (
            first,
            second,
        )


def assert_same_run(
    one: Any, other: Any, tolerance: float = TOLERANCE, devices: tuple[str, str] = ("cuda", "cpu")
) -> None:
    """Runs on two devices hold the same layers, tokens, maps and statistics, and say the same of what comes next."""
    assert one.layers == other.layers
    assert one.tokens == other.tokens
    assert (one.meta["device"], other.meta["device"]) == devices
    assert_alike(one.meta | {"device": ""}, other.meta | {"device": ""}, tolerance)
    for name in one.layers:
        here, there = one[name], other[name]
        whole = slice(0, here.shape[-2]), slice(0, here.shape[-1])
        assert_alike(here.tile(*whole), there.tile(*whole), tolerance, name)
        kept, expected = ({str(key): x for key, x in sight.kept.items()} for sight in (here, there))
        # Some are sums over all queries.
        assert_alike(kept, expected, tolerance * max(1.0, here.shape[-2]), name)
