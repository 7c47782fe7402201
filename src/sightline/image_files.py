"""PNG and JPEG files: decoded whole or refused, before anything else is done with them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import InputError, InputTypeError, missing

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = ("PNG", "JPEG")
# Pixels that are decoded at most, unless a caller takes fewer.
LARGEST = 64_000_000


def content_of(image: str | Path | bytes) -> bytes:
    """The bytes of an image, given as a file or as these."""
    if not isinstance(image, str | Path | bytes):
        raise InputTypeError(
            "an image is a file or its bytes",
            expected="a path, or bytes",
            got=type(image).__name__,
            hint='"photo.png"',
        )
    return image if isinstance(image, bytes) else Path(image).read_bytes()


def decoded(content: bytes, what: str, largest: int = LARGEST) -> Image:
    """An image of at most `largest` pixels, decoded; `what` needs it, for the error of a missing package.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (5, 3)).save(file, "PNG")
    >>> decoded(file.getvalue(), "this example").size
    (5, 3)
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise missing(what, "plots", error) from error
    try:
        found = Image.open(io.BytesIO(content), formats=KINDS)
        width, height = found.size
        if width * height <= largest:
            found.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(
            "this is not an image that can be read",
            expected="a whole PNG or JPEG",
            got=str(error) or type(error).__name__,
            hint="convert it first: PIL.Image.open(…).save('photo.png')",
        ) from error
    if width * height > largest:
        raise InputError(
            "the image is too large",
            expected=f"at most {largest:,} pixels",
            got=f"{width} x {height}",
            hint="the size that the model was given is enough",
        )
    return found


def upright(image: Image) -> Image:
    """An image in three colours, turned as its camera says."""
    from PIL import ImageOps

    return (ImageOps.exif_transpose(image) or image).convert("RGB")
