"""Losses over steps: every curve named where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sightline.errors import InputError
from sightline.plots.canvas import FAINT, new_figure, numbers, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.045  # between two names, as a share of the height


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str = "step",
    y: str = "loss (nats per character)",
    title: str | None = None,
    top: float | None = None,
) -> Figure:
    """One curve for each name, coloured in their order from dark to light, each named and numbered where it ends.

    Args:
        lines: name to points (x, y).
        x, y: what the axes say.
        title: above the picture.
        top: the largest y shown; beyond it lies the steep beginning.

    >>> import sightline.plots as plots
    >>> figure = plots.curves({"average": [(10, 3.0), (20, 2.5)], "one head": [(10, 2.9), (20, 2.2)]})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['average  2.500', 'one head  2.200']
    """
    if not lines:
        raise InputError("no curves to draw", expected="one or more", got="none", hint='{"name": [(1, 2.0)]}')
    points = {name: numbers(name, line, "[points, 2]", (2,)) for name, line in lines.items()}
    with style():
        import matplotlib

        colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.88, len(points)))
        figure = new_figure(7.6, 4.6)
        axes = figure.subplots()
        for (name, line), colour in zip(points.items(), colours):
            axes.plot(line[:, 0], line[:, 1], color=colour, linewidth=1.6, label=name, marker="o", markersize=2.6)
        ends = {name: float(line[-1, 1]) for name, line in points.items()}
        finite = [end for end in ends.values() if np.isfinite(end)] or [0.0]
        low, high = min(finite), max(max(finite), top if top is not None else _highest(points))
        room = (high - low) * 0.06 or 0.1
        axes.set_ylim(low - room, high + room)
        right = max(float(line[:, 0].max()) for line in points.values())
        axes.set_xlim(0, right)
        places = _spread(
            [ends[name] for name in points], low - room / 2, high + room / 2, GAP * (high - low + 2 * room)
        )
        for (name, end), place, colour in zip(ends.items(), places, colours):
            # The name stands beside the curve's end; where ends are close, a thin line leads to it.
            axes.annotate(
                f"{name}  {end:.3f}",
                xy=(right, end),
                xytext=(1.045, place),
                textcoords=axes.get_yaxis_transform(),
                va="center",
                fontsize=8.5,
                color=colour * [0.8, 0.8, 0.8, 1.0],
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1},
                annotation_clip=False,
            )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if title:
            axes.set_title(title, loc="left")
    return figure


def _highest(points: Mapping[str, np.ndarray]) -> float:
    """High enough for all of the curves but their first steep quarter."""
    later = np.concatenate([line[len(line) // 4 :, 1] for line in points.values()])
    later = later[np.isfinite(later)]
    return float(later.max()) if later.size else 1.0


def _spread(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Places near the wanted ones, at least a gap apart and, as far as there is room, between low and high.

    >>> [round(place, 2) for place in _spread([1.0, 1.0, 3.0], 0.0, 4.0, 0.5)]
    [1.25, 0.75, 3.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i] if np.isfinite(wanted[i]) else high, -i))
    # Names that stand too close are one block around the mean of what they want; blocks that meet become one.
    blocks: list[list[int]] = []
    centres: list[float] = []
    for i in order:
        blocks.append([i])
        centres.append(min(max(wanted[i] if np.isfinite(wanted[i]) else high, low), high))
        while len(blocks) > 1 and centres[-1] - centres[-2] < gap * (len(blocks[-1]) + len(blocks[-2])) / 2:
            later, last = blocks.pop(), centres.pop()
            size = len(blocks[-1])
            centres[-1] = (centres[-1] * size + last * len(later)) / (size + len(later))
            blocks[-1] += later
            half = gap * (len(blocks[-1]) - 1) / 2
            centres[-1] = min(max(centres[-1], low + half), max(high - half, low + half))
    places = [0.0] * len(wanted)
    for block, centre in zip(blocks, centres):
        for k, i in enumerate(block):
            places[i] = centre + gap * (k - (len(block) - 1) / 2)
    return places
