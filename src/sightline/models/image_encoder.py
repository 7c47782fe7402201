"""An encoder of images: an image is a sequence of patches, row by row, and one token in front for all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.errors import InputError, InputTypeError
from sightline.image_files import content_of, decoded, upright
from sightline.models.pixels import Pixels
from sightline.models.sights import Heads, Sights, observe
from sightline.nn import Encoder

if TYPE_CHECKING:
    from jaxtyping import Float
    from PIL.Image import Image

    from sightline.nn.observe.select import Layers


class ImageEncoder(nn.Module):
    """An encoder of images such as ViT: `model(images)` gives the hidden states, of the whole first, then of patches.

    Made by `sl.models.load`. Images are floats `[*batch, channels, height, width]` of the size the model was trained
    with, scaled as it was trained with: `model.prepare("photo.png")` does what preprocessor_config.json says.

    >>> from sightline.positions import Learned
    >>> encoder = Encoder(16, heads=2, layers=1, positions=Learned(16, length=7))
    >>> model = ImageEncoder(encoder, size=(8, 12), patch=(4, 4), channels=3)
    >>> states, sights = model.observe(torch.randn(3, 8, 12))
    >>> states.shape, sights.tokens
    (torch.Size([7, 16]), ['image', '0,0', '0,1', '0,2', '1,0', '1,1', '1,2'])
    """

    def __init__(
        self, encoder: Encoder, *, size: tuple[int, int], patch: tuple[int, int], channels: int, classes: int = 0
    ) -> None:
        super().__init__()
        self.size, self.patch, self.channels = size, patch, channels
        self.first = nn.Parameter(torch.zeros(encoder.width))
        self.patches = nn.Linear(channels * patch[0] * patch[1], encoder.width)
        self.encoder = encoder
        self.classifier = nn.Linear(encoder.width, classes) if classes else None
        self.pixels = Pixels(size=size)

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches an image has, down and across."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    def cut(self, images: Float[Tensor, "*batch channels height width"]) -> Float[Tensor, "*batch patches numbers"]:
        """Images as sequences of patches, row by row, each patch as channels x height x width numbers."""
        self._check(images)
        *batch, channels, _, _ = images.shape
        (down, across), (high, wide) = self.grid, self.patch
        cells = images[..., : down * high, : across * wide].reshape(-1, channels, down, high, across, wide)
        return cells.permute(0, 2, 4, 1, 3, 5).reshape(*batch, down * across, channels * high * wide)

    def prepare(self, image: str | Path | bytes | Image) -> Float[Tensor, "channels height width"]:
        """A PNG or JPEG as the numbers the model was trained with: a file, its bytes, or an image of Pillow.

        It is turned as its camera says, resized (cropped, scaled, normalised) as preprocessor_config.json asks for:
        what transformers does with Pillow, number for number. Without that file the image becomes -1 to 1.

        >>> from PIL import Image
        >>> from sightline.positions import Learned
        >>> encoder = Encoder(16, heads=2, layers=1, positions=Learned(16, length=7))
        >>> model = ImageEncoder(encoder, size=(8, 12), patch=(4, 4), channels=3)
        >>> model.prepare(Image.new("RGB", (30, 30), "white")).shape
        torch.Size([3, 8, 12])
        """
        if self.channels != 3:
            raise InputError(
                "an image has three colours",
                expected="a model of three channels",
                got=self.channels,
                hint="model(images) of numbers of your own",
            )
        found = decoded(content_of(image), "reading an image") if isinstance(image, str | Path | bytes) else image
        if not hasattr(found, "getexif"):
            raise InputTypeError(
                "an image is a file, its bytes, or one of Pillow",
                expected="a path, bytes, or a PIL.Image.Image",
                got=type(image).__name__,
                hint='model.prepare("photo.png")',
            )
        x = self.pixels.numbers(upright(found))
        self._check(x)
        return x.to(self.first)

    def forward(self, images: Float[Tensor, "*batch channels height width"]) -> Float[Tensor, "*batch tokens width"]:
        """The hidden states of the last layer: one for the image, then one for each patch."""
        x = self.patches(self.cut(images))
        return self.encoder(torch.cat((self.first.expand(*x.shape[:-2], 1, -1), x), dim=-2))

    def classify(self, images: Float[Tensor, "*batch channels height width"]) -> Float[Tensor, "*batch classes"]:
        """The logits of the classes it was trained for, from the first hidden state."""
        if self.classifier is None:
            raise InputError(
                "this model knows no classes",
                expected="a checkpoint with a classifier",
                got="an encoder alone",
                hint="model(images) for hidden states",
            )
        logits: Tensor = self.classifier(self(images)[..., 0, :])
        return logits

    @property
    def tokens(self) -> list[str]:
        """What each hidden state stands for: `image`, then `row,column` of each patch."""
        down, across = self.grid
        return ["image", *(f"{row},{column}" for row in range(down) for column in range(across))]

    def observe(
        self, images: Tensor, *, stats: Any = (), layers: Layers = None, heads: Heads = None
    ) -> tuple[Tensor, Sights]:
        """The hidden states of images, and the sights of the attention on the way; as `observe` of a model of text."""
        out, sights = observe(self, (images,), {}, stats, layers, heads)
        sights.tokens = self.tokens
        return out, sights

    def _check(self, images: object) -> None:
        if not isinstance(images, Tensor) or not images.is_floating_point():
            raise InputTypeError(
                "images must be a floating tensor",
                expected="[*batch, channels, height, width]",
                got=images.dtype if isinstance(images, Tensor) else type(images).__name__,
                hint="images.float() / 255, then scaled as preprocessor_config.json says",
            )
        wanted = (self.channels, *self.size)
        if tuple(images.shape[-3:]) != wanted:
            raise InputError(
                "the images do not fit this model",
                expected=f"[*batch, {', '.join(map(str, wanted))}]",
                got=tuple(images.shape),
                hint="resize them to the size the model was trained with",
            )
