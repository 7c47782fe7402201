"""A sight as a piece of HTML, for notebooks: pictures of its heads, without any plotting package."""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.errors import SightlineError
from sightline.lens.requests import Picture

if TYPE_CHECKING:
    from sightline.lens.sight import Sight

# The map is shown in at most this many bins a side.
SIDE = 512
# Dark to light: six stops of a map that reads in grey as well.
_STOPS = np.array(
    [(4, 4, 20), (58, 15, 105), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191)], dtype=np.float64
)
# Heads and sequences that are shown before "and … more".
MOST_HEADS, _MOST_BATCH = 16, 1
# Cells of a map over all heads beyond which it is not computed just to be shown.
_MOST_CELLS = 1 << 28


def colours(values: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 as red, green and blue bytes; NaN is grey.

    >>> colours(np.array([0.0, 1.0])).tolist()
    [[4, 4, 20], [252, 253, 191]]
    """
    hidden = np.isnan(values)
    at = np.clip(np.where(hidden, 0.0, values), 0.0, 1.0) * (len(_STOPS) - 1)
    low = np.minimum(at.astype(int), len(_STOPS) - 2)
    part = (at - low)[..., None]
    mixed = _STOPS[low] * (1 - part) + _STOPS[low + 1] * part
    mixed[hidden] = 160
    return mixed.round().astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """Red, green and blue bytes `[height, width, 3]` as a PNG file.

    >>> png(np.zeros((1, 1, 3), dtype=np.uint8))[1:4]
    b'PNG'
    """
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], 1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
        + chunk(b"IEND", b"")
    )


def shades(picture: Tensor, keys: int) -> np.ndarray:
    """Mean weights on a logarithmic scale, from a tenth of an even share of all keys up to 1; NaN stays NaN."""
    floor = 10.0 ** math.floor(math.log10(0.1 / max(keys, 1)))
    values = picture.double().clamp_min(floor).log10().numpy()
    return np.asarray((values - math.log10(floor)) / -math.log10(floor))


def image(picture: Tensor, keys: int, size: int, title: str) -> str:
    """A picture of a map as an `<img>`, at most `size` pixels a side, with its proportions."""
    data = base64.b64encode(png(colours(shades(picture, keys)))).decode()
    height, width = picture.shape
    tall, wide = (round(size * n / max(height, width)) for n in (height, width))
    style = f"width:{max(wide, 8)}px;height:{max(tall, 8)}px;image-rendering:pixelated"
    text = html.escape(title, quote=True)
    return f'<img alt="{text}" title="{text}" style="{style}" src="data:image/png;base64,{data}">'


def overview_of(sight: Sight) -> Tensor | None:
    """Mean weights of the whole map in at most 512 x 512 bins, `[batch, heads, rows, columns]`, hidden bins NaN.

    None if it cannot be known, or would take long to compute.
    """
    *maps, queries, keys = sight.shape
    if not all(sight.shape):
        return None
    picture = Picture(cell=(cell_for(queries), cell_for(keys)), reduce="mean", visible_only=True)
    if picture not in sight.kept and sight.call.q is not None and math.prod(sight.shape) > _MOST_CELLS:
        return None
    try:
        found = sight.value(picture)
    except SightlineError:
        return None
    return found.reshape(-1, maps[-1] if maps else 1, *found.shape[-2:]).cpu()


def cell_for(length: int) -> int:
    """The least power of two that puts a length into at most 512 bins.

    >>> cell_for(512), cell_for(513), cell_for(131072)
    (1, 2, 256)
    """
    cell = 1
    while -(-length // cell) > SIDE:
        cell *= 2
    return cell


def pooled(picture: Tensor, most: int) -> Tensor:
    """At most `most` bins a side, by the largest: one bright cell stays to be seen."""
    for dim in (-2, -1):
        factor = -(-picture.shape[dim] // most)
        if factor > 1:
            missing = -picture.shape[dim] % factor
            pad = (0, missing) if dim == -1 else (0, 0, 0, missing)
            hidden = picture.isnan()
            filled = torch.nn.functional.pad(picture.masked_fill(hidden, -1.0), pad, value=-1.0)
            picture = filled.unflatten(dim, (-1, factor)).amax(dim if dim == -1 else -2)
            picture = picture.masked_fill(picture < 0, torch.nan)
    return picture


def sight_html(sight: Sight, heads: list[int] | None = None, title: str = "") -> str:
    """A sight: its heads' maps side by side."""
    shape = " x ".join(f"{n:,}" for n in sight.shape)
    about = html.escape(f"{title or 'Sight'}: {shape}, mask {sight.call.mask}")
    maps = overview_of(sight)
    if maps is None:
        return f"<div><p>{about}</p><p>No picture was computed.</p></div>"
    keys = sight.shape[-1]
    numbers = heads or list(range(maps.shape[-3]))
    shown = []
    for b in range(min(maps.shape[0], _MOST_BATCH)):
        for i, head in enumerate(numbers[:MOST_HEADS]):
            large = 320 if len(numbers) == 1 else 160
            picture = pooled(maps[b, i], 2 * large)
            shown.append(
                f'<figure style="margin:4px;display:inline-block">{image(picture, keys, large, f"head {head}")}'
                f'<figcaption style="font:11px sans-serif">head {head}</figcaption></figure>'
            )
    more = len(numbers) - MOST_HEADS
    rest = f"<p>and {more} more heads</p>" if more > 0 else ""
    rest += f"<p>the first of {maps.shape[0]} sequences</p>" if maps.shape[0] > _MOST_BATCH else ""
    note = '<p style="font:11px sans-serif">queries downward, keys to the right; logarithmic, bright = more weight</p>'
    return f"<div><p>{about}</p>{''.join(shown)}{note}{rest}</div>"
