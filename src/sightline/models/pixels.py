"""From an image to the numbers that a model was trained with, as preprocessor_config.json says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.models.checkpoints.base import Checkpoint, refused

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "preprocessor_config.json"
_SIDE = 1 << 14


@dataclass(frozen=True)
class Pixels:
    """What is done with an image: resized, cropped in the middle, scaled, and each colour normalised.

    `size` is height and width, or the shorter edge alone; None leaves the step out. Without a file it is what ViT was
    trained with.
    """

    size: tuple[int, int] | int | None = (224, 224)
    resample: int = 2
    crop: tuple[int, int] | None = None
    factor: float | None = 1 / 255
    mean: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    std: tuple[float, ...] | None = (0.5, 0.5, 0.5)

    def resized(self, image: Image) -> tuple[int, int]:
        """Width and height that an image is brought to."""
        if self.size is None:
            return image.size
        if isinstance(self.size, int):
            short, long = sorted(image.size)
            other = int(self.size * long / short)
            return (self.size, other) if image.width <= image.height else (other, self.size)
        return self.size[1], self.size[0]

    def window(self, image: Image) -> tuple[float, float, float, float]:
        """The part of an image that the model is given: left, top, right and bottom, in its own pixels."""
        width, height = self.resized(image)
        left, top, right, bottom = self._middle(width, height)
        across, down = image.width / width, image.height / height
        return left * across, top * down, right * across, bottom * down

    def numbers(self, image: Image) -> Tensor:
        """Channels x height x width of an image, in float32."""
        width, height = self.resized(image)
        if self.size is not None:
            image = image.resize((width, height), self.resample)
        left, top, right, bottom = self._middle(width, height)
        x = np.asarray(image.crop((left, top, right, bottom)))
        x = x.astype(np.float32) if self.factor is None else (x.astype(np.float64) * self.factor).astype(np.float32)
        if self.mean is not None:
            x = (x - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1)))

    def _middle(self, width: int, height: int) -> tuple[int, int, int, int]:
        if self.crop is None:
            return 0, 0, width, height
        down, across = self.crop
        if down > height or across > width:
            raise InputError(
                "the image is smaller than what is cropped from it",
                expected=f"at least {across} x {down}",
                got=f"{width} x {height}",
                hint="a larger image",
            )
        left, top = (width - across) // 2, (height - down) // 2
        return left, top, left + across, top + down


def read_pixels(checkpoint: Checkpoint, size: tuple[int, int]) -> Pixels:
    """What the file beside the weights says; what it does not say is as it was for ViT, of this size."""
    said = checkpoint.beside(FILE)
    if said is None:
        return Pixels(size=size)
    if not isinstance(said, dict):
        raise _wrong(checkpoint, "an object", said)

    def on(name: str, default: bool) -> bool:
        value = said.get(name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(checkpoint, f"{name}: true or false", value)
        return default if value is None else value

    resample, factor = said.get("resample", 2), said.get("rescale_factor", 1 / 255)
    if type(resample) is not int or not 0 <= resample <= 5:
        raise _wrong(checkpoint, "resample: a number from 0 to 5", resample)
    if not _is_number(factor):
        raise _wrong(checkpoint, "rescale_factor: a number", factor)
    mean, std = (_colours(checkpoint, said, name) for name in ("image_mean", "image_std"))
    normal = on("do_normalize", True)
    if normal and 0 in std:
        raise _wrong(checkpoint, "image_std: no zero", std)
    crop = _size(checkpoint, said.get("crop_size"), "crop_size") if on("do_center_crop", False) else None
    return Pixels(
        size=_size(checkpoint, said.get("size", list(size)), "size") if on("do_resize", True) else None,
        resample=resample,
        crop=(crop, crop) if isinstance(crop, int) else crop,
        factor=float(factor) if on("do_rescale", True) else None,
        mean=mean if normal else None,
        std=std if normal else None,
    )


def _size(checkpoint: Checkpoint, said: Any, name: str) -> tuple[int, int] | int:
    """Height and width, or the shorter edge alone; a bare number is both."""
    found = said
    if isinstance(said, dict):
        found = [said.get("height"), said.get("width")] if "height" in said else said.get("shortest_edge")
        if isinstance(found, int) and set(said) == {"shortest_edge"} and 1 <= found <= _SIDE:
            return found
    pair = [found, found] if isinstance(found, int) else found
    if (
        (isinstance(said, dict) and not set(said) <= {"height", "width"})
        or not isinstance(pair, list)
        or len(pair) != 2
        or not all(type(side) is int and 1 <= side <= _SIDE for side in pair)
    ):
        raise _wrong(checkpoint, f"{name}: height and width, or shortest_edge", said)
    return pair[0], pair[1]


def _colours(checkpoint: Checkpoint, said: dict[str, Any], name: str) -> tuple[float, ...]:
    found = said.get(name, [0.5, 0.5, 0.5])
    if not isinstance(found, list) or len(found) != 3 or not all(map(_is_number, found)):
        raise _wrong(checkpoint, f"{name}: three numbers", found)
    return tuple(map(float, found))


def _is_number(x: Any) -> bool:
    return type(x) in (int, float) and abs(x) < 1e6


def _wrong(checkpoint: Checkpoint, expected: str, got: Any) -> Exception:
    return refused(
        f"{FILE} of {checkpoint.source} cannot be used",
        expected=expected,
        got=repr(got)[:120],
        hint="take the file from where the model is published",
    )
