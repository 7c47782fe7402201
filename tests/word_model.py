"""A very small causal model whose tokens are words: quick, and what it predicts can be asked for in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import sightline as sl

WORDS = ("the", "kids", "saw", "lions", "so", "they", "left", "and", "Mary", "John", "gave", "to")
TEXT = "the kids saw the lions so they left and Mary gave to"


def word_model(folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer, as `sl.models` loads them; the folder is a checkpoint then."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 1,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(4)  # heads that look somewhere
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("[UNK]", *WORDS))}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({}))
    return sl.models.load(folder)
