"""Effects as text and as a piece of HTML: layers x heads, signed; orange raises the target, blue lowers it."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.editing.head_effects import Effects

RAISES, LOWERS = (230, 97, 1), (33, 102, 172)
_MOST = 64  # heads of a table's row


def colour(share: float) -> str:
    """The colour of a signed share of the largest effect, from -1 to 1."""
    red, green, blue = (round(255 + (c - 255) * min(1.0, abs(share))) for c in (RAISES if share > 0 else LOWERS))
    return f"#{red:02x}{green:02x}{blue:02x}"


def effects_text(effects: Effects, n: int = 10) -> str:
    """The strongest heads as lines."""
    exact, first = _mean(effects.exact), _mean(effects.influence)
    lines = [f"{'layer':>5} {'head':>4} {'exact':>9} {'influence':>9}  name"]
    for layer, head in effects.top(n):
        numbers = f"{exact[layer][head]:>9.3f} {first[layer][head]:>9.3f}"
        lines.append(f"{layer:>5} {head:>4} {numbers}  {effects.layers[layer]}")
    return "\n".join([f"baseline {_words(effects.baseline)}", *lines])


def effects_html(effects: Effects) -> str:
    """A table of colours, and the strongest heads in numbers."""
    exact, first = _mean(effects.exact), _mean(effects.influence)
    largest = max((abs(x) for row in exact for x in row if not math.isnan(x)), default=0.0) or 1.0
    width = min(_MOST, len(exact[0]) if exact else 0)
    head = "".join(f"<th>{i}</th>" for i in range(width))
    rows = []
    for i, (name, line, other) in enumerate(zip(effects.layers, exact, first)):
        cells = "".join(_cell(x, y, largest, name, j) for j, (x, y) in enumerate(zip(line[:width], other)))
        rows.append(f'<tr><th title="{html.escape(name)}">{i}</th>{cells}</tr>')
    style = "border-collapse:collapse;font:11px sans-serif;text-align:center"
    note = "orange: the head raised the target; blue: it lowered it. Rows are layers, columns heads."
    strongest = html.escape(effects_text(effects))
    return (
        f'<div><table style="{style}"><tr><th></th>{head}</tr>{"".join(rows)}</table>'
        f'<p style="font:12px sans-serif">{note}</p><pre>{strongest}</pre></div>'
    )


def _cell(x: float, y: float, largest: float, name: str, head: int) -> str:
    if math.isnan(x):
        return "<td></td>"
    about = html.escape(f"{name}, head {head}: exact {x:.4g}, influence {y:.4g}")
    return f'<td title="{about}" style="background:{colour(x / largest)};width:16px;height:14px"></td>'


def _mean(table: Tensor) -> list[list[float]]:
    found: list[list[float]] = table.reshape(-1, *table.shape[-2:]).mean(0).tolist()
    return found


def _words(x: Tensor) -> str:
    return f"{float(x):.4g}" if not x.dim() else ", ".join(f"{v:.4g}" for v in x.tolist()[:8])
