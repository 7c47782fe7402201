"""A run and its portraits as pieces of HTML, for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

from sightline.lens.html import MOST_HEADS, colours, image, overview_of, pooled

if TYPE_CHECKING:
    from sightline.watching.read.portraits import Portraits
    from sightline.watching.seen import Seen

# Layers that are shown before "and … more", and the size of a head's map.
_MOST_LAYERS, _THUMB = 6, 96
_MOST_UNSEEN = 8
_MOST_TOKENS = 80


def seen_html(seen: Seen) -> str:
    """A run: a table of its layers, each with small maps of its heads."""
    model = html.escape(str(seen.meta.get("model")))
    if not len(seen):
        return f"<div><p><b>{model}</b>: no attention was seen.</p>{_unseen(seen)}</div>"
    lines = []
    names = seen.layers
    chosen = names if len(names) <= _MOST_LAYERS else [*names[:3], *names[-3:]]
    for name in chosen:
        sight = seen[name]
        maps = overview_of(sight)
        cells = "<td>no picture was computed</td>"
        if maps is not None:
            numbers = seen.heads(name)
            small = [
                _figure(image(pooled(maps[0, i], _THUMB), sight.shape[-1], _THUMB, f"{name}, head {head}"), head)
                for i, head in enumerate(numbers[:MOST_HEADS])
            ]
            extra = len(numbers) - MOST_HEADS
            more = f" and {extra} more" if extra > 0 else ""
            cells = f'<td style="text-align:left;padding:6px 0 0 12px">{"".join(small)}{more}</td>'
        shape = " x ".join(f"{n:,}" for n in sight.shape)
        label = f"<b>{html.escape(name)}</b><br>{seen.kind(name)}, {shape}"
        look = "text-align:left;vertical-align:top;font:12px sans-serif;padding-top:8px"
        lines.append(f'<tr><td style="{look}">{label}</td>{cells}</tr>')
        if len(names) > _MOST_LAYERS and name == names[2]:
            lines.append(f'<tr><td colspan="2">… {len(names) - _MOST_LAYERS} more layers …</td></tr>')
    text = _tokens(seen.tokens[0]) if seen.tokens else ""
    about = ", ".join(
        html.escape(f"{k} {seen.meta[k]}") for k in ("dtype", "device", "implementation") if seen.meta.get(k)
    )
    how = "Queries down, keys across; the brighter, the larger the weight, on a logarithmic scale; grey is hidden."
    how = f'<p style="font:12px sans-serif;opacity:0.75">{how}</p>'
    table = f"{how}<table>{''.join(lines)}</table>{_unseen(seen)}"
    return f"<div><p><b>{model}</b>: {len(names)} layers; {about}</p>{text}{table}</div>"


def _figure(picture: str, head: int) -> str:
    """One head and its number, apart from the next."""
    look = "display:inline-block;margin:0 12px 8px 0;text-align:center;font:11px sans-serif"
    return f'<figure style="{look}">{picture}<figcaption>head {head}</figcaption></figure>'


def _tokens(tokens: list[str]) -> str:
    """The tokens of a text, each by itself: where a space was, tokenizers leave a sign of their own, or none."""
    look = "display:inline-block;margin:0 5px 3px 0;padding:0 3px;border:1px solid #8886;border-radius:3px"
    cut = [token.lstrip("\u0120\u2581") or token for token in tokens[:_MOST_TOKENS]]
    shown = "".join(f'<span style="{look}">{html.escape(token)}</span>' for token in cut)
    more = f" and {len(tokens) - _MOST_TOKENS:,} more" if len(tokens) > _MOST_TOKENS else ""
    return f'<p style="font:12px sans-serif">{shown}{more}</p>'


def _unseen(seen: Seen) -> str:
    """What attended without being caught, and why."""
    if not seen.unseen:
        return ""
    lines = [f"<li>{html.escape(name)}: {html.escape(reason)}</li>" for name, reason in seen.unseen.items()]
    rest = len(lines) - _MOST_UNSEEN
    more = [f"<li>and {rest} more</li>"] if rest > 0 else []
    listed = "".join(lines[:_MOST_UNSEEN] + more)
    return f'<p style="font:12px sans-serif">Not seen:</p><ul style="font:12px sans-serif">{listed}</ul>'


def portraits_svg(portraits: Portraits) -> str:
    """One map of layers x heads for every measure, over its range, or from its least to its greatest."""
    layers = list(dict.fromkeys(p.layer for p in portraits))
    columns = max((p.head for p in portraits), default=0) + 1
    cell = max(4, min(16, 240 // max(columns, 1)))
    width, height = columns * cell, len(layers) * cell
    panel = max(width, 150)  # room for its title
    across, gap, head = 6 if panel <= 170 else 3, 20, 18
    parts = []
    measures = portraits.measures()
    for n, (shown, values) in enumerate(measures.values()):
        left, top = (n % across) * (panel + gap) + 4, (n // across) * (height + gap + head) + head
        known = [v for v in values if v is not None]
        low, high = shown.range or (min(known, default=0), max(known, default=1))
        parts.append(f'<text x="{left}" y="{top - 5}">{html.escape(shown.label)}: {low:.3g} to {high:.3g}</text>')
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
    whole = (across * (panel + gap), -(-len(measures) // across) * (height + gap + head) + head)
    parts.append(f'<text x="4" y="{whole[1] - 6}">layers downward, heads to the right; grey: not known</text>')
    look = 'font-family="sans-serif" font-size="11" fill="currentColor"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole[0]}" height="{whole[1]}" role="img" '
        f'aria-label="head portraits" {look}>{"".join(parts)}</svg>'
    )
