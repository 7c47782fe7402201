"""A census as one page that needs no network: a table of heads for each measure, and the curves."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sightline.census.take import Census

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 320, 52, 36
# Blue, orange, green, purple, brown, teal; what is by lot is grey.
_COLOURS = ("#2166ac", "#e66101", "#1b7837", "#762a83", "#8c510a", "#01665e", "#b2182b")
_LOT = "#999999"
_STYLE = (
    "body{font:14px sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0}td,th{padding:2px 8px;text-align:right}"
    ".wall td{padding:0;width:14px;height:12px}.wall th{font-weight:normal;font-size:10px;padding:0 3px}"
    ".walls{display:flex;flex-wrap:wrap;gap:1.5em}figcaption{font-size:12px}"
)


def page(census: Census, title: str, rank: str = "effect", n: int = 40) -> str:
    """The page, with the heads ranked by one of the measures."""
    rank = rank if rank in census.table else next(iter(census.table))
    names = list(census.table)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("layer", "head", *names))
    rows = []
    for layer, number in census.ranked(rank)[:n]:
        cells = "".join(f"<td>{_number(float(census.table[name][layer, number]))}</td>" for name in names)
        rows.append(f"<tr><td>{layer}</td><td>{number}</td>{cells}</tr>")
    walls = "".join(_wall(name, census.table[name].tolist()) for name in names)
    early = "" if census.complete else "<p>It was interrupted: what was measured until then.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>{early}"
        f"<p>Loss {_number(census.loss)} nats a token. influence and effect: how much it rises without the head.</p>"
        f'<div class="walls">{walls}</div><h2>Loss against heads removed</h2>{curves(census)}'
        f"<h2>Heads by {html.escape(rank)}</h2><table><tr>{head}</tr>{''.join(rows)}</table></body></html>"
    )


def curves(census: Census) -> str:
    """Loss against the number of heads removed, a line for each ranking, as SVG."""
    points = [point for line in census.curves.values() for point in line]
    if len(points) < 2:
        return "<p>Not measured.</p>"
    right, low, high = max(n for n, _ in points), min(y for _, y in points), max(y for _, y in points)
    span = (high - low) or 1.0

    def at(n: int, y: float) -> str:
        x = _LEFT + math.log1p(n) / math.log1p(right or 1) * (_WIDTH - _LEFT - 120)
        return f"{x:.1f},{_HEIGHT - _BOTTOM - (y - low) / span * (_HEIGHT - _BOTTOM - 16):.1f}"

    drawn, ends = [], []
    for i, (name, line) in enumerate(census.curves.items()):
        lot = name.startswith("random")
        colour = _LOT if lot else _COLOURS[i % len(_COLOURS)]
        drawn.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(at(*point) for point in line)}"/>')
        if not lot or name.endswith("1"):
            ends.append((float(at(*line[-1]).split(",")[1]), "random" if lot else name, colour))
    last = -math.inf
    for y, name, colour in sorted(ends):
        last = max(y, last + 13)
        drawn.append(f'<text x="{_WIDTH - 114}" y="{last + 4:.1f}" fill="{colour}">{html.escape(name)}</text>')
    ticks = [n for n, _ in next(iter(census.curves.values()))]
    for n in ticks:
        x = at(n, low).split(",")[0]
        drawn.append(f'<text x="{x}" y="{_HEIGHT - 18}" text-anchor="middle">{n}</text>')
    for y in (low, (low + high) / 2, high):
        drawn.append(f'<text x="{_LEFT - 6}" y="{at(0, y).split(",")[1]}" text-anchor="end">{y:.2f}</text>')
    drawn.append(f'<text x="{_WIDTH // 2 - 60}" y="{_HEIGHT - 2}" text-anchor="middle">heads removed</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="loss against heads removed">'
        f"{''.join(drawn)}</svg>"
    )


def _wall(name: str, rows: list[list[float]]) -> str:
    """Layers x heads in colours: orange is more, blue less than nothing."""
    largest = max((abs(x) for row in rows for x in row if x == x), default=0.0) or 1.0
    lines = []
    for layer, row in enumerate(rows):
        cells = []
        for head, x in enumerate(row):
            said = html.escape(f"{layer}.{head} {name} {_number(x)}")
            cells.append(
                f'<td title="{said}" style="background:{_colour(x / largest)}"></td>' if x == x else "<td></td>"
            )
        lines.append(f"<tr><th>{layer}</th>{''.join(cells)}</tr>")
    caption = f"<figcaption>{html.escape(name)}, at most {_number(largest)}</figcaption>"
    return f'<figure>{caption}<table class="wall">{"".join(lines)}</table></figure>'


def _colour(share: float) -> str:
    full = (230, 97, 1) if share > 0 else (33, 102, 172)
    return "#" + "".join(f"{round(255 + (c - 255) * min(1.0, abs(share))):02x}" for c in full)


def _number(x: float) -> str:
    return "" if x != x else f"{x:.3f}" if abs(x) < 100 else f"{x:.3g}"
