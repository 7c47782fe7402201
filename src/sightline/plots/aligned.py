"""Cross-attention as an alignment: which part of what was read each written token looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.plots.canvas import COLOURS, FAINT, MARK, labels, new_figure, numbers, style, ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def alignment(
    weights: Any, written: Sequence[str], read: Sequence[str], *, title: str | None = None, mark: bool = True
) -> Figure:
    """Cross-attention weights with what was read along the top and what was written down the side.

    Args:
        weights: `[written, read]`: of one head, or the mean of several.
        written: the tokens of the output, one for each row; a string is its characters.
        read: the tokens of the input, one for each column.
        title: above the picture.
        mark: put a ring around the strongest input token of each row.

    >>> import sightline.plots as plots, torch
    >>> figure = plots.alignment(torch.eye(2, 3), written="ab", read="a-b")
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['a', '-', 'b']
    """
    table = numbers("weights", weights, "[written, read]", (2,))
    rows, columns = table.shape
    down, along = labels("written", written, rows), labels("read", read, columns)
    with style():
        # Cells of a quarter of an inch, as long as the picture stays a page wide.
        cell = min(0.27, 9.0 / columns, 12.0 / rows)
        figure = new_figure(max(2.4, columns * cell) + 1.3, max(1.2, rows * cell) + (1.0 if title else 0.7))
        axes = figure.subplots()
        image = axes.imshow(table, cmap=COLOURS, vmin=0.0, vmax=max(float(np.nanmax(table)), 1e-9), aspect="equal")
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        ticks(axes, "x", along, columns)
        ticks(axes, "y", down, rows)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontfamily("monospace")
        if along is not None and max(len(name.strip("\\")) for name in along) > 2:
            axes.tick_params(axis="x", labelrotation=90)
        axes.set_xlabel("read")
        axes.set_ylabel("written")
        if mark:
            best = np.nanargmax(table, axis=1)
            axes.plot(best, np.arange(rows), "o", markersize=cell * 28, markerfacecolor="none", markeredgecolor=MARK)
        if title:
            figure.suptitle(title, fontsize=11)
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("weight", color=FAINT)
    return figure
