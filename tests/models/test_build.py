"""A checkpoint that does not fit is refused before any of its numbers are read."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch

from model_cases import SMALL, Held, held, ids_of, theirs
from sightline.models.build import build, family_of
from sightline.models.checkpoints.base import CheckpointError
from sightline.models.families import FAMILIES

LLAMA: dict[str, Any] = {**SMALL, "vocab_size": 50, "num_key_value_heads": 2, "max_position_embeddings": 64}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 50, "eos_token_id": 2}


@pytest.fixture(scope="module")
def llama() -> Held:
    return held(theirs("LlamaForCausalLM", **LLAMA))


def changed(checkpoint: Held, config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Held:
    """A copy with other settings and tensors; None takes one away."""
    put = {**checkpoint.tensors, **(tensors or {})}
    said = {**checkpoint.config, **(config or {})}
    return Held(said, {name: t for name, t in put.items() if t is not None})


def test_every_tensor_is_read_once_and_nothing_else(llama: Held) -> None:
    copy = changed(llama, tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    model = build(copy)
    assert sorted(copy.was_read) == sorted(set(llama.names))
    assert not model.training
    assert (model.source, model.config["model_type"]) == ("memory", "llama")
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in model.parameters())


def test_a_fused_tensor_is_read_once_a_layer() -> None:
    checkpoint = held(theirs("GPT2LMHeadModel", **GPT2, bos_token_id=1))
    build(checkpoint)
    assert len(checkpoint.was_read) == len(set(checkpoint.was_read))


def test_what_is_built_does_not_share_memory_with_the_checkpoint(llama: Held) -> None:
    model = build(llama)
    with torch.no_grad():
        before = model(ids_of(1, 4)).clone()
        for tensor in llama.tensors.values():
            tensor.add_(1.0)
        again = model(ids_of(1, 4))
        for tensor in llama.tensors.values():
            tensor.sub_(1.0)
    assert torch.equal(before, again)


@pytest.mark.parametrize(
    "config, text",
    [
        ({"num_attention_heads": 1_000_000}, "q_proj"),
        ({"num_attention_heads": 10**30}, "num_attention_heads: a whole number from 1 to"),
        ({"num_hidden_layers": 1_000_000}, "layers 0 to 999999"),
        ({"num_hidden_layers": 1}, "layers 0 to 0"),
        ({"num_hidden_layers": 3}, "tensors of 2 layers, up to 1"),
        ({"hidden_size": 1 << 24}, "embed_tokens.weight of shape"),
        ({"head_dim": 1 << 24}, "q_proj.weight of shape"),
        ({"vocab_size": 51}, "embed_tokens.weight of shape"),
        ({"intermediate_size": 1 << 24}, "not "),
        ({"intermediate_size": 49}, r"mlp\.gate_proj\.weight of shape \(48, 32\), not \(49, 32\)"),
        ({"num_key_value_heads": 1}, "k_proj"),
        ({"num_attention_heads": True}, "num_attention_heads=True"),
        ({"num_attention_heads": -4}, "num_attention_heads=-4"),
        ({"num_attention_heads": None}, "got: nothing"),
        ({"hidden_act": "mish"}, "hidden_act: one of gelu"),
        ({"hidden_act": 3}, "hidden_act=3"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: a finite number above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: a finite number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: true or false"),
        ({"attention_bias": True}, "q_proj.bias"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
        ({"rope_parameters": 7}, "a dictionary"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "channels turn",
        ),
        ({"model_type": "mamba"}, "model_type='mamba'"),
        ({"model_type": None}, "model_type=None"),
    ],
    ids=str,
)
def test_configs_that_do_not_fit_are_refused_before_anything_is_read(
    llama: Held, config: dict[str, Any], text: str
) -> None:
    checkpoint = changed(llama, config)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=text):
            build(checkpoint)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert checkpoint.was_read == []


@pytest.mark.parametrize(
    "tensors, text",
    [
        ({"model.norm.weight": None}, "model.norm.weight missing"),
        ({"model.embed_tokens.weight": None}, "misses a tensor of a llama model"),
        ({"lm_head.weight": None}, "lm_head.weight missing"),
        ({"model.norm.weight": torch.zeros(33)}, r"model\.norm\.weight of shape \(33,\), not \(32,\)"),
        ({"model.layers.1.self_attn.o_proj.weight": torch.zeros(32)}, "o_proj.weight of shape"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.zeros(8)}, "q_norm"),
        ({"adapter.weight": torch.zeros(8)}, "tensors that its family does not use"),
        ({"model.layers.7.input_layernorm.weight": torch.zeros(32)}, "tensors of 3 layers, up to 7"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_before_anything_is_read(
    llama: Held, tensors: dict[str, Any], text: str
) -> None:
    checkpoint = changed(llama, tensors=tensors)
    with pytest.raises(CheckpointError, match=text):
        build(checkpoint)
    assert checkpoint.was_read == []


def test_a_tied_head_may_be_stored_once_more(llama: Held) -> None:
    model = build(changed(llama, {"tie_word_embeddings": True}))
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, llama.tensors["model.embed_tokens.weight"])


def test_the_precision_can_be_chosen(llama: Held) -> None:
    halves = changed(llama, tensors={name: t.half() for name, t in llama.tensors.items()})
    assert {p.dtype for p in build(halves).parameters()} == {torch.float32}
    assert {p.dtype for p in build(halves, dtype=torch.float16).parameters()} == {torch.float16}
    assert {p.dtype for p in build(halves, device="meta").parameters()} == {torch.float16}


def test_building_draws_no_random_numbers(llama: Held) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    build(llama)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_table_names_every_family(llama: Held) -> None:
    assert family_of(llama) is FAMILIES["llama"]
    assert {"bert", "gpt2", "llama", "vit"} <= set(FAMILIES)
    with pytest.raises(CheckpointError, match="CONTRIBUTING"):
        build(changed(llama, {"model_type": "unheard-of"}))


@pytest.mark.parametrize(
    "kind, config, change, text",
    [
        ("BertModel", {**SMALL, "vocab_size": 50}, {"position_embedding_type": "relative_key"}, "'absolute'"),
        ("BertModel", {**SMALL, "vocab_size": 50}, {"is_decoder": True}, "is_decoder: False"),
        ("BertModel", {**SMALL, "vocab_size": 50}, {"num_attention_heads": 5}, "cannot be split into equal heads"),
        ("GPT2LMHeadModel", {**GPT2, "bos_token_id": 1}, {"add_cross_attention": True}, "add_cross_attention: False"),
        ("GPT2LMHeadModel", {**GPT2, "bos_token_id": 1}, {"n_head": 10**6}, "width"),
        ("GPT2LMHeadModel", {**GPT2, "bos_token_id": 1}, {"n_positions": 65}, "wpe.weight"),
    ],
)
def test_other_families_refuse_what_is_not_built(
    kind: str, config: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    checkpoint = changed(held(theirs(kind, **config)), change)
    with pytest.raises(ValueError, match=text):
        build(checkpoint)
    assert checkpoint.was_read == []


@pytest.mark.parametrize(
    "change, text",
    [
        ({"image_size": 1 << 20}, "image_size: one or two whole numbers"),
        ({"image_size": 32}, r"position_embeddings of shape \(1, 65, 32\)"),
        ({"patch_size": [4, 4, 4]}, "patch_size"),
        ({"num_channels": 4}, "projection.weight of shape"),
    ],
)
def test_images_of_other_sizes_are_refused(change: dict[str, Any], text: str, tmp_path: Any) -> None:
    from sightline.models.checkpoints.opening import open_checkpoint

    theirs("ViTModel", **SMALL, image_size=16, patch_size=4).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.config = {**checkpoint.config, **change}
    with pytest.raises(CheckpointError, match=text):
        build(checkpoint)
