"""Running a ViT-shaped model on a picture that somebody sent, watched."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sightline.editing import edit
from sightline.errors import InputError, TooLargeError
from sightline.explore.changes import edits_of
from sightline.explore.model_runs import STATS, Peek, RunRequest, layers_of, progress
from sightline.explore.once_more import Report, attention_layers
from sightline.image_files import decoded, upright
from sightline.models.pixels import Pixels
from sightline.watching import Seen, watch
from sightline.watching.record.folder import add_image

if TYPE_CHECKING:
    from PIL.Image import Image

# What is taken of somebody: bytes of a file, and pixels that it is decoded to.
BYTES, PIXELS = 4 << 20, 24_000_000
# The longer side of the picture that is kept to be looked at.
SHOWN = 1024


def received(text: str) -> bytes:
    """A PNG or JPEG that came as base64; decoded once before it waits for a model, and refused if that fails."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("this is no base64", expected="a PNG or JPEG", got=str(error), hint="base64 of it") from error
    if len(content) > BYTES:
        raise TooLargeError(
            "this picture is too large",
            expected=f"at most {BYTES:,} bytes",
            got=f"{len(content):,}",
            hint="a smaller one: the model sees a few hundred pixels a side",
        )
    decoded(content, "a picture to run a model on", PIXELS)
    return content


def watched_image(
    model: Any,
    request: RunRequest,
    folder: Path,
    report: Report,
    growing: Callable[[Seen], None] | None = None,
) -> None:
    """Run a model on a picture, and write what it attended to into a folder, with the picture as the model saw it."""
    if request.generate or request.begun:
        raise InputError("a model of pictures writes nothing", expected="generate=0", got="tokens", hint="generate=0")
    image = upright(decoded(request.image, "a picture to run a model on", PIXELS))
    layers = layers_of(model, request)
    changes = edits_of(request.edits, len(attention_layers(model)) or None)
    with (
        torch.no_grad(),
        edit(model, changes),
        watch(model, layers, folder, stats=STATS) as seen,
        progress(model, report, "running", Peek(folder, growing)),
    ):
        seen.meta |= {"name": request.model, "text": request.text}
        if changes:
            seen.meta["edits"] = list(request.edits)
        model(model.prepare(image)[None])
    report(stage="finishing")
    add_image(folder, seen_by(image, model.pixels))


def seen_by(image: Image, pixels: Pixels) -> bytes:
    """The part of a picture that a model is given, no larger than it is looked at, as PNG."""
    left, top, right, bottom = (round(side) for side in pixels.window(image))
    part = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
    part.thumbnail((SHOWN, SHOWN))
    file = io.BytesIO()
    part.save(file, "PNG")
    return file.getvalue()
