"""Every family gives the numbers that transformers gives for the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from model_cases import SMALL, assert_alike, ids_of, ours, theirs

LLAMA = {**SMALL, "vocab_size": 50, "num_key_value_heads": 2, "max_position_embeddings": 64}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 50, "eos_token_id": 2}
GPT2 |= {"bos_token_id": 1}
BERT = {**SMALL, "vocab_size": 50, "max_position_embeddings": 64}
VIT = {**SMALL, "image_size": 16, "patch_size": 4}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, all": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 2.0,
        "beta_slow": 0.5,
        "mscale": 1.2,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 12,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("time", [9, 40])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_llama_with_each_rotary_scaling(scaling: str, time: int, tmp_path: Path) -> None:
    settings = {**LLAMA, "max_position_embeddings": 16 if scaling == "dynamic" else 64}
    model = theirs("LlamaForCausalLM", **settings, rope_parameters=dict(SCALINGS[scaling]))
    ids = ids_of(2, time)
    with torch.no_grad():
        expected = model(ids).logits
        assert_alike(ours(model, tmp_path)(ids), expected)
        if scaling != "dynamic" or time > 16:  # the test can tell scalings apart
            plain = theirs("LlamaForCausalLM", **settings)
            assert (plain(ids).logits - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    "old", [{"rope_theta": 5000.0}, {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 5000.0}]
)
def test_llama_with_the_keys_of_older_configs(old: dict[str, Any], tmp_path: Path) -> None:
    import json

    scaling = {"rope_theta": 5000.0, **({"rope_type": "linear", "factor": 3.0} if "rope_scaling" in old else {})}
    model = theirs("LlamaForCausalLM", **LLAMA, rope_parameters={"rope_type": "default", **scaling})
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"], config["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config | old))
    from sightline.models.build import build
    from sightline.models.checkpoints.opening import open_checkpoint

    ids = ids_of(2, 20)
    with torch.no_grad():
        assert_alike(build(open_checkpoint(tmp_path))(ids), model(ids).logits)


@pytest.mark.parametrize(
    "change",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1},
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"head_dim": 12},
        {"hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-3},
    ],
    ids=str,
)
def test_llama_variants(change: dict[str, Any], tmp_path: Path) -> None:
    model, ids = theirs("LlamaForCausalLM", **{**LLAMA, **change}), ids_of(2, 9)
    mine = ours(model, tmp_path)
    with torch.no_grad():
        assert_alike(mine(ids), model(ids).logits)
    assert (mine.head.weight is mine.embedding.weight) == change.get("tie_word_embeddings", False)


@pytest.mark.parametrize(
    "kind, change",
    [
        ("MistralForCausalLM", {"sliding_window": 5}),
        ("MistralForCausalLM", {"sliding_window": None}),
        ("Qwen2ForCausalLM", {}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("Phi3ForCausalLM", {"pad_token_id": 0}),
        ("Phi3ForCausalLM", {"pad_token_id": 0, "sliding_window": 3}),
        ("Phi3ForCausalLM", {"pad_token_id": 0, "partial_rotary_factor": 0.5, "num_attention_heads": 2}),
        (
            "Phi3ForCausalLM",
            {
                "pad_token_id": 0,
                "original_max_position_embeddings": 6,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0, 1.1, 1.2, 1.3],
                    "long_factor": [1.5, 2.0, 3.0, 4.0],
                },
            },
        ),
    ],
    ids=str,
)
def test_kin_of_llama(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    special = {"eos_token_id": 2, "bos_token_id": 1}
    model, ids = theirs(kind, **{**LLAMA, **special, **change}), ids_of(2, 11)
    with torch.no_grad():
        assert_alike(ours(model, tmp_path)(ids), model(ids).logits)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"n_inner": 40, "activation_function": "relu"},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
def test_gpt2(change: dict[str, Any], tmp_path: Path) -> None:
    model, ids = theirs("GPT2LMHeadModel", **{**GPT2, **change}), ids_of(2, 9)
    with torch.no_grad():
        assert_alike(ours(model, tmp_path)(ids), model(ids).logits)


def test_gpt2_without_its_prefix_and_with_old_tables(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from sightline.models.build import build
    from sightline.models.checkpoints.opening import open_checkpoint

    model, ids = theirs("GPT2LMHeadModel", **GPT2), ids_of(1, 9)
    model.config.save_pretrained(tmp_path)
    tensors = {name: t.contiguous() for name, t in model.transformer.state_dict().items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "model.safetensors")
    with torch.no_grad():
        assert_alike(build(open_checkpoint(tmp_path))(ids), model(ids).logits)


@pytest.mark.parametrize(
    "kind, change",
    [
        ("BertModel", {}),
        ("BertForMaskedLM", {"hidden_act": "relu"}),
        ("RobertaModel", {"pad_token_id": 1}),
        ("RobertaForMaskedLM", {"pad_token_id": 1, "type_vocab_size": 1}),
        ("XLMRobertaModel", {"pad_token_id": 1}),
    ],
)
def test_bert_and_its_kin_with_padding(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    model, ids, lengths = theirs(kind, **{**BERT, **change}), ids_of(3, 9), [9, 4, 1]
    real = torch.arange(9) < torch.tensor(lengths)[:, None]
    ids[~real] = change.get("pad_token_id", 0)
    mine = ours(model, tmp_path)
    with torch.no_grad():
        bare = getattr(model, model.base_model_prefix, model)
        expected = bare(ids, attention_mask=real.long()).last_hidden_state
        for padding in (lengths, real, sl.padding(lengths)):
            assert_alike(mine(ids, padding=padding)[real], expected[real])
        segments = torch.arange(9).expand(3, 9) // 5
        if change.get("type_vocab_size") != 1:
            expected = bare(ids, attention_mask=real.long(), token_type_ids=segments).last_hidden_state
            assert_alike(mine(ids, padding=lengths, segments=segments)[real], expected[real])


def test_distilbert(tmp_path: Path) -> None:
    model = theirs("DistilBertModel", dim=32, hidden_dim=48, n_layers=2, n_heads=4, vocab_size=50)
    ids = ids_of(2, 9)
    with torch.no_grad():
        assert_alike(ours(model, tmp_path)(ids), model(ids).last_hidden_state)


def test_bert_with_the_names_of_early_checkpoints(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from sightline.models.build import build
    from sightline.models.checkpoints.opening import open_checkpoint

    model, ids = theirs("BertModel", **BERT), ids_of(2, 9)
    model.config.save_pretrained(tmp_path)
    early = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, tensor in model.state_dict().items():
        for new, old in early.items():
            name = name.replace(new, old)
        tensors[f"bert.{name}"] = tensor.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with torch.no_grad():
        assert_alike(build(open_checkpoint(tmp_path))(ids), model(ids).last_hidden_state)


@pytest.mark.parametrize("change", [{}, {"qkv_bias": False}, {"image_size": [8, 20], "patch_size": [4, 5]}], ids=str)
def test_vit(change: dict[str, Any], tmp_path: Path) -> None:
    model = theirs("ViTForImageClassification", **{**VIT, **change}, num_labels=7)
    mine = ours(model, tmp_path)
    images = torch.randn(2, 3, *mine.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_alike(mine(images), model.vit(images).last_hidden_state)
        assert_alike(mine.classify(images), model(images).logits)
        out, sights = mine.observe(images[0], layers=-1)
        assert_alike(out, model.vit(images[:1]).last_hidden_state[0])
    patches = mine.grid[0] * mine.grid[1]
    assert sights[1].shape == (4, patches + 1, patches + 1)
    assert sights.tokens[:2] == ["image", "0,0"]
    assert len(sights.tokens) == patches + 1
    assert sights.tokens[-1] == f"{mine.grid[0] - 1},{mine.grid[1] - 1}"


def test_vit_without_a_classifier(tmp_path: Path) -> None:
    model = theirs("ViTModel", **VIT)
    mine = ours(model, tmp_path)
    images = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        assert_alike(mine(images), model(images).last_hidden_state)
    with pytest.raises(sl.errors.InputError, match="knows no classes"):
        mine.classify(images)
    with pytest.raises(sl.errors.InputError, match=r"\[\*batch, 3, 16, 16\]"):
        mine(images[..., :8])


def test_patches_are_the_rectangles_of_the_image(tmp_path: Path) -> None:
    mine = ours(theirs("ViTModel", **VIT), tmp_path)
    image = torch.arange(3 * 16 * 16.0).view(3, 16, 16)
    patches = mine.cut(image)
    assert patches.shape == (16, 3 * 4 * 4)
    assert torch.equal(patches[6], image[:, 4:8, 8:12].flatten())  # row 1, column 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind, config", [("LlamaForCausalLM", LLAMA), ("GPT2LMHeadModel", GPT2)])
def test_half_precision_files(kind: str, config: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    model, ids = theirs(kind, **config).to(dtype), ids_of(2, 9)
    mine = ours(model, tmp_path)
    with torch.no_grad():
        wide = theirs(kind, **config)
        for rounded, parameter in zip(model.parameters(), wide.parameters(), strict=True):
            parameter.copy_(rounded)
        expected = wide(ids).logits  # the rounded weights, computed with in float32
        assert mine.head.weight.dtype == torch.float32
        assert_alike(mine(ids), expected)
        half = ours(theirs(kind, **config).to(dtype), tmp_path, dtype=dtype)
        assert {p.dtype for p in half.parameters()} == {dtype}
        assert_alike(half(ids).float(), expected, tolerance=0.1 if dtype == torch.bfloat16 else 0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_files_in_shards(tied: bool, tmp_path: Path) -> None:
    model, ids = theirs("LlamaForCausalLM", **LLAMA, tie_word_embeddings=tied), ids_of(2, 9)
    mine = ours(model, tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    with torch.no_grad():
        assert_alike(mine(ids), model(ids).logits)
