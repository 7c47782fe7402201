"""Small models of transformers with random weights, for `watch_models.py`: their shapes are odd on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

TOKENS, LENGTH = 97, 13
SIDES = (None, "left", "right")


class Case(NamedTuple):
    """A model, and what goes into it: `inputs(side)` with padding on the left, on the right, or none."""

    library: str
    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[str | None], dict[str, Any]]
    sides: tuple[str | None, ...] = (None,)
    # Ends of the paths of modules that do not attend although their class says so: linear attention, and the like.
    no_attention: tuple[str, ...] = ()


def text(length: int = LENGTH, decoder: int = 0, **more: Any) -> Callable[[str | None], dict[str, Any]]:
    """Two texts of random tokens; the first is padded."""

    def inputs(side: str | None) -> dict[str, Any]:
        ids = torch.randint(2, TOKENS, (2, length))
        mask = torch.ones_like(ids)
        if side is not None:
            mask[0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
        given = {"input_ids": ids, "attention_mask": mask, **more}
        if decoder:
            given["decoder_input_ids"] = torch.randint(2, TOKENS, (2, decoder))
        return given

    return inputs


def images(height: int, width: int | None = None, **more: Any) -> Callable[[str | None], dict[str, Any]]:
    return lambda _: {"pixel_values": torch.randn(2, 3, height, width or height), **more}


def tiny(architecture: str, **config: Any) -> Callable[[], nn.Module]:
    """The class and its configuration; the attention that it has by default."""

    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, architecture)
        return cls(cls.config_class(**config))

    return make


SPECIAL = {"vocab_size": TOKENS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
HIDDEN = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
BERT = HIDDEN | SPECIAL | {"max_position_embeddings": 80}
LLAMA = BERT | {"num_key_value_heads": 1}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2} | SPECIAL
HALVES = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "d_model": 16,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 80,
    **SPECIAL,
}


def longformer(side: str | None) -> dict[str, Any]:
    given = text()(side)
    given["global_attention_mask"] = torch.zeros_like(given["input_ids"])
    given["global_attention_mask"][:, 0] = 1
    return given


_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_GPTJ = {"n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "n_positions": 80} | SPECIAL
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 80} | SPECIAL
_BLOOM = {"hidden_size": 16, "n_layer": 2, "n_head": 2} | SPECIAL
_SWIN = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 3, "image_size": 28, "patch_size": 4}
_BIGBIRD = {"block_size": 4, "num_random_blocks": 1}
_SWITCH = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}


_REFORMER = {
    "attention_head_size": 8,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "feed_forward_size": 16,
    "attn_layers": ["local", "lsh"],
    "axial_pos_shape": [4, 4],
    "axial_pos_embds_dim": [8, 8],
    "num_buckets": 4,
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 4,
    "num_hashes": 1,
    "is_decoder": False,
    **SPECIAL,
}
_LED = {"attention_window": [4, 4], "max_encoder_position_embeddings": 80, "max_decoder_position_embeddings": 80}
_NEXT = {
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}
_DEEPSEEK = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 2,
}
_GPT_NEO = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 5, "max_position_embeddings": 80}
_GPT_NEO |= {"attention_types": [[["global", "local"], 1]]} | SPECIAL
_PROPHET = {
    "hidden_size": 16,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_encoder_attention_heads": 2,
    "num_decoder_attention_heads": 2,
    "ngram": 2,
    **SPECIAL,
}
_SPEECH = HIDDEN | {"conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [5, 3], "num_conv_pos_embeddings": 4}
_SPEECH |= {"num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
_SPEECH |= {"mask_time_prob": 0.0, "layerdrop": 0.0}
_WHISPER = HALVES | {"num_mel_bins": 8, "max_source_positions": 13, "max_target_positions": 32}
_WHISPER |= {"decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None}
_SERIES = {"prediction_length": 4, "context_length": 11, "lags_sequence": [1, 2], "d_model": 16, "encoder_layers": 2}
_SERIES |= {"decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_time_features": 1}


def without_mask(side: str | None) -> dict[str, Any]:
    return {"input_ids": text()(side)["input_ids"]}


def speech(side: str | None) -> dict[str, Any]:
    mask = torch.ones(2, 133).long()
    if side is not None:
        mask[0, slice(0, 30) if side == "left" else slice(-30, None)] = 0
    return {"input_values": torch.randn(2, 133), "attention_mask": mask}


def heard(_: str | None) -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 26), "decoder_input_ids": torch.randint(2, TOKENS, (2, 5))}


def perceived(side: str | None) -> dict[str, Any]:
    return {"inputs": torch.randn(2, LENGTH, 16), "attention_mask": text()(side)["attention_mask"]}


def series(_: str | None) -> dict[str, Any]:
    past, future = (2, 13), (2, 4)
    given = {"past_values": torch.randn(past), "past_time_features": torch.randn(*past, 1)}
    given |= {"past_observed_mask": torch.ones(past), "future_time_features": torch.randn(*future, 1)}
    return given | {"future_values": torch.randn(future)}


def seen_and_read(size: int) -> Callable[[str | None], dict[str, Any]]:
    """An image beside the text."""
    return lambda side: text()(side) | images(size)(side)


def page_of_words(side: str | None) -> dict[str, Any]:
    """Words, where they stand on a page, and the page."""
    given = seen_and_read(16)(side)
    corner = torch.randint(0, 20, (2, LENGTH, 2))
    return given | {"bbox": torch.cat([corner, corner + torch.randint(1, 10, (2, LENGTH, 2))], -1)}


def patches(_: str | None) -> dict[str, Any]:
    """An image of 6 x 10 patches and one of 4 x 6, in a row; in windows of 4 x 4 the last ones are cut off."""
    grid = torch.tensor([[1, 6, 10], [1, 4, 6]])
    return {"hidden_states": torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 4 * 4), "grid_thw": grid}


def qwen_eyes() -> nn.Module:
    """What Qwen2.5-VL looks at images with: windows, and one layer that sees the whole of each image."""
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as said
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as made

    config = said.Qwen2_5_VLVisionConfig(
        depth=2, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, window_size=16,
        fullatt_block_indexes=[1], out_hidden_size=16,
    )  # fmt: skip
    return made.Qwen2_5_VisionTransformerPretrainedModel(config)


_XGLM = {"d_model": 16, "ffn_dim": 16, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 80} | SPECIAL
_BLIP = {"encoder_hidden_size": 16, "is_decoder": False, "sep_token_id": 1, "projection_dim": 16}
_BLIP = {"text_config": BERT | _BLIP}
_BLIP |= {"vision_config": HIDDEN | {"image_size": 16, "patch_size": 4, "projection_dim": 16}, "projection_dim": 16}
_LAYOUT = {"max_2d_position_embeddings": 40, "coordinate_size": 3, "shape_size": 2, "input_size": 16, "patch_size": 4}


def of(
    name: str, config: dict, inputs: Callable | None = None, sides: tuple = SIDES, no_attention: tuple[str, ...] = ()
) -> Case:
    return Case("transformers", name, tiny(name, **config), inputs or text(), sides, no_attention)


CASES = [
    of("LlamaModel", LLAMA),
    of("MistralModel", LLAMA | {"sliding_window": 5}),
    of("MixtralModel", LLAMA | {"num_local_experts": 4}),
    of("GPT2Model", _GPT2),
    of("GPTJModel", _GPTJ),
    of("BloomModel", _BLOOM),
    of("BertModel", BERT),
    of("MPNetModel", BERT),
    of("DebertaModel", BERT | _DEBERTA),
    of("DebertaV2Model", BERT | _DEBERTA),
    of("LongformerModel", BERT | {"attention_window": [4, 4]}, longformer),
    of("BigBirdModel", BERT | _BIGBIRD | {"attention_type": "block_sparse"}, text(67)),
    of("BigBirdPegasusModel", HALVES | _BIGBIRD, text(67, 5)),
    of("PegasusXModel", HALVES | {"block_size": 4, "num_global_tokens": 3}, text(13, 5)),
    of("BartModel", HALVES, text(13, 5)),
    of("T5Model", _T5, text(13, 5)),
    of("LongT5Model", _T5 | {"local_radius": 3}, text(13, 5)),
    of("LongT5Model", _T5 | {"local_radius": 3, "encoder_attention_type": "transient-global"}, text(13, 5)),
    of("SwitchTransformersModel", _T5 | _SWITCH, text(13, 5)),
    of("XLNetModel", {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 16} | SPECIAL),
    of("FunnelModel", {"block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16} | SPECIAL),
    of("ReformerModel", _REFORMER, text(16)),
    of("LEDModel", HALVES | _LED, text(13, 5)),
    of("NystromformerModel", BERT | {"num_landmarks": 4, "segment_means_seq_len": 16}, text(16), (None,)),
    of("ConvBertModel", BERT | {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3}),
    of("FNetModel", BERT, without_mask),
    of("MambaModel", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4} | SPECIAL),
    of(
        "RwkvModel",
        {"hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16} | SPECIAL,
        without_mask,
        (None,),
        ("attention",),
    ),
    of(
        "RecurrentGemmaModel",
        LLAMA | {"head_dim": 8, "lru_width": 16, "attention_window_size": 5, "num_hidden_layers": 3},
    ),
    of("Qwen3NextModel", LLAMA | _NEXT),
    of("DeepseekV3Model", LLAMA | _DEEPSEEK),
    of(
        "MiniMaxModel",
        LLAMA
        | {
            "head_dim": 8,
            "num_local_experts": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 4,
        },
        no_attention=("layers.0.self_attn",),
    ),
    of("GptOssModel", LLAMA | {"head_dim": 8, "sliding_window": 5, "num_local_experts": 4}),
    of("Gemma2Model", LLAMA | {"head_dim": 8, "sliding_window": 5}),
    of("CodeGenModel", _GPTJ | {"n_embd": 32, "n_head": 4}),
    of("FalconModel", BERT | {"alibi": False}),
    of("FalconModel", BERT | {"alibi": True}),
    of("MptModel", {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 80, "vocab_size": TOKENS}),
    of("GPTNeoModel", _GPT_NEO),
    of("GPTNeoXModel", BERT),
    of(
        "OPTModel",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 16,
            "word_embed_proj_dim": 16,
            "max_position_embeddings": 80,
        }
        | SPECIAL,
    ),
    of("XLMModel", {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 80} | SPECIAL),
    of("ProphetNetModel", _PROPHET, text(13, 5)),
    of(
        "SqueezeBertModel",
        BERT
        | {"embedding_size": 16}
        | {f"{x}_groups": 1 for x in ("q", "k", "v", "post_attention", "intermediate", "output")},
    ),
    of("IBertModel", BERT | {"quant_mode": False}),
    of(
        "CanineModel",
        BERT | {"num_hash_functions": 2, "local_transformer_stride": 16, "downsampling_rate": 4},
        text(32),
    ),
    of("Wav2Vec2ConformerModel", _SPEECH | {"position_embeddings_type": "relative"}, speech, SIDES),
    of("Wav2Vec2Model", _SPEECH, speech, SIDES),
    of("WhisperModel", _WHISPER, heard, (None,)),
    of(
        "PerceiverModel",
        {
            "d_model": 16,
            "d_latents": 16,
            "num_latents": 5,
            "num_blocks": 1,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
        },
        perceived,
        SIDES,
    ),
    of("Swinv2Model", _SWIN | {"image_size": 24}, images(24), (None,)),
    of(
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        images(52),
        (None,),
    ),
    of(
        "SamVisionModel",
        HIDDEN
        | {
            "image_size": 32,
            "patch_size": 4,
            "window_size": 3,
            "global_attn_indexes": [1],
            "output_channels": 8,
            "num_pos_feats": 4,
        },
        images(32),
        (None,),
    ),
    of("BeitModel", HIDDEN | {"image_size": 15, "patch_size": 3}, images(15), (None,)),
    of(
        "LevitModel",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "mlp_ratio": [2, 2, 2],
            "attention_ratio": [2, 2, 2],
        },
        images(64),
        (None,),
    ),
    of(
        "PvtModel",
        {"image_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2]},
        images(64),
        (None,),
    ),
    of("TimeSeriesTransformerModel", _SERIES, series, (None,)),
    of("AutoformerModel", _SERIES | {"moving_average": 3, "label_length": 4}, series, (None,), ("_attn",)),
    of("InformerModel", _SERIES, series, (None,)),
    of("ViTModel", HIDDEN | {"image_size": 15, "patch_size": 3}, images(15), (None,)),
    of("SwinModel", _SWIN, images(28), (None,)),
    of("XGLMModel", _XGLM),
    of("BlipModel", _BLIP, seen_and_read(16)),
    of("ViltModel", BERT | {"image_size": 16, "patch_size": 4}, seen_and_read(16)),
    of("LayoutLMv3Model", BERT | _LAYOUT, page_of_words),
    Case("transformers", "Qwen2_5_VisionTransformer", qwen_eyes, patches),
]
