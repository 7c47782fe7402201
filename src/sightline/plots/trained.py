"""A training as its heads saw it: one number over the steps, a row of panels for the layers, a line for each head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sightline.errors import InputError
from sightline.nn.observe.record import Reading
from sightline.plots.canvas import FAINT, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.nn import Monitor

LABELS = {"entropy": "entropy (nats)", "max_score": "largest score", "first_share": "share of the first keys"}
ACROSS = 4  # panels in a row


def training(monitor: Monitor, what: str = "entropy", *, title: str | None = None) -> Figure:
    """What a monitor recorded, over the steps: one panel for each layer, one line for each head.

    Args:
        monitor: an `sl.monitor`, which has recorded something.
        what: `"entropy"`, `"max_score"` or `"first_share"`.
        title: above the panels.

    >>> import torch, sightline as sl, sightline.plots as plots
    >>> model = sl.nn.Decoder(16, heads=2, layers=3)
    >>> with sl.monitor(model, every=1) as monitor:
    ...     for _ in range(4):
    ...         _ = model(torch.randn(3, 7, 16))
    ...         monitor.step()
    >>> figure = plots.training(monitor, "max_score")
    >>> [axes.get_title() for axes in figure.axes]
    ['layers.0.attention', 'layers.1.attention', 'layers.2.attention']
    """
    if what not in Reading._fields:
        raise InputError(
            "this is not recorded", expected=", ".join(Reading._fields), got=repr(what), hint='what="entropy"'
        )
    names = list(dict.fromkeys(name for record in monitor.history for name in record))
    if not names:
        raise InputError(
            "nothing was recorded yet",
            expected="a monitor after a step that was due",
            got=repr(monitor),
            hint="monitor.step() after each step of training",
        )
    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    with style():
        import matplotlib

        figure = new_figure(2.1 * across + 0.6, 1.6 * down + (0.6 if title else 0.3))
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes, name in zip(panels.flat, names, strict=False):
            lines = getattr(monitor.series(name), what).numpy()
            colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.88, lines.shape[1]))
            for head, colour in enumerate(colours):
                axes.plot(monitor.steps, lines[:, head], color=colour, linewidth=1.2, marker="o", markersize=2.0)
            axes.set_title(name or "attention", fontsize=8)
            axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.5)
        for axes in panels.flat[len(names) :]:
            axes.remove()
        for row in panels:
            row[0].set_ylabel(LABELS[what], fontsize=8)
        for axes in figure.axes[-across:]:
            axes.set_xlabel("step", fontsize=8)
        if title:
            figure.suptitle(title)
    return figure
