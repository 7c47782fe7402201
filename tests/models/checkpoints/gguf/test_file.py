"""A GGUF file gives what the folder it was converted from gives: names, config, numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from model_files import LLAMA, gguf_name, llama_tensors, write_gguf
from sightline.models.checkpoints.base import CheckpointError, SpecialTokens
from sightline.models.checkpoints.gguf import numbers
from sightline.models.checkpoints.opening import open_checkpoint
from sightline.positions.rotary_scaling import read_scaling

WIDE = {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_plain_numbers_are_exactly_those_of_the_folder(kind: Kind, tmp_path: Path) -> None:
    dtype = numbers.PLAIN[kind]
    tensors = {name: t.to(dtype).float() if t.ndim > 1 else t for name, t in llama_tensors().items()}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", tensors, kind=kind))
    assert checkpoint.names == sorted(tensors)
    for name, tensor in tensors.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.dtype(name) == (dtype if tensor.ndim > 1 else torch.float32)
        assert torch.equal(checkpoint.read(name, torch.float32), tensor), name
        assert checkpoint.read(name).dtype == checkpoint.dtype(name)


@pytest.mark.parametrize("chunk", [256, 1 << 20])
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_quantised_numbers_are_what_the_library_makes_of_them(
    kind: Kind, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "CHUNK", chunk)
    tensors = llama_tensors()
    path = write_gguf(tmp_path / "x.gguf", tensors, kind=kind)
    checkpoint = open_checkpoint(path)
    reader = gguf.GGUFReader(path)
    raw = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    for name in tensors:
        if "q_proj" not in name and "k_proj" not in name:
            assert torch.equal(checkpoint.read(name), torch.from_numpy(np.array(raw[gguf_name(name)]))), name
        assert checkpoint.dtype(name) == torch.float32
        assert (checkpoint.read(name) - tensors[name]).abs().max() < (0.01 if kind == Kind.Q8_0 else 0.2)
        assert torch.equal(checkpoint.read(name, torch.bfloat16), checkpoint.read(name).bfloat16())


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS])
def test_larger_blocks_read_too(kind: Kind, tmp_path: Path) -> None:
    """The library cannot write these, so the bytes are random; what is compared is how they are cut into blocks."""
    block, width = gguf.GGML_QUANT_SIZES[kind]
    path = write_gguf(tmp_path / "plain.gguf", llama_tensors(WIDE), WIDE)
    content = np.random.default_rng(0).integers(0, 60, (40, 256 // block * width), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.")):
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, content, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = open_checkpoint(tmp_path / "x.gguf").read("model.embed_tokens.weight")
    np.testing.assert_array_equal(read.numpy(), gguf.quants.dequantize(content, kind))


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_1])
def test_a_file_that_shrinks_is_an_error(kind: Kind, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", llama_tensors(), kind=kind)
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(CheckpointError, match="a file that ends before"):
        _ = [checkpoint.read(name) for name in checkpoint.names]


def test_rows_are_turned_back_as_transformers_turns_them(tmp_path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    path = write_gguf(tmp_path / "x.gguf", llama_tensors(), kind=Kind.Q4_1)
    checkpoint, theirs = open_checkpoint(path), LlamaTensorProcessor(LLAMA)
    seen = 0
    for tensor in gguf.GGUFReader(path).tensors:
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            name = next(name for name in checkpoint.names if gguf_name(name) == tensor.name)
            np.testing.assert_array_equal(checkpoint.read(name).numpy(), theirs.process(weights, tensor.name).weights)
            seen += 1
    assert seen == 4


def test_the_config_is_that_of_the_folder(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 3,
        "tokenizer.ggml.eot_token_id": 4,
        "tokenizer.ggml.unknown_token_id": 4000,
        "tokenizer.chat_template": "{{ messages }}",
    }
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", llama_tensors(), settings=settings))
    assert checkpoint.config == {
        **LLAMA,
        "rms_norm_eps": float(np.float32(1e-5)),
        "head_dim": 8,
        "rope_theta": 5000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }
    assert checkpoint.special == SpecialTokens(bos=1, eos=(2, 4), pad=3, chat_template="{{ messages }}")
    assert checkpoint.tokenizer is None
    assert checkpoint.beside("generation_config.json") is None


def test_an_output_of_its_own_is_not_tied(tmp_path: Path) -> None:
    tensors = {**llama_tensors(), "lm_head.weight": torch.randn(40, 32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", tensors))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert torch.equal(checkpoint.read("lm_head.weight"), tensors["lm_head.weight"])


def test_biases_are_turned_back_too(tmp_path: Path) -> None:
    tensors = {**llama_tensors()}
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.q_proj.bias"] = torch.randn(32)
        tensors[f"model.layers.{layer}.self_attn.k_proj.bias"] = torch.randn(16)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", tensors))
    assert checkpoint.config["attention_bias"] is True
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.read(name), tensor), name


def test_qwen2_keeps_its_rows_and_has_biases(tmp_path: Path) -> None:
    tensors = {**llama_tensors()}
    for layer in range(2):
        for part, rows in (("q", 32), ("k", 16), ("v", 16)):
            tensors[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = torch.randn(rows)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", tensors, architecture="qwen2"))
    assert checkpoint.config["model_type"] == "qwen2"
    assert checkpoint.config["num_key_value_heads"] == 2
    assert checkpoint.config["attention_bias"] is False  # which would be one for the output as well
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.read(name), tensor), name


def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    settings = {"llama.attention.sliding_window": 16}
    config = open_checkpoint(write_gguf(tmp_path / "x.gguf", llama_tensors(), settings=settings)).config
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 16)


# Rotary scalings


@pytest.mark.parametrize(
    "settings, scaling",
    [
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_scalings_in_settings(settings: dict[str, Any], scaling: object, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", llama_tensors(), settings=settings))
    assert checkpoint.config["rope_scaling"] == scaling


def llama3_factors(dim: int, theta: float, factor: float) -> np.ndarray:
    """One factor per pair of channels, as llama.cpp's converter writes them for Llama 3.1."""
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * theta ** (i / dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_factors_of_llama_3_become_its_formula_again(factor: float, tmp_path: Path) -> None:
    config = {**LLAMA, "hidden_size": 256}
    factors = llama3_factors(64, 500_000.0, factor)
    assert len(set(factors.tolist())) > 1, "the blend must be among them"
    path = write_gguf(
        tmp_path / "x.gguf",
        llama_tensors(config),
        config,
        settings={"llama.rope.freq_base": 500_000.0},
        extra={"rope_freqs.weight": factors},
    )
    checkpoint = open_checkpoint(path)
    scaling = checkpoint.config["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == factor
    assert "rope_freqs.weight" not in checkpoint.names
    plain, scaled = (read_scaling(64, 500_000.0, how).frequencies for how in (None, scaling))
    np.testing.assert_allclose(np.array(plain) / factors, scaled, rtol=1e-6)


def test_factors_of_another_formula_are_refused(tmp_path: Path) -> None:
    for factors in (np.array([1, 2, 3, 9]), np.array([1, 1, 1, np.nan]), np.zeros(4), np.ones(5)):
        extra = {"rope_freqs.weight": factors.astype(np.float32)}
        path = write_gguf(tmp_path / "x.gguf", llama_tensors(), extra=extra)
        with pytest.raises(CheckpointError, match="rotary factors of its own"):
            open_checkpoint(path)


# Refusals


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"llama.attention.head_count": 1_000_000}, "heads that do not fit its tensors"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count as a whole number"),
        ({"llama.attention.head_count": "4"}, "llama.attention.head_count as a whole number"),
        ({"llama.attention.head_count_kv": [2, 4]}, "llama.attention.head_count_kv as a whole number"),
        ({"llama.block_count": 4_000_000_000}, "llama.block_count as a whole number"),
        ({"llama.block_count": 50}, "num_hidden_layers of at most 20, the number of tensors"),
        ({"llama.embedding_length": 1 << 30}, "heads that do not fit its tensors"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon as a finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "rms_norm_eps as a number above 0"),
        ({"llama.rope.freq_base": -1.0}, "rope_theta as a number above 0"),
        ({"llama.rope.scaling.type": "longrope"}, "a rotary scaling that Sightline does not know"),
        ({"llama.rope.dimension_count": 4}, "heads that turn only in part"),
        ({"split.count": 3}, "only one part of a model"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    kept = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.block_count": 2}
    kept |= {"llama.embedding_length": 32, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    path = _with_settings(tmp_path, {**kept, **settings})
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    assert message in str(error.value)


def _with_settings(tmp_path: Path, settings: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_context_length(128)
    writer.add_feed_forward_length(64)
    for key, value in settings.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, tensor in llama_tensors().items():
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "x.gguf"


def test_missing_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(_with_settings(tmp_path, {}))
    assert "lacks a setting" in str(error.value)
    assert "llama.attention.head_count" in str(error.value)
    assert "got: nothing" in str(error.value)


def test_other_families_tensors_and_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a family that Sightline does not read"):
        open_checkpoint(write_gguf(tmp_path / "x.gguf", {}, architecture="falcon"))
    for name in ("blk.0.ffn_gate_exps.weight", "blk.00.attn_q.weight", "blk.0.attn_q.weight.weight", "v.blk.0"):
        path = write_gguf(tmp_path / "y.gguf", llama_tensors(), extra={name: np.ones(4, dtype=np.float32)})
        with pytest.raises(CheckpointError, match="a tensor that no Llama has"):
            open_checkpoint(path)
    whole_numbers = {"blk.0.attn_v.bias": np.ones(4, dtype=np.int32)}
    with pytest.raises(CheckpointError, match="I32: blk"):
        open_checkpoint(write_gguf(tmp_path / "z.gguf", llama_tensors(), extra=whole_numbers))
    tensors = llama_tensors()
    del tensors["model.embed_tokens.weight"]
    with pytest.raises(CheckpointError, match="no table of token vectors"):
        open_checkpoint(write_gguf(tmp_path / "w.gguf", tensors))
