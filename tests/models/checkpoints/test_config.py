"""What no honest config says is refused before a family sees it."""

from __future__ import annotations

from typing import Any

import pytest

from model_files import LLAMA
from sightline.models.checkpoints.base import CheckpointError
from sightline.models.checkpoints.config import check_config

SHAPES = [(40, 32), (64, 32), (32,)]


def test_an_honest_config_passes() -> None:
    check_config(LLAMA, "here", SHAPES)
    check_config({**LLAMA, "head_dim": 8, "rope_theta": 10000, "torch_dtype": "float32"}, "here", SHAPES)
    check_config({"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_inner": None, "n_layer": 3}, "here", SHAPES)
    check_config({"model_type": "vit", "image_size": [32, 64], "patch_size": 4, "hidden_size": 32}, "here", SHAPES)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_attention_heads": 1_000_000}, "num_attention_heads of at most 64"),
        ({"num_attention_heads": 10**30}, "num_attention_heads as a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"num_attention_heads": -4}, "num_attention_heads=-4"),
        ({"num_attention_heads": 4.0}, "num_attention_heads=4.0"),
        ({"num_attention_heads": "4"}, "num_attention_heads='4'"),
        ({"num_attention_heads": True}, "num_attention_heads=True"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "5 heads over a width of 32"),
        ({"num_key_value_heads": 3}, "4 heads over 3 key heads"),
        ({"head_dim": 17}, "4 heads of 17"),
        ({"hidden_size": 1 << 20}, "hidden_size of at most 64"),
        ({"vocab_size": 65}, "vocab_size of at most 64, the longest axis"),
        ({"num_hidden_layers": 4}, "num_hidden_layers of at most 3, the number of tensors"),
        ({"num_hidden_layers": [2]}, "num_hidden_layers=[2]"),
        ({"patch_size": [4, -4]}, "patch_size=[4, -4]"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings as a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps='1e-5'"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps as a number above 0 and below 1"),
        ({"rms_norm_eps": 1.0}, "rms_norm_eps as a number above 0 and below 1"),
        ({"rope_theta": 0}, "rope_theta as a number above 0"),
        ({"rope_scaling": {"factor": float("inf")}}, "rope_scaling.factor=inf"),
        ({"rope_scaling": {"long_factor": [1.0, float("nan")]}}, "rope_scaling.long_factor=nan"),
        ({"model_type": None}, "does not say which family it is"),
        ({"model_type": ["llama"]}, "does not say which family it is"),
        ({"architectures": 5}, "architectures=5"),
        ({"architectures": "LlamaForCausalLM"}, "architectures as a list of names"),
        ({"architectures": ["LlamaForCausalLM", None]}, "architectures as a list of names"),
        ({"architectures": {"a": 1}}, "architectures as a list of names"),
        ({"quantization_config": {"quant_method": "gptq"}}, "is quantised in a way"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as error:
        check_config({**LLAMA, **changes}, "here", SHAPES)
    assert message in str(error.value)
    assert "here" in str(error.value)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(CheckpointError) as error:
        check_config({**LLAMA, "hidden_size": "9" * 10_000}, "here", SHAPES)
    assert len(str(error.value)) < 400
