"""A ViT with weights set by hand, so that what it looks at is known, and a picture for it."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

WIDTH, SIDE, PATCH = 48, 8, 8
# Where in the width colours stand and places, each with its negative, so that the mean is 0 for every patch.
COLOUR, PLACE = (0, 3), (6, 8)


def picture(size: int = 256) -> Image.Image:
    """A red ball and a red kite in a blue sky over green grass, a yellow sun."""
    image = Image.new("RGB", (size, size), (120, 170, 235))
    draw, unit = ImageDraw.Draw(image), size / 8
    draw.rectangle((0, 5 * unit, size, size), fill=(70, 150, 60))
    draw.ellipse((1 * unit, 4 * unit, 3 * unit, 6 * unit), fill=(205, 40, 40))
    draw.polygon(
        [(6 * unit, 1 * unit), (7 * unit, 2 * unit), (6 * unit, 3 * unit), (5 * unit, 2 * unit)], fill=(205, 40, 40)
    )
    draw.ellipse((0.5 * unit, 0.5 * unit, 1.5 * unit, 1.5 * unit), fill=(250, 215, 60))
    return image


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def vit() -> Any:
    """Of two layers with two heads: the first looks at patches of its own colour, the second at the one to its left."""
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
    model = ViTModel(ViTConfig(image_size=SIDE * PATCH, patch_size=PATCH, **size), add_pooling_layer=False).eval()
    half = WIDTH // 2
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1)
        cut = model.embeddings.patch_embeddings.projection.weight  # [width, channels, patch, patch]
        for channel in range(3):
            for start, sign in ((COLOUR[0], 1), (COLOUR[0] + 3, -1)):
                cut[start + channel, channel] = sign * 2 / PATCH**2
        places = model.embeddings.position_embeddings[0]
        for i in range(SIDE * SIDE):
            features = _place(*divmod(i, SIDE))
            places[1 + i, PLACE[0] : PLACE[0] + 8] = features
            places[1 + i, PLACE[0] + 8 : PLACE[0] + 16] = -features
        for layer in model.layers if hasattr(model, "layers") else model.encoder.layer:
            parts = {
                name.rsplit(".", 2)[-2]: weight
                for name, weight in layer.attention.named_parameters()
                if "weight" in name
            }
            query, key = (next(w for n, w in parts.items() if n.startswith(kind)) for kind in ("q", "k"))
            for channel in range(3):
                query[channel, channel], key[channel, channel] = 4.0, 1.5
            turn = _turned()
            query[half : half + 8, PLACE[0] : PLACE[0] + 8] = 6 * turn
            key[half : half + 8, PLACE[0] : PLACE[0] + 8] = 3 * torch.eye(8)
    return model


def _place(row: int, column: int) -> torch.Tensor:
    turns = [2 * math.pi * at / (SIDE * wide) for at in (row, column) for wide in (1, 2)]
    return torch.tensor([wave(turn) for turn in turns for wave in (math.cos, math.sin)])


def _turned() -> torch.Tensor:
    """From the features of a place to those of the place on its left."""
    turn = torch.eye(8)
    for i, wide in ((4, 1), (6, 2)):
        by = 2 * math.pi / (SIDE * wide)
        turn[i : i + 2, i : i + 2] = torch.tensor([[math.cos(by), math.sin(by)], [-math.sin(by), math.cos(by)]])
    return turn


def checkpoint(folder: Path) -> Path:
    """The same as a folder that `sl.models.load` takes."""
    vit().save_pretrained(folder)
    return folder
