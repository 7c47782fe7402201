"""Llama and its kin: decoders with rotary positions, RMS norms, grouped heads and a gated feed-forward part.

https://arxiv.org/abs/2302.13971. What the others change: Mistral sees a sliding window, Qwen2 has biases for q, k and v
(and windows in its upper layers, if asked), Phi-3 keeps q, k and v in one tensor, and so gate and up.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sightline.masks import Mask, causal, window
from sightline.models.families.base import Family, Source, set_biases
from sightline.models.families.settings import Settings
from sightline.models.text.language_model import LanguageModel
from sightline.nn import Decoder
from sightline.positions import Rotary

LAYER = "decoder.layers.#."
QKV = tuple(f"{LAYER}attention.{part}.*" for part in ("query", "key", "value"))
GATE_UP = (f"{LAYER}feed_forward.gate.*", f"{LAYER}feed_forward.up.*")


def llama(say: Settings) -> nn.Module:
    width, heads = say.whole("hidden_size"), say.whole("num_attention_heads")
    kv_heads, head_dim = say.whole("num_key_value_heads", default=heads), say.whole("head_dim", default=width // heads)
    prefix = _prefix(say)
    layers = say.layers("num_hidden_layers", names=f"{prefix}layers.#")
    vocabulary, length = say.whole("vocab_size"), say.whole("max_position_embeddings", default=2048)
    # Before anything is made whose size only the config says.
    say.expect(f"{prefix}embed_tokens.weight", vocabulary, width)
    if say.model_type == "phi3":
        say.expect(f"{prefix}layers.0.self_attn.qkv_proj.weight", (heads + 2 * kv_heads) * head_dim, width)
    else:
        say.expect(f"{prefix}layers.0.self_attn.q_proj.weight", heads * head_dim, width)
    decoder = Decoder(
        width,
        heads,
        layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=say.whole("intermediate_size"),
        positions=rotary(say, head_dim, length),
        mask=_masks(say, layers),
        norm="rms",
        eps=say.number("rms_norm_eps", default=1e-6),
        activation=say.activation("hidden_act", default="silu"),
        gated=True,
        bias=False,
    )
    of_attention, of_feed_forward = say.flag("attention_bias", False), say.flag("mlp_bias", False)
    of_qkv = of_attention or say.model_type == "qwen2"
    biases = {f"attention.{part}": of_qkv for part in ("query", "key", "value")} | {"attention.output": of_attention}
    biases |= {f"feed_forward.{part}": of_feed_forward for part in ("gate", "up", "down")}
    set_biases(decoder.layers, biases)
    tied = say.flag("tie_word_embeddings", False)
    return LanguageModel(nn.Embedding(vocabulary, width), decoder, tied=tied, context=length)


def rotary(say: Settings, head_dim: int, length: int) -> Rotary:
    """The rotary positions of a config: `rope_parameters` of newer ones, `rope_scaling` and `rope_theta` of others."""
    said: Any = say.get("rope_scaling", "rope_parameters", default={})
    if not isinstance(said, dict):
        raise say.wrong(("rope_scaling", "rope_parameters"), "a dictionary", said)
    scaling = {"rope_theta": say.number("rope_theta", default=10000.0), **_without_nulls(said)}
    scaling.setdefault("rope_type", scaling.get("type", "default"))
    if "original_max_position_embeddings" in say.config:  # Phi-3: what stands outside counts
        scaling["original_max_position_embeddings"] = say.whole("original_max_position_embeddings")
    scaling.setdefault("max_position_embeddings", length)
    part = scaling.setdefault("partial_rotary_factor", say.number("partial_rotary_factor", default=1.0))
    if say.model_type != "phi3" and part != 1:
        raise say.wrong(("partial_rotary_factor",), "1: all channels turn", part)
    return Rotary(head_dim, scaling=scaling)


def _masks(say: Settings, layers: int) -> Mask | list[Mask | None]:
    """Causal, or a sliding window, for all layers or by the list of their types."""
    size = say.get("sliding_window")
    if say.model_type == "llama" or size is None or (say.model_type == "qwen2" and not _windows(say)):
        return causal()
    narrow = window(say.whole("sliding_window") - 1)  # theirs counts the position itself
    if say.model_type != "qwen2":
        return narrow
    kinds = {"full_attention": causal(), "sliding_attention": narrow}
    first = say.get("max_window_layers", default=28)
    types = say.get("layer_types", default=[list(kinds)[number >= first] for number in range(layers)])
    if not isinstance(types, list) or len(types) != layers or not all(kind in kinds for kind in types):
        raise say.wrong(("layer_types",), f"{layers} times one of {', '.join(kinds)}", types)
    return [kinds[kind] for kind in types]


def _windows(say: Settings) -> bool:
    return say.flag("use_sliding_window", False)


def _without_nulls(said: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if value is not None}


def _prefix(say: Settings) -> str:
    return say.prefix("embed_tokens.weight", "model.")


def llama_names(say: Settings) -> dict[str, str | Source]:
    prefix = _prefix(say)
    layer = f"{prefix}layers.#."
    names: dict[str, str | Source] = {
        "embedding.weight": f"{prefix}embed_tokens.weight",
        "decoder.norm.weight": f"{prefix}norm.weight",
        "head.weight": "lm_head.weight",
        f"{LAYER}attention_norm.weight": f"{layer}input_layernorm.weight",
        f"{LAYER}attention.query.*": f"{layer}self_attn.q_proj.*",
        f"{LAYER}attention.key.*": f"{layer}self_attn.k_proj.*",
        f"{LAYER}attention.value.*": f"{layer}self_attn.v_proj.*",
        f"{LAYER}attention.output.*": f"{layer}self_attn.o_proj.*",
        f"{LAYER}feed_forward_norm.weight": f"{layer}post_attention_layernorm.weight",
        f"{LAYER}feed_forward.gate.*": f"{layer}mlp.gate_proj.*",
        f"{LAYER}feed_forward.up.*": f"{layer}mlp.up_proj.*",
        f"{LAYER}feed_forward.down.*": f"{layer}mlp.down_proj.*",
    }
    if say.model_type == "phi3":
        names |= {own: Source(f"{layer}self_attn.qkv_proj.*", shares=QKV) for own in QKV}
        names |= {own: Source(f"{layer}mlp.gate_up_proj.*", shares=GATE_UP) for own in GATE_UP}
    return names


# The rotary frequencies can be computed; a tied head may be stored once more.
LLAMA = Family(("llama", "mistral", "qwen2", "phi3"), llama, llama_names, ("*rotary_emb.inv_freq", "lm_head.weight"))
