"""The keys of config.json, from the settings of a GGUF file of the Llama family: `llama.*` or `qwen2.*`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from sightline.models.checkpoints.base import refused
from sightline.models.checkpoints.gguf.header import GGUFHeader
from sightline.models.checkpoints.gguf.numbers import read_numbers
from sightline.positions.rotary_scaling import read_scaling

if TYPE_CHECKING:
    from sightline.models.checkpoints.gguf.file import GGUFCheckpoint

# Llama 3.1 and later keep their rotary scaling as one factor per pair of channels.
FREQUENCIES = "rope_freqs.weight"


def config_from_gguf(checkpoint: GGUFCheckpoint, header: GGUFHeader) -> dict[str, Any]:
    """What config.json would say; anything that would change the numbers and is not understood is refused."""
    family = header.get("general.architecture")
    say = _Settings(checkpoint.source, header, family)
    heads, width = say.count("attention.head_count"), say.count("embedding_length")
    kv_heads = say.count("attention.head_count_kv", heads)
    dim = say.count("attention.key_length", max(1, width // heads))
    table = "model.embed_tokens.weight"
    if table not in checkpoint or len(checkpoint.shape(table)) != 2:
        raise checkpoint.refuse("no table of token vectors", "token_embd.weight of two axes", "none")
    turning, value_dim = say.count("rope.dimension_count", dim), say.count("attention.value_length", dim)
    if not turning == value_dim == dim:
        got = f"{turning} rotary channels, values of {value_dim}"
        raise checkpoint.refuse("heads that turn only in part", f"{dim} of both, as in keys", got)
    _check_rows(checkpoint, ".q_proj.", heads * dim)
    _check_rows(checkpoint, ".k_proj.", kv_heads * dim)
    theta = say.number("rope.freq_base", 10000.0)
    window = say.get("attention.sliding_window")
    return {
        # llama.cpp calls Mistral a Llama too; what it does differently is the window.
        "model_type": "mistral" if window and family == "llama" else family,
        "hidden_size": width,
        "intermediate_size": say.count("feed_forward_length"),
        "num_hidden_layers": say.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": checkpoint.shape(table)[0],
        "max_position_embeddings": say.count("context_length"),
        "rms_norm_eps": say.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _scaling(checkpoint, say, dim, theta),
        "hidden_act": "silu",
        "attention_bias": family == "llama" and "model.layers.0.self_attn.q_proj.bias" in checkpoint,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in checkpoint,
        "tie_word_embeddings": "lm_head.weight" not in checkpoint,
        "sliding_window": window,
        "bos_token_id": header.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header.get("tokenizer.ggml.padding_token_id"),
    }


def _check_rows(checkpoint: GGUFCheckpoint, part: str, rows: int) -> None:
    """The order of rows can only be undone where they are as many as the heads say."""
    for name in checkpoint.names:
        if part in name and checkpoint.shape(name)[:1] != (rows,):
            got = f"{name} of shape {checkpoint.shape(name)}"
            raise checkpoint.refuse("heads that do not fit its tensors", f"{rows} rows", got)


def _scaling(checkpoint: GGUFCheckpoint, say: _Settings, dim: int, theta: float) -> dict[str, Any] | None:
    """The rotary scaling: from the settings, or from a tensor of factors whose formula is found again."""
    kind = say.get("rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": say.number("rope.scaling.factor")}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = say.count("rope.scaling.original_context_length")
        return scaling
    if kind != "none":
        raise checkpoint.refuse("a rotary scaling that Sightline does not know", "none, linear or yarn", kind)
    tensor = say.header.tensors.get(FREQUENCIES)
    if tensor is None:
        return None
    if tensor.shape == (dim // 2,) and theta > 0:
        factors = read_numbers(say.header.path, tensor, torch.float64)
        scaling = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if 1 <= scaling["factor"] < math.inf:
            plain, formula = (read_scaling(dim, theta, how).frequencies for how in (None, scaling))
            expected = torch.tensor(plain, dtype=torch.float64) / torch.tensor(formula, dtype=torch.float64)
            if torch.allclose(factors, expected, rtol=1e-5, atol=0):
                return scaling
    raise checkpoint.refuse("rotary factors of its own", "those of Llama 3.1 and later", FREQUENCIES)


class _Settings:
    """The settings of a family, asked for by name and kind."""

    def __init__(self, source: str, header: GGUFHeader, family: str) -> None:
        self.source, self.header, self.family = source, header, family

    def get(self, key: str, default: Any = None) -> Any:
        return self.header.get(f"{self.family}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]  # one number per layer, the same for all
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self._missing(key, "a whole number, 1 or more", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._missing(key, "a finite number", value)
        return float(value)

    def _missing(self, key: str, expected: str, value: object) -> Exception:
        return refused(
            f"{self.source} lacks a setting that its family needs",
            expected=f"{self.family}.{key} as {expected}",
            got="nothing" if value is None else str(value)[:80],
            hint="convert the model again with a current llama.cpp",
        )
