"""What every head did for a target: layers x heads, orange where a head raised it, blue where it lowered it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.plots.canvas import new_figure, style
from sightline.plots.heads import count_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The two ends of the scale, as in the table of a notebook.
LOWERS, RAISES = "#2166ac", "#e66101"


def effects(found: Any, *, of: str = "exact", title: str | None = None) -> Figure:
    """The effects of all heads as a table of layers x heads, the mean over the batch.

    Args:
        found: what `sl.effects` gives.
        of: `"exact"`, or `"influence"` for the first-order figure.
        title: above the picture.

    >>> import torch, sightline as sl
    >>> import sightline.plots as plots
    >>> table = torch.tensor([[0.5, -1.5], [0.1, float("nan")]])
    >>> figure = plots.effects(sl.Effects(["0.attn", "1.attn"], torch.tensor(2.0), table, table))
    >>> figure.axes[0].images[0].get_clim()
    (-1.5, 1.5)
    """
    values = getattr(found, of, None) if of in ("exact", "influence") else None
    if values is None or not hasattr(found, "layers"):
        raise InputError(
            "these are no effects of heads",
            expected='what sl.effects gives, and of="exact" or of="influence"',
            got=f"{type(found).__name__}, of={of!r}",
            hint="plots.effects(sl.effects(model, ids, target))",
        )
    table = np.asarray(values.reshape(-1, *values.shape[-2:]).mean(0), dtype=float)
    largest = float(np.nanmax(np.abs(table))) if np.isfinite(table).any() else 1.0
    with style():
        from matplotlib.colors import LinearSegmentedColormap

        colours = LinearSegmentedColormap.from_list("effects", [LOWERS, "#ffffff", RAISES])
        wide = float(np.clip(0.26 * table.shape[1], 1.8, 7.0))
        high = float(np.clip(0.2 * table.shape[0], 1.2, 8.0))
        figure = new_figure(wide + 1.4, high + (0.9 if title else 0.6))
        axes = figure.subplots()
        image = axes.imshow(table, cmap=colours, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
        count_axis(axes.xaxis, list(range(table.shape[1])))
        count_axis(axes.yaxis, list(range(table.shape[0])))
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.tick_params(length=0)
        bar = figure.colorbar(image, ax=axes, aspect=24, pad=0.03)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.set_label("raised the target" if of == "exact" else "raised the target, at first order", fontsize=8)
        if title:
            axes.set_title(title)
    return figure
