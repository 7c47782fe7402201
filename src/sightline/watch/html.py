"""A sight, a run and its portraits as pieces of HTML, for notebooks: pictures without any plotting package."""

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

from sightline.lens import Picture
from sightline.watch.account import cell_for

if TYPE_CHECKING:
    from sightline.lens import Sight
    from sightline.watch.kept import KeptSight
    from sightline.watch.portraits import Portraits
    from sightline.watch.seen import Seen

# Dark to light: six stops of a map that reads in grey as well.
_STOPS = np.array(
    [(4, 4, 20), (58, 15, 105), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191)], dtype=np.float64
)
# Heads and layers that are shown before "and … more".
_MOST_HEADS, _MOST_LAYERS, _MOST_BATCH = 16, 6, 1
_THUMB = 96


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
    """Mean weights of the whole map in at most 512 x 512 bins, hidden bins NaN; None if it cannot be known."""
    *_, queries, keys = sight.shape
    if not queries or not keys:
        return None
    picture = Picture(cell=(cell_for(queries), cell_for(keys)), reduce="mean", visible_only=True)
    from sightline.errors import SightlineError

    try:
        found = sight._get(sight._resolved(picture))
    except (SightlineError, AttributeError):
        return None
    return found.reshape(-1, *found.shape[-3:]) if found.dim() > 3 else found[None]


def _pooled(picture: Tensor, most: int) -> Tensor:
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
    about = html.escape(f"{title or 'Sight'}: {shape}, mask {sight._call.mask}")
    maps = overview_of(sight)
    if maps is None:
        return f"<div><p>{about}</p><p>No picture was computed.</p></div>"
    keys = sight.shape[-1]
    numbers = heads or list(range(maps.shape[-3]))
    shown = []
    for b in range(min(maps.shape[0], _MOST_BATCH)):
        for i, head in enumerate(numbers[:_MOST_HEADS]):
            large = 320 if len(numbers) == 1 else 160
            picture = _pooled(maps[b, i], 2 * large)
            shown.append(
                f'<figure style="margin:4px;display:inline-block">{image(picture, keys, large, f"head {head}")}'
                f'<figcaption style="font:11px sans-serif">head {head}</figcaption></figure>'
            )
    more = len(numbers) - _MOST_HEADS
    rest = f"<p>and {more} more heads</p>" if more > 0 else ""
    rest += f"<p>the first of {maps.shape[0]} sequences</p>" if maps.shape[0] > _MOST_BATCH else ""
    note = '<p style="font:11px sans-serif">queries downward, keys to the right; logarithmic, bright = more weight</p>'
    return f"<div><p>{about}</p>{''.join(shown)}{note}{rest}</div>"


def seen_html(seen: Seen) -> str:
    """A run: a table of its layers, each with small maps of its heads."""
    model = html.escape(str(seen.meta.get("model")))
    if not len(seen):
        return f"<div><p><b>{model}</b>: no attention was seen.</p></div>"
    lines = []
    names = seen.layers
    chosen = names if len(names) <= _MOST_LAYERS else [*names[:3], *names[-3:]]
    for name in chosen:
        sight: KeptSight = seen[name]
        maps = overview_of(sight)
        cells = "<td>no picture was computed</td>"
        if maps is not None:
            numbers = seen.heads(name)
            small = [
                image(_pooled(maps[0, i], _THUMB), sight.shape[-1], _THUMB, f"{name}, head {head}")
                for i, head in enumerate(numbers[:_MOST_HEADS])
            ]
            extra = len(numbers) - _MOST_HEADS
            cells = f"<td>{''.join(small)}{f' and {extra} more' if extra > 0 else ''}</td>"
        shape = " x ".join(f"{n:,}" for n in sight.shape)
        label = f"<b>{html.escape(name)}</b><br>{seen.kind(name)}, {shape}"
        lines.append(f'<tr><td style="text-align:left;font:12px sans-serif">{label}</td>{cells}</tr>')
        if len(names) > _MOST_LAYERS and name == names[2]:
            lines.append(f'<tr><td colspan="2">… {len(names) - _MOST_LAYERS} more layers …</td></tr>')
    tokens = seen.tokens or []
    text = ""
    if tokens:
        joined = html.escape("".join(tokens[0]))
        text = f'<p style="font:12px sans-serif">{joined[:300]}{"…" if len(joined) > 300 else ""}</p>'
    about = ", ".join(
        html.escape(f"{k} {seen.meta[k]}") for k in ("dtype", "device", "implementation") if seen.meta.get(k)
    )
    return f"<div><p><b>{model}</b>: {len(names)} layers; {about}</p>{text}<table>{''.join(lines)}</table></div>"


_MEASURES = {
    "previous": "previous token",
    "first": "first token",
    "same": "same token",
    "distance": "mean distance",
    "entropy": "entropy",
    "induction": "induction",
}


def portraits_svg(portraits: Portraits) -> str:
    """One map of layers x heads for every measure: shares from 0 to 1, others from their least to their greatest."""
    layers = list(dict.fromkeys(p.layer for p in portraits))
    columns = max((p.head for p in portraits), default=0) + 1
    cell = max(4, min(16, 240 // max(columns, 1)))
    width, height = columns * cell, len(layers) * cell
    across, gap, head = 3, 28, 18
    parts = []
    for n, (measure, label) in enumerate(_MEASURES.items()):
        left, top = (n % across) * (width + gap) + 4, (n // across) * (height + gap + head) + head
        values = [getattr(p, measure) for p in portraits]
        known = [v for v in values if v is not None]
        low, high = (
            (0.0, 1.0) if measure not in ("distance", "entropy") else (min(known, default=0), max(known, default=1))
        )
        parts.append(f'<text x="{left}" y="{top - 5}">{label}: {low:.3g} to {high:.3g}</text>')
        parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="#a0a0a0"/>')
        for p, value in zip(portraits, values):
            if value is None:
                continue
            shade = colours(np.array((value - low) / ((high - low) or 1.0)))
            x, y = left + p.head * cell, top + layers.index(p.layer) * cell
            colour = "#" + bytes(shade.tolist()).hex()
            title = html.escape(f"{p.layer}, head {p.head}: {value:.3g}")
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="{colour}"><title>{title}</title></rect>'
            )
    whole = (across * (width + gap), 2 * (height + gap + head))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole[0]}" height="{whole[1]}" role="img" '
        f'aria-label="head portraits" font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
    )
