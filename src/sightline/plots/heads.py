"""All heads of a model at a glance: one small table of layers x heads for each measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.plots.canvas import new_figure, numbers, signed_colours, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def portraits(records: Iterable[Any], *, measures: Sequence[str] | None = None, title: str | None = None) -> Figure:
    """Measures of heads as tables of layers x heads, one for each measure, each with a scale of its own.

    Args:
        records: one for each head: `layer`, `head`, and any number of measures. Dictionaries, named tuples such as
            those of `seen.portraits()`, or a table of pandas.
        measures: which of them, in which order; all that are numbers if not given.
        title: above the tables.

    >>> import sightline.plots as plots
    >>> records = [{"layer": layer, "head": head, "entropy": layer + head} for layer in range(2) for head in range(3)]
    >>> figure = plots.portraits(records)
    >>> figure.axes[0].get_title(), figure.axes[0].images[0].get_array().tolist()
    ('entropy', [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    """
    if hasattr(records, "to_dict"):
        records = records.to_dict("records")
    others = getattr(records, "others", [])
    rows = [row._asdict() if hasattr(row, "_asdict") else row for row in records]
    if len(others) == len(rows):
        rows = [{**row, **more} for row, more in zip(rows, others, strict=True)]
    if not rows or not all("layer" in row and "head" in row for row in rows):
        raise InputError(
            "these are not portraits of heads",
            expected="records with layer, head and measures, at least one",
            got=f"{len(rows)} records" + (f", the first with {', '.join(map(str, rows[0]))}" if rows else ""),
            hint='[{"layer": 0, "head": 0, "entropy": 1.2}, …]',
        )
    found = [key for key in rows[0] if key not in ("layer", "head") and any(_is_number(row.get(key)) for row in rows)]
    names = found if measures is None else list(measures)
    missing = [name for name in names if any(name not in row for row in rows)]
    if not names or missing:
        raise InputError(
            "the measures are not in every record",
            expected=", ".join(found) or "some measure",
            got=", ".join(missing) or "none",
            hint='measures=("entropy",)',
        )
    # Layers in the order they come, heads by number: layers may have names.
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    heads = sorted({int(row["head"]) for row in rows})
    across = min(3, len(names))
    down = -(-len(names) // across)
    with style():
        wide = float(np.clip(0.22 * len(heads), 1.6, 3.4))
        high = float(np.clip(0.22 * len(layers), 1.0, 5.0))
        figure = new_figure((wide + 0.9) * across + 0.3, (high + 0.75) * down + (0.35 if title else 0.1))
        panels = figure.subplots(down, across, squeeze=False)
        for axes in list(panels.flat)[len(names) :]:
            axes.set_visible(False)
        for name, axes in zip(names, panels.flat):
            table = np.full((len(layers), len(heads)), np.nan)
            for row in rows:
                table[layers.index(row["layer"]), heads.index(int(row["head"]))] = _number(row[name])
            image = axes.imshow(table, cmap="cividis", aspect="auto", interpolation="nearest")
            axes.set_title(name)
            count_axis(axes.xaxis, heads)
            count_axis(axes.yaxis, _short(layers))
            axes.tick_params(length=0)
            bar = figure.colorbar(image, ax=axes, aspect=18, pad=0.03)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=7, length=2)
        for axes in panels[:, 0]:
            axes.set_ylabel("layer")
        for axes in panels[-1]:
            axes.set_xlabel("head")
        if title:
            figure.suptitle(title, fontsize=11)
    return figure


def by_head(table: Any, *, of: str = "influence", title: str | None = None) -> Figure:
    """One number for each head as a table of layers x heads: orange what raised y, blue what lowered it.

    Args:
        table: `[layers, heads]`, such as `seen.by_head()[0]`, or the run itself, if it is of one text; NaN is blank.
        of: what of a run is drawn: `"influence"`, `"pull"` or `"norms"`.
        title: above the table.

    >>> import sightline.plots as plots
    >>> figure = plots.by_head([[0.5, -0.2], [2.6, 0.1]])
    >>> figure.axes[0].images[0].get_clim()
    (-2.6, 2.6)
    """
    layers: Sequence[Any] | None = None
    if hasattr(table, "by_head"):
        layers = _short(table.layers)
        table = table.by_head(of)
    found = numbers("table", table, "[layers, heads]", (2, 3))
    if found.ndim == 3 and found.shape[0] != 1:
        raise InputError(
            "this is a run of several texts", expected="one", got=f"{found.shape[0]}", hint="seen.by_head()[0]"
        )
    found = found.reshape(-1, found.shape[-1])
    signed = bool(np.nanmin(found, initial=0.0) < 0)
    top = float(np.nanmax(np.abs(found), initial=0.0)) or 1.0
    with style():
        wide = float(np.clip(0.24 * found.shape[1], 2.2, 6.0))
        figure = new_figure(wide + 1.6, float(np.clip(0.2 * found.shape[0], 1.4, 7.0)) + 0.9)
        axes = figure.subplots()
        colours = signed_colours() if signed else "cividis"
        lowest = -top if signed else 0.0
        image = axes.imshow(found, colours, aspect="auto", interpolation="nearest", vmin=lowest, vmax=top)
        count_axis(axes.xaxis, range(found.shape[1]))
        count_axis(axes.yaxis, range(found.shape[0]) if layers is None else layers, 16)
        axes.tick_params(length=0)
        axes.set(xlabel="head", ylabel="layer")
        axes.set_title(title or of)
        bar = figure.colorbar(image, ax=axes, aspect=22, pad=0.03)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7, length=2)
    return figure


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """A measure; what was not measured is blank."""
    return float(value) if _is_number(value) else float("nan")


def _short(layers: Sequence[Any]) -> list[str]:
    """Names of layers without what all of them begin and end with.

    >>> _short(["encoder.layers.0.attention", "encoder.layers.1.attention", "encoder.layers.10.attention"])
    ['0', '1', '10']
    """
    parts = [str(layer).split(".") for layer in layers]
    shortest = min(len(name) for name in parts)
    if len(parts) < 2 or shortest < 2:
        return [".".join(name) for name in parts]
    front = next((i for i in range(shortest) if len({name[i] for name in parts}) > 1), shortest - 1)
    back = next((i for i in range(shortest - front) if len({name[-1 - i] for name in parts}) > 1), 0)
    return [".".join(name[front : len(name) - back]) for name in parts]


def count_axis(axis: Any, names: Sequence[Any], most: int = 12) -> None:
    """Label some of the rows or columns, evenly."""
    shown = range(0, len(names), -(-len(names) // most))
    axis.set_ticks(list(shown), [str(names[i]) for i in shown])
