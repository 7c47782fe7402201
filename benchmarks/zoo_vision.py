"""Models of transformers for `watch_models.py` that see or hear: detectors, and those of two inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from zoo_transformers import BERT, HIDDEN, SIDES, Case, images, text

_DETR = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "d_model": 32,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 5,
}


def _resnet() -> Any:
    from transformers import ResNetConfig

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]}
    return ResNetConfig(**sizes, out_features=["stage2", "stage3", "stage4"])


def _swin() -> Any:
    from transformers import SwinConfig

    sizes = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 3, "image_size": 32}
    return SwinConfig(**sizes, patch_size=4, out_features=["stage1", "stage2", "stage3", "stage4"])


def detr() -> nn.Module:
    from transformers import DetrConfig, DetrModel

    backbone = _resnet()
    backbone.out_features = ["stage4"]
    return DetrModel(
        DetrConfig(**_DETR, use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone)
    )


def deformable_detr() -> nn.Module:
    from transformers import DeformableDetrConfig, DeformableDetrModel

    plain = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone_config": _resnet()}
    return DeformableDetrModel(DeformableDetrConfig(**_DETR, **plain, num_feature_levels=3))


def rt_detr() -> nn.Module:
    from transformers import RTDetrConfig, RTDetrModel, RTDetrResNetConfig

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    backbone = RTDetrResNetConfig(**sizes, out_features=["stage2", "stage3", "stage4"])
    encoder = {"encoder_hidden_dim": 16, "encoder_in_channels": [8, 8, 16], "encoder_ffn_dim": 16}
    decoder = {"d_model": 16, "decoder_in_channels": [16, 16, 16], "decoder_ffn_dim": 16, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 5, "num_denoising": 0}
    return RTDetrModel(RTDetrConfig(**encoder, **decoder, **heads, backbone_config=backbone))


def mask2former() -> nn.Module:
    from transformers import Mask2FormerConfig, Mask2FormerModel

    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 16}
    layers = {"encoder_layers": 2, "decoder_layers": 3, "num_attention_heads": 2, "dim_feedforward": 16}
    return Mask2FormerModel(Mask2FormerConfig(**sizes, **layers, num_queries=5, backbone_config=_swin()))


def grounding_dino() -> nn.Module:
    from transformers import BertConfig, GroundingDinoConfig, GroundingDinoModel

    words = BertConfig(**BERT)
    swin = _swin()
    swin.out_features, swin.out_indices = ["stage2", "stage3", "stage4"], [2, 3, 4]
    config = GroundingDinoConfig(
        **_DETR, backbone_config=swin, text_config=words, num_feature_levels=4, max_text_len=16
    )
    return GroundingDinoModel(config)


def grounded(side: str | None) -> dict[str, Any]:
    return text()(side) | images(64)(side)


def clap() -> nn.Module:
    from transformers import ClapConfig, ClapModel

    words = BERT | {"projection_dim": 16}
    sizes = {"window_size": 4, "num_mel_bins": 16, "spec_size": 64, "patch_size": 4, "patch_stride": [4, 4]}
    layers = {"patch_embeds_hidden_size": 8, "hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2]}
    sounds = {**sizes, **layers, "num_hidden_layers": 2, "projection_dim": 16, "enable_fusion": False}
    return ClapModel(ClapConfig(text_config=words, audio_config=sounds, projection_dim=16))


def sounds(side: str | None) -> dict[str, Any]:
    return text()(side) | {"input_features": torch.randn(2, 1, 64, 16), "is_longer": torch.zeros(2, 1).bool()}


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    vision = HIDDEN | {"image_size": 15, "patch_size": 3}
    return CLIPModel(CLIPConfig(text_config=BERT, vision_config=vision, projection_dim=16))


CASES = [
    Case("transformers", "CLIPModel", clip, lambda side: text()(side) | images(15)(side), SIDES),
    Case("transformers", "ClapModel", clap, sounds, SIDES),
    Case("transformers", "DetrModel", detr, images(75, 53)),
    Case("transformers", "DeformableDetrModel", deformable_detr, images(75, 53)),
    Case("transformers", "RTDetrModel", rt_detr, images(96, 64)),
    Case("transformers", "Mask2FormerModel", mask2former, images(72, 40)),
    Case("transformers", "GroundingDinoModel", grounding_dino, grounded, SIDES),
]
