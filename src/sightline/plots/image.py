"""Attention between patches of a picture, over the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.plots.canvas import COLOURS, FAINT, MARK, new_figure, numbers, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def on_image(
    image: Any, weights: Any, *, query: tuple[int, int] | None = None, title: str | None = None, smooth: bool = False
) -> Figure:
    """A picture, and beside it the same picture with the attention of one of its patches over it.

    Args:
        image: `[height, width]` grey or `[height, width, 3]` colours, 0 to 1.
        weights: `[rows, columns]`, one for each patch, or `[heads, rows, columns]` for a panel each.
        query: (row, column) of the patch that looks; it gets a frame.
        title: above the panels.
        smooth: blend from patch to patch instead of showing the patches as they are.

    >>> import sightline.plots as plots, torch
    >>> figure = plots.on_image(torch.rand(32, 48, 3), torch.rand(4, 6), query=(1, 2))
    >>> len(figure.axes)  # the picture, the weights over it, the scale of the weights
    3
    """
    picture = numbers("the picture", image, "[height, width] or [height, width, 3]", (2, 3))
    if picture.ndim == 3 and picture.shape[-1] != 3:
        raise InputError(
            "the picture has no colours",
            expected="[height, width, 3]",
            got=f"shape {picture.shape}",
            hint="image.permute(1, 2, 0), if its channels come first",
        )
    if not (np.isfinite(picture).all() and picture.min() >= 0 and picture.max() <= 1):
        raise InputError(
            "the picture is out of range",
            expected="numbers from 0 to 1",
            got=f"{picture.min():g} to {picture.max():g}",
            hint="image / 255, if it holds bytes",
        )
    heads = numbers("weights", weights, "[rows, columns] or [heads, rows, columns]", (2, 3))
    heads = heads.reshape(-1, *heads.shape[-2:])
    height, width = picture.shape[:2]
    extent = (0, width, height, 0)
    top = float(np.nanmax(heads))
    with style():
        panel = 2.6
        figure = new_figure(panel * (1 + len(heads)) + 0.7, panel * height / width + (0.7 if title else 0.5))
        panels = figure.subplots(1, 1 + len(heads))
        panels[0].imshow(picture, cmap="gray", vmin=0, vmax=1, extent=extent)
        panels[0].set_title("the picture")
        grey = picture if picture.ndim == 2 else picture @ np.array([0.299, 0.587, 0.114])
        for index, axes in enumerate(panels[1:]):
            axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
            shown = axes.imshow(
                heads[index],
                cmap=COLOURS,
                vmin=0.0,
                vmax=top or 1.0,
                # Where nothing is looked at, the picture stays to be seen.
                alpha=0.25 + 0.6 * (np.nan_to_num(heads[index]) / (top or 1.0)).clip(0, 1),
                extent=extent,
                interpolation="bilinear" if smooth else "nearest",
            )
            axes.set_title("where it looks" if len(heads) == 1 else f"head {index}")
        for axes in panels:
            axes.set_xticks([])
            axes.set_yticks([])
            if query is not None:
                _frame(axes, query, heads.shape[1:], (height, width))
        if title:
            figure.suptitle(title, fontsize=11)
        bar = figure.colorbar(shown, ax=list(panels[1:]), shrink=0.85, aspect=25, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("weight", color=FAINT)
    return figure


def _frame(axes: Any, query: tuple[int, int], grid: tuple[int, ...], size: tuple[int, int]) -> None:
    """A frame around the patch that looks."""
    from matplotlib.patches import Rectangle

    row, column = query
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise InputError(
            "the query is not a patch of the picture",
            expected=f"rows 0 to {grid[0] - 1}, columns 0 to {grid[1] - 1}",
            got=query,
            hint="query=(row, column)",
        )
    high, wide = size[0] / grid[0], size[1] / grid[1]
    axes.add_patch(
        Rectangle((column * wide, row * high), wide, high, fill=False, edgecolor=MARK, linewidth=2.0, zorder=3)
    )
