"""Images become the numbers that transformers makes of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from sightline.models.pixels import FILE

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("vit")
    ViTModel(ViTConfig(image_size=[16, 24], patch_size=8, **SMALL)).save_pretrained(path)
    return path


def photo(width: int = 61, height: int = 43, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
    return Image.fromarray(noise.squeeze(), mode)


SETTINGS: list[dict[str, Any]] = [
    {"size": {"height": 16, "width": 24}},
    {"size": {"shortest_edge": 27}, "do_center_crop": True, "crop_size": {"height": 16, "width": 24}, "resample": 3},
    {"size": {"height": 16, "width": 24}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    {"size": {"height": 16, "width": 24}, "do_normalize": False, "rescale_factor": 0.01},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_image_becomes_what_transformers_makes_of_it(settings: dict[str, Any], folder: Path) -> None:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    (folder / FILE).write_text(json.dumps(settings))
    model, _ = sl.models.load(folder)
    for image in (photo(), photo(43, 61), photo(mode="L"), photo(mode="RGBA")):
        theirs = ViTImageProcessorPil(**settings)(image.convert("RGB"), return_tensors="pt")["pixel_values"][0]
        assert torch.equal(model.prepare(image), theirs)


def test_files_are_turned_as_their_camera_says(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)
    model, _ = sl.models.load(folder)
    image, file, exif = photo(24, 16), io.BytesIO(), Image.Exif()
    exif[0x0112] = 3  # upside down
    image.rotate(180).save(file, "PNG", exif=exif)
    assert torch.equal(model.prepare(file.getvalue()), model.prepare(image))
    assert float(model.prepare(image).min()) >= -1
    with pytest.raises(sl.errors.InputTypeError, match="one of Pillow"):
        model.prepare(3)
    with pytest.raises(sl.errors.InputError, match="can be read"):
        model.prepare(b"GIF89a")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"size": {"height": 16}},
        {"size": {"longest_edge": 20, "shortest_edge": 3}},
        {"size": "large"},
        {"size": {"height": 1 << 40, "width": 2}},
        {"do_resize": 1},
        {"do_center_crop": True},
        {"image_std": [1, 0, 1]},
        {"image_mean": [1, float("nan"), 1]},
        {"resample": 99},
        {"rescale_factor": "1"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(wrong: Any, folder: Path) -> None:
    (folder / FILE).write_text(json.dumps(wrong))
    with pytest.raises(sl.errors.InputError):
        sl.models.load(folder)


def test_a_watched_model_knows_its_grid(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)
    model, _ = sl.models.load(folder)
    with torch.no_grad(), sl.watch(model) as seen:
        model(model.prepare(photo())[None])
    assert seen.grid == (2, 3, 1)
