"""ViT: an image as a sequence of patches. https://arxiv.org/abs/2010.11929"""

from __future__ import annotations

from torch import nn

from sightline.models.families.base import Family, Source, set_biases
from sightline.models.families.settings import Settings
from sightline.models.image_encoder import ImageEncoder
from sightline.models.pixels import read_pixels
from sightline.nn import Encoder
from sightline.positions import Learned

LAYER = "encoder.layers.#."
OLD_LAYER = {
    "attention.query.*": "attention.attention.query.*",
    "attention.key.*": "attention.attention.key.*",
    "attention.value.*": "attention.attention.value.*",
    "attention.output.*": "attention.output.dense.*",
    "attention_norm.*": "layernorm_before.*",
    "feed_forward.up.*": "intermediate.dense.*",
    "feed_forward.down.*": "output.dense.*",
    "feed_forward_norm.*": "layernorm_after.*",
}


def vit(say: Settings) -> nn.Module:
    width, prefix = say.whole("hidden_size"), _prefix(say)
    layers = say.layers("num_hidden_layers", names=f"{prefix}encoder.layer.#")
    size, patch, channels = _pair(say, "image_size", 224), _pair(say, "patch_size", 16), _channels(say)
    patches = (size[0] // patch[0]) * (size[1] // patch[1])
    say.expect(f"{prefix}embeddings.patch_embeddings.projection.weight", width, channels, *patch)
    say.expect(f"{prefix}embeddings.position_embeddings", 1, patches + 1, width)
    encoder = Encoder(
        width,
        say.whole("num_attention_heads"),
        layers,
        hidden=say.whole("intermediate_size"),
        activation=say.activation("hidden_act", default="gelu"),
        eps=say.number("layer_norm_eps", default=1e-12),
        positions=Learned(width, patches + 1),
    )
    of_qkv = say.flag("qkv_bias", True)
    set_biases(encoder.layers, {f"attention.{part}": of_qkv for part in ("query", "key", "value")})
    weight = "classifier.weight"
    classes = say.checkpoint.shape(weight)[0] if weight in say.checkpoint else 0
    model = ImageEncoder(encoder, size=size, patch=patch, channels=channels, classes=classes)
    model.pixels = read_pixels(say.checkpoint, size)
    return model


def vit_names(say: Settings) -> dict[str, str | Source]:
    prefix, width, patch = _prefix(say), say.whole("hidden_size"), _pair(say, "patch_size", 16)
    positions = say.checkpoint.shape(f"{prefix}embeddings.position_embeddings")
    kernel = (width, _channels(say), *patch)
    return {
        "first": Source(f"{prefix}embeddings.cls_token", shape=(1, 1, width)),
        "patches.weight": Source(f"{prefix}embeddings.patch_embeddings.projection.weight", shape=kernel),
        "patches.bias": f"{prefix}embeddings.patch_embeddings.projection.bias",
        "encoder.positions.weight": Source(f"{prefix}embeddings.position_embeddings", shape=tuple(positions)),
        "encoder.norm.*": f"{prefix}layernorm.*",
        "classifier.*": "classifier.*",
        **{LAYER + ours: f"{prefix}encoder.layer.#.{theirs}" for ours, theirs in OLD_LAYER.items()},
    }


def _prefix(say: Settings) -> str:
    return say.prefix("embeddings.cls_token", "vit.")


def _channels(say: Settings) -> int:
    return say.whole("num_channels", default=3)


def _pair(say: Settings, key: str, default: int) -> tuple[int, int]:
    """A size of an image: one number, or height and width."""
    value = say.get(key, default=default)
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(type(n) is int and 1 <= n <= 1 << 16 for n in pair):
        raise say.wrong((key,), "one or two whole numbers", value)
    return pair[0], pair[1]


# The pooler is a layer on top of the first token that few use.
VIT = Family(("vit",), vit, vit_names, ("pooler.*", "vit.pooler.*", "*.mask_token", "embeddings.mask_token"))
