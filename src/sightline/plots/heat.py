"""Weights of queries x keys as a labelled map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.lens import Sight
from sightline.plots.canvas import COLOURS, FAINT, labels, new_figure, numbers, style, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS = 512  # of a sight with more tokens than that a picture is drawn
MOST_HEADS = 16
WRITTEN = 12  # tokens up to which the weights are written into their cells


def map(
    weights: Any,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    head: int | None = None,
    title: str | None = None,
    largest: float | None = None,
) -> Figure:
    """A labelled map of attention weights: a row for each query, a column for each key, a panel for each head.

    Args:
        weights: `[queries, keys]` or `[heads, queries, keys]`, or a Sight; of a long one a picture of the largest
            weights is drawn, 512 x 512.
        tokens: the words of the queries, and of the keys where there are as many.
        keys: the words of the keys, where they are others.
        head: one head alone.
        title: above the panels.
        largest: the weight that gets the lightest colour; the largest of all if not given.

    >>> import sightline as sl, sightline.plots as plots, torch
    >>> words = "Action gets results".split()
    >>> x = torch.randn(3, 8)
    >>> figure = plots.map(sl.look(x, x, mask=sl.causal()), words)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['Action', 'gets', 'results']
    """
    table, shape = _read(weights)
    names = labels("tokens", tokens, shape[0])
    if keys is None and shape[0] == shape[1]:
        keys = tokens
    key_names = labels("keys", keys, shape[1])
    if head is not None:
        table = table[_head(head, len(table)) :][:1]
    if len(table) > MOST_HEADS:
        raise InputError(
            "too many heads for one picture", expected=f"{MOST_HEADS} or fewer", got=len(table), hint="head=0"
        )
    top = float(np.nanmax(table, initial=0.0)) if largest is None else float(largest)
    across = min(4, len(table))
    down = -(-len(table) // across)
    # A label takes an eighth of an inch; of a long text some tokens go without.
    panel = min(9.0, max(4.6, max(shape) / 8)) if len(table) == 1 else 2.9
    with style():
        figure = new_figure(panel * across + 0.9, panel * down * min(1.5, max(0.5, shape[0] / shape[1])) + 0.5)
        panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for index, axes in enumerate(panels.flat):
            if index >= len(table):
                axes.set_visible(False)
                continue
            image = axes.imshow(
                table[index],
                cmap=COLOURS,
                vmin=0.0,
                vmax=top or 1.0,
                extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5),
            )
            image.set_interpolation("nearest")
            if len(table) > 1:
                axes.set_title(f"head {index}")
            # Panels share their axes: the labels of the first column and of the last row serve all.
            ticks(axes, "x", key_names, shape[1], most=int(panel * 8))
            ticks(axes, "y", names, shape[0], most=int(panel * 8))
            if key_names is not None and max(len(name) for name in key_names) > 2:
                few = len(table) == 1 and shape[1] <= WRITTEN
                for label in axes.get_xticklabels():
                    label.set(
                        rotation=45 if few else 90,
                        ha="right" if few else "center",
                        rotation_mode="anchor" if few else None,
                    )
            if len(table) == 1 and max(shape) <= WRITTEN:
                write_numbers(axes, table[index], top)
        for axes in panels[:, 0]:
            axes.set_ylabel("query")
        for axes in panels[-1]:
            axes.set_xlabel("key")
        if title or head is not None:
            figure.suptitle(title or f"head {head}", fontsize=11)
        bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("weight" if table.shape[1:] == shape else "largest weight in a pixel", color=FAINT)
    return figure


def write_numbers(axes: Axes, table: np.ndarray, top: float) -> None:
    """The weights in their cells, dark on light and light on dark; what would be 0.00 is left out."""
    for (i, j), weight in np.ndenumerate(table):
        if weight >= 0.005:
            light = weight > 0.6 * (top or 1.0)
            axes.text(j, i, f"{weight:.2f}", ha="center", va="center", fontsize=7, color="black" if light else "white")


def _read(weights: Any) -> tuple[np.ndarray, tuple[int, int]]:
    """The map as `[heads, rows, columns]`, and how many queries and keys that is."""
    if not isinstance(weights, Sight):
        table = numbers("weights", weights, "[queries, keys] or [heads, queries, keys]", (2, 3))
        return table.reshape(-1, *table.shape[-2:]), (table.shape[-2], table.shape[-1])
    *front, queries, columns = weights.shape
    if any(n != 1 for n in front[:-1]) or not queries or not columns:
        raise InputError(
            "this sight is of several sequences, or of none",
            expected="one sequence: [heads, queries, keys]",
            got=f"shape {weights.shape}",
            hint="plots.map(sight.tile(slice(None), slice(None))[0])",
        )
    if max(queries, columns) <= PIXELS:
        found = weights.tile(slice(None), slice(None))
    else:
        found = weights.picture(size=(min(queries, PIXELS), min(columns, PIXELS)), reduce="max")
    table = numbers("weights", found.reshape(-1, *found.shape[-2:]), "[heads, queries, keys]", (3,))
    return table, (queries, columns)


def _head(head: int, heads: int) -> int:
    if not isinstance(head, int) or not 0 <= head < heads:
        raise InputError("there is no such head", expected=f"0 to {heads - 1}", got=repr(head), hint="head=0")
    return head
