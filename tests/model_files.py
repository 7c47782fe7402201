"""Checkpoints for tests: small honest ones, and the pieces to make dishonest ones of."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def llama_tensors(config: Mapping[str, Any] = LLAMA, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights of a small Llama, by Hugging Face's names."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (kv, width),
            "self_attn.v_proj": (kv, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return {name: (torch.randn(shape) / 4).to(dtype) for name, shape in shapes.items()}


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] = LLAMA, shards: int = 1
) -> Path:
    """A checkpoint folder; in more than one shard, with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    where = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    write_index(folder, where)
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header; `length` is what it says of the header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k: channel i of a head's halves side by side."""
    dim = rows.shape[0] // heads
    order = [head * dim + half * dim // 2 + i for head in range(heads) for i in range(dim // 2) for half in range(2)]
    return np.ascontiguousarray(rows[order])


def write_gguf(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any] = LLAMA,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
) -> Path:
    """A GGUF file of a Llama, as llama.cpp would convert it; matrices in `kind`."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for key, value in (settings or {}).items():
        if key == "general.alignment":
            writer.add_custom_alignment(value)
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, tensor in tensors.items():
        numbers = tensor.float().numpy()
        if "q_proj" in name and architecture == "llama":
            numbers = turned(numbers, config["num_attention_heads"])
        elif "k_proj" in name and architecture == "llama":
            numbers = turned(numbers, config["num_key_value_heads"])
        used = kind if numbers.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(numbers, used), raw_dtype=used)
    for name, numbers in (extra or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
