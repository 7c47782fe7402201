"""Small models with random weights of timm, torchvision, diffusers, open_clip, x-transformers, peft, … and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zoo_transformers import LLAMA, SIDES, TOKENS, Case, text, tiny

Inputs = Callable[[str | None], dict[str, Any]]


def image(size: int, channels: int = 3) -> Inputs:
    return lambda _: {"args": (torch.randn(2, channels, size, size),)}


def features(length: int, dim: int = 16) -> Inputs:
    return lambda _: {"args": (torch.randn(2, length, dim),)}


# timm


def timm(module: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from importlib import import_module

        return getattr(import_module(f"timm.{module}"), name)(num_classes=3, **options)

    return make


def by_name(name: str, fused: bool = True, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        timm.layers.set_fused_attn(fused)
        try:
            return timm.create_model(name, num_classes=3, **options)
        finally:
            timm.layers.set_fused_attn(True)

    return make


_VIT = {"img_size": 15, "patch_size": 3, "embed_dim": 16, "depth": 2, "num_heads": 2}
_SWIN = {"img_size": 28, "patch_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2), "window_size": 3}
_XCIT = {"img_size": 24, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "cls_attn_layers": 2}

TIMM = [
    Case("timm", "vit", by_name("vit_tiny_patch16_224", **_VIT), image(15)),
    Case("timm", "vit, not fused", by_name("vit_tiny_patch16_224", fused=False, **_VIT), image(15)),
    Case(
        "timm",
        "vit, pooled by attention",
        by_name("vit_tiny_patch16_224", global_pool="map", class_token=False, **_VIT),
        image(15),
    ),
    Case("timm", "swin", timm("models.swin_transformer", "SwinTransformer", **_SWIN), image(28)),
    Case(
        "timm",
        "swin v2",
        timm("models.swin_transformer_v2", "SwinTransformerV2", **_SWIN | {"img_size": 24}),
        image(24),
    ),
    Case("timm", "cait", timm("models.cait", "Cait", **_VIT), image(15)),
    Case("timm", "xcit", timm("models.xcit", "Xcit", **_XCIT), image(24)),
    Case("timm", "volo", by_name("volo_d1_224", img_size=32), image(32)),
    Case("timm", "seresnet18", by_name("seresnet18"), image(33)),
    Case("timm", "gcresnet", by_name("gcresnext26ts"), image(33)),
    Case("timm", "sknet", by_name("skresnet18"), image(33), (None,), ("attn",)),
    Case("timm", "botnet", by_name("botnet26t_256", img_size=64), image(64)),
    Case("timm", "halonet", by_name("halonet26t"), image(256)),
    Case("timm", "lambda", by_name("lambda_resnet26t"), image(64), (None,), (".0", ".1")),
    Case("timm", "levit", by_name("levit_128s"), image(224)),
    Case("timm", "mvitv2", by_name("mvitv2_tiny", img_size=64), image(64)),
    Case("timm", "pvt v2", by_name("pvt_v2_b0"), image(64)),
    Case("timm", "twins", by_name("twins_svt_small", img_size=64), image(64)),
    Case("timm", "crossvit", by_name("crossvit_tiny_240"), image(240)),
    Case("timm", "efficientvit (linear)", by_name("efficientvit_b0"), image(64)),
    Case("timm", "poolformer", by_name("poolformer_s12"), image(64)),
    Case("timm", "maxvit", by_name("maxvit_pico_rw_256", img_size=64), image(64)),
    Case(
        "timm",
        "beit",
        by_name("beit_base_patch16_224", img_size=15, patch_size=3, embed_dim=16, depth=2, num_heads=2),
        image(15),
    ),
    Case(
        "timm",
        "eva",
        by_name("eva02_tiny_patch14_224", img_size=15, patch_size=3, embed_dim=16, depth=2, num_heads=2),
        image(15),
    ),
]

# diffusers


def unet(by_hand: bool = False, slices: int = 0) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from diffusers import UNet2DConditionModel
        from diffusers.models.attention_processor import AttnProcessor, SlicedAttnProcessor

        model = UNet2DConditionModel(
            sample_size=8,
            in_channels=3,
            out_channels=3,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16,
            attention_head_dim=8,
        )
        if by_hand:
            model.set_attn_processor(SlicedAttnProcessor(slices) if slices else AttnProcessor())
        return model

    return make


def described(side: str | None) -> dict[str, Any]:
    mask = torch.ones(2, 7)
    if side is not None:
        mask[0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    given = {"sample": torch.randn(2, 3, 8, 8), "timestep": torch.tensor([3, 5])}
    return given | {"encoder_hidden_states": torch.randn(2, 7, 16), "encoder_attention_mask": mask}


def diffuser(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import diffusers

        return getattr(diffusers, name)(**options)

    return make


_DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "patch_size": 2, "in_channels": 4}


def labelled(_: str | None) -> dict[str, Any]:
    latent = {"hidden_states": torch.randn(2, 4, 10, 10), "timestep": torch.tensor([3, 5])}
    return latent | {"class_labels": torch.tensor([1, 2])}


def joined(_: str | None) -> dict[str, Any]:
    latent = {"hidden_states": torch.randn(2, 4, 10, 10), "timestep": torch.tensor([3, 5])}
    return latent | {"encoder_hidden_states": torch.randn(2, 7, 16), "pooled_projections": torch.randn(2, 16)}


def flux(_: str | None) -> dict[str, Any]:
    words = {"encoder_hidden_states": torch.randn(2, 7, 16), "pooled_projections": torch.randn(2, 16)}
    places = {"img_ids": torch.randn(25, 3), "txt_ids": torch.zeros(7, 3)}
    return {"hidden_states": torch.randn(2, 25, 4), "timestep": torch.tensor([0.3, 0.5])} | words | places


def sana(_: str | None) -> dict[str, Any]:
    latent = {"hidden_states": torch.randn(2, 4, 10, 10), "timestep": torch.tensor([3, 5])}
    return latent | {"encoder_hidden_states": torch.randn(2, 7, 16), "encoder_attention_mask": torch.ones(2, 7)}


_SD3 = {
    "sample_size": 10,
    "joint_attention_dim": 16,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 16,
    "out_channels": 4,
    "pos_embed_max_size": 10,
}
_FLUX = {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 2, "attention_head_dim": 8}
_FLUX |= {"num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 16, "axes_dims_rope": (2, 2, 4)}
_VAE = {"block_out_channels": (8, 8), "norm_num_groups": 4, "down_block_types": ("DownEncoderBlock2D",) * 2}
_SANA = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": 16,
    "sample_size": 10,
}
DIFFUSERS = [
    Case("diffusers", "UNet2DConditionModel", unet(), described, SIDES),
    Case("diffusers", "UNet2DConditionModel, by hand", unet(by_hand=True), described, SIDES),
    Case("diffusers", "UNet2DConditionModel, sliced", unet(by_hand=True, slices=3), described, SIDES),
    Case("diffusers", "DiTTransformer2DModel", diffuser("DiTTransformer2DModel", sample_size=10, **_DIT), labelled),
    Case("diffusers", "SD3Transformer2DModel", diffuser("SD3Transformer2DModel", **_DIT, **_SD3), joined),
    Case("diffusers", "FluxTransformer2DModel", diffuser("FluxTransformer2DModel", **_FLUX), flux),
    Case("diffusers", "SanaTransformer2DModel", diffuser("SanaTransformer2DModel", **_SANA), sana, (None,), ("attn1",)),
    Case(
        "diffusers",
        "AutoencoderKL",
        diffuser("AutoencoderKL", **_VAE, up_block_types=("UpDecoderBlock2D",) * 2),
        image(14),
    ),
]

# open_clip, x-transformers, peft, sentence-transformers, torchvision, torch


def open_clip(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import open_clip

        vision = {"image_size": 15, "layers": 2, "width": 16, "patch_size": 3, "head_width": 8}
        words = {"context_length": 13, "vocab_size": TOKENS, "width": 16, "heads": 2, "layers": 2}
        if name == "CoCa":
            more = {"multimodal_cfg": words, "embed_dim": 16}
            return open_clip.coca_model.CoCa(
                vision_cfg=vision | {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
                text_cfg=words | {"embed_cls": True, "output_tokens": True},
                **more,
            )
        return getattr(open_clip.model, name)(embed_dim=16, vision_cfg=vision | options, text_cfg=words)

    return make


def pictures_and_words(size: int = 15, length: int = 13) -> Inputs:
    return lambda _: {"args": (torch.randn(2, 3, size, size), torch.randint(2, TOKENS, (2, length)))}


def x_transformer(kind: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import x_transformers

        layers = getattr(x_transformers, kind)(dim=16, depth=2, heads=2, attn_dim_head=8, **options)
        return x_transformers.TransformerWrapper(num_tokens=TOKENS, max_seq_len=32, attn_layers=layers)

    return make


def tokens(side: str | None) -> dict[str, Any]:
    real = torch.ones(2, 13, dtype=torch.bool)
    if side is not None:
        real[0, slice(0, 3) if side == "left" else slice(-3, None)] = False
    return {"args": (torch.randint(2, TOKENS, (2, 13)),), "mask": real}


def lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    return peft.get_peft_model(tiny("LlamaForCausalLM", **LLAMA)(), config)


def sentences() -> nn.Module:
    import tempfile

    from sentence_transformers import SentenceTransformer, models
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with tempfile.TemporaryDirectory() as folder:
        tiny("BertModel", **LLAMA)().save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
        words = models.Transformer(folder)
        return SentenceTransformer(modules=[words, models.Pooling(16)], device="cpu")


def vision(module: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from importlib import import_module

        return getattr(import_module(f"torchvision.models.{module}"), name)(num_classes=3, **options)

    return make


def padded(length: int = 13) -> Inputs:
    def inputs(side: str | None) -> dict[str, Any]:
        hidden = torch.zeros(2, length, dtype=torch.bool)
        if side is not None:
            hidden[0, slice(0, 3) if side == "left" else slice(-3, None)] = True
        return {"args": (torch.randn(2, length, 16),), "src_key_padding_mask": hidden}

    return inputs


def halves(side: str | None) -> dict[str, Any]:
    given = padded()(side)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    more = {"memory_key_padding_mask": given["src_key_padding_mask"], "tgt_mask": causal}
    return given | more | {"args": (*given["args"], torch.randn(2, 5, 16))}


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)


_LAYERS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16}
_TV_SWIN = {"patch_size": [4, 4], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": [3, 3]}
_TV_MAXVIT = {
    "input_size": (56, 56),
    "stem_channels": 8,
    "partition_size": 7,
    "block_channels": [8, 16],
    "block_layers": [1, 1],
    "head_dim": 4,
    "stochastic_depth_prob": 0.1,
}
OTHERS = [
    Case("open_clip_torch", "CLIP", open_clip("CLIP"), pictures_and_words()),
    Case(
        "open_clip_torch",
        "CLIP, pooled by attention",
        open_clip("CLIP", attentional_pool=True, attn_pooler_heads=2),
        pictures_and_words(),
    ),
    Case(
        "open_clip_torch",
        "CLIP, a ResNet",
        open_clip("CLIP", layers=[1, 1, 1, 1], width=8, image_size=64, patch_size=None),
        pictures_and_words(64),
    ),
    Case("open_clip_torch", "CoCa", open_clip("CoCa"), pictures_and_words()),
    Case("x-transformers", "Encoder", x_transformer("Encoder"), tokens, SIDES),
    Case("x-transformers", "Decoder, flash", x_transformer("Decoder", attn_flash=True), tokens, SIDES),
    Case(
        "x-transformers",
        "Decoder, talking heads, ALiBi",
        x_transformer(
            "Decoder", attn_pre_talking_heads=True, attn_post_talking_heads=True, alibi_pos_bias=True, alibi_num_heads=2
        ),
        tokens,
        SIDES,
    ),
    Case(
        "x-transformers",
        "Decoder, qk-norm, one kv head, rotary",
        x_transformer("Decoder", attn_qk_norm=True, attn_one_kv_head=True, rotary_pos_emb=True),
        tokens,
        SIDES,
    ),
    Case(
        "x-transformers",
        "Decoder, memory keys, softcap",
        x_transformer("Decoder", attn_num_mem_kv=3, attn_softclamp_logits=True),
        tokens,
        SIDES,
    ),
    Case("peft", "LoRA on LlamaForCausalLM", lora, text(), SIDES),
    Case("sentence-transformers", "SentenceTransformer", sentences, lambda side: {"args": (text()(side),)}, SIDES),
    Case(
        "torchvision",
        "VisionTransformer",
        vision("vision_transformer", "VisionTransformer", image_size=15, patch_size=3, **_LAYERS),
        image(15),
    ),
    Case("torchvision", "SwinTransformer", vision("swin_transformer", "SwinTransformer", **_TV_SWIN), image(28)),
    Case("torchvision", "MaxVit", vision("maxvit", "MaxVit", **_TV_MAXVIT), image(56)),
    Case("torch", "TransformerEncoder", encoder, padded(), SIDES),
    Case("torch", "TransformerEncoder, norm first", lambda: encoder(norm_first=True), padded(), SIDES),
    Case("torch", "Transformer", lambda: nn.Transformer(16, 2, 2, 2, 24, batch_first=True), halves, SIDES),
]
CASES = [*TIMM, *DIFFUSERS, *OTHERS]
