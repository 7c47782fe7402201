"""Attention between places of the earth, on plain longitudes and latitudes or on a globe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sightline.errors import InputError
from sightline.plots.canvas import COLOURS, FAINT, MARK, new_figure, numbers, style
from sightline.positions.latlon import unit_vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Place = tuple[float, float]


def on_map(
    values: Any,
    places: Any,
    *,
    query: Place | None = None,
    title: str | None = None,
    label: str = "weight",
    colours: str = COLOURS,
    lowest: float | None = 0.0,
) -> Figure:
    """A number for each place, on a map of plain longitudes and latitudes.

    Places that make up a whole grid of latitudes x longitudes are drawn as its cells, others as points.

    Args:
        values: `[places]`, or `[heads, places]` for a panel each.
        places: `[places, 2]` of (latitude, longitude) in degrees.
        query: (latitude, longitude) of the place that looks; it gets a ring.
        title: above the panels.
        label: what the numbers are.
        colours: a colour map of matplotlib.
        lowest: the number of the darkest colour; None for the smallest of all.

    >>> import sightline.plots as plots, torch
    >>> places = torch.cartesian_prod(torch.tensor([-45.0, 0.0, 45.0]), torch.arange(-180.0, 180.0, 90.0))
    >>> figure = plots.on_map(torch.rand(12), places, query=(0.0, 90.0))
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('longitude', 'latitude')
    """
    heads, at = _read(values, places)
    low, high = _range(heads, lowest)
    grid = _grid(at)
    with style():
        figure, panels = _panels(len(heads), 4.6, 2.35)
        for index, axes in enumerate(panels):
            if grid is None:
                size = float(np.clip(9000 / len(at), 4, 60))
                drawn: Any = axes.scatter(
                    _east(at[:, 1]), at[:, 0], c=heads[index], cmap=colours, vmin=low, vmax=high, s=size, linewidths=0
                )
            else:
                drawn = _cells(axes, at, grid, heads[index], colours, (low, high))
            if query is not None:
                axes.plot(_east(np.array([query[1]])), [query[0]], "o", markersize=9, mfc="none", mec=MARK, mew=1.8)
            axes.set(xlim=(-180, 180), ylim=(-90, 90), aspect="equal", xlabel="longitude", ylabel="latitude")
            axes.set_xticks(range(-180, 181, 60))
            axes.set_yticks(range(-90, 91, 30))
            axes.grid(color="white" if grid is not None else FAINT, alpha=0.25, linewidth=0.5)
            axes.label_outer()
            if len(heads) > 1:
                axes.set_title(f"head {index}")
        _finish(figure, drawn, panels, title, label)
    return figure


def on_globe(
    values: Any,
    places: Any,
    *,
    query: Place | None = None,
    above: Place | None = None,
    title: str | None = None,
    label: str = "weight",
    colours: str = COLOURS,
    lowest: float | None = 0.0,
) -> Figure:
    """The same as `on_map` on a sphere seen from far above one place: the half that can be seen from there.

    Args:
        values, places, query, title, label, colours, lowest: as in `on_map`.
        above: (latitude, longitude) the globe is seen from; the query, or (20, 0).

    >>> import sightline.plots as plots, torch
    >>> places = torch.cartesian_prod(torch.arange(-80.0, 81.0, 20.0), torch.arange(-180.0, 180.0, 20.0))
    >>> figure = plots.on_globe(torch.rand(len(places)), places, query=(40.0, 20.0))
    >>> len(figure.axes[0].collections[0].get_offsets()) < len(places)  # the far side is hidden
    True
    """
    heads, at = _read(values, places)
    low, high = _range(heads, lowest)
    eye = above or query or (20.0, 0.0)
    x, y, depth = _seen_from(at, eye)
    near = depth > 0
    with style():
        figure, panels = _panels(len(heads), 3.2, 3.2)
        for index, axes in enumerate(panels):
            _graticule(axes, eye)
            # Points near the rim stand closer together: they are drawn smaller, as one would see them.
            size = np.clip(2.2e4 / len(at), 4, 160) * np.sqrt(depth[near])
            drawn = axes.scatter(
                x[near],
                y[near],
                c=heads[index][near],
                cmap=colours,
                vmin=low,
                vmax=high,
                s=size,
                linewidths=0,
                zorder=2,
            )
            if query is not None:
                qx, qy, front = _seen_from(np.array([query], dtype=float), eye)
                if front[0] > 0:
                    axes.plot(qx, qy, "o", markersize=11, mfc="none", mec=MARK, mew=1.8, zorder=3)
            axes.set(xlim=(-1.02, 1.02), ylim=(-1.02, 1.02), aspect="equal")
            axes.axis("off")
            if len(heads) > 1:
                axes.set_title(f"head {index}")
        _finish(figure, drawn, panels, title, label)
    return figure


def _read(values: Any, places: Any) -> tuple[np.ndarray, np.ndarray]:
    heads = numbers("values", values, "[places] or [heads, places]", (1, 2))
    heads = heads.reshape(-1, heads.shape[-1])
    at = numbers("places", places, "[places, 2] of (latitude, longitude)", (2,))
    if at.shape != (heads.shape[1], 2):
        raise InputError(
            "the places do not fit the values",
            expected=f"[{heads.shape[1]}, 2]: (latitude, longitude) of each",
            got=f"shape {at.shape}",
            hint="one place for each value",
        )
    if not (np.isfinite(at).all() and (abs(at[:, 0]) <= 90).all()):
        raise InputError(
            "a place lies nowhere on earth",
            expected="latitudes from -90 to 90 and finite longitudes, in degrees",
            got=f"latitudes from {at[:, 0].min():g} to {at[:, 0].max():g}",
            hint="the order is (latitude, longitude)",
        )
    return heads, at


def _range(heads: np.ndarray, lowest: float | None) -> tuple[float, float]:
    low = float(np.nanmin(heads)) if lowest is None else float(lowest)
    high = float(np.nanmax(heads))
    return low, high if high > low else low + 1.0


def _east(longitudes: np.ndarray) -> np.ndarray:
    """Longitudes from -180 up to 180.

    >>> _east(np.array([190.0, -180.0, 359.0]))
    array([-170., -180.,   -1.])
    """
    return (longitudes + 180.0) % 360.0 - 180.0


def _grid(at: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The latitudes and longitudes of a whole, evenly spaced grid; None if the places are not one."""
    latitudes, longitudes = np.unique(at[:, 0]), np.unique(_east(at[:, 1]))
    if min(len(latitudes), len(longitudes)) < 2 or len(latitudes) * len(longitudes) != len(at):
        return None
    if len(np.unique(np.stack((at[:, 0], _east(at[:, 1])), 1), axis=0)) != len(at):
        return None
    even = all(np.allclose(np.diff(line), line[1] - line[0]) for line in (latitudes, longitudes))
    return (latitudes, longitudes) if even else None


def _cells(
    axes: Axes, at: np.ndarray, grid: tuple[np.ndarray, np.ndarray], values: np.ndarray, colours: str, span: Place
) -> Any:
    """The cells of a grid, each around its place; at the poles they end, over the date line they go on."""
    latitudes, longitudes = grid
    table = np.full((len(latitudes), len(longitudes)), np.nan)
    table[np.searchsorted(latitudes, at[:, 0]), np.searchsorted(longitudes, _east(at[:, 1]))] = values
    step = longitudes[1] - longitudes[0]
    if len(longitudes) * step > 359.9:
        # A ring around the earth: the first column is drawn again behind the last, and the axes cut both.
        table = np.concatenate((table, table[:, :1]), axis=1)
        longitudes = np.append(longitudes, longitudes[-1] + step)
    return axes.pcolormesh(
        _edges(longitudes), _edges(latitudes).clip(-90, 90), table, cmap=colours, vmin=span[0], vmax=span[1]
    )


def _edges(centres: np.ndarray) -> np.ndarray:
    step = centres[1] - centres[0]
    return np.append(centres, centres[-1] + step) - step / 2


def _seen_from(at: np.ndarray, eye: Place) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where places stand in a view from above one: to the right, upward, and towards the eye (orthographic)."""
    points = unit_vector(torch.from_numpy(at)).numpy()
    latitude, longitude = np.radians(eye)
    forward = np.array([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)])
    right = np.array([-np.sin(longitude), np.cos(longitude), 0.0])
    return points @ right, points @ np.cross(forward, right), points @ forward


def _graticule(axes: Axes, eye: Place) -> None:
    """Every thirtieth circle of latitude and longitude, where it can be seen, and the rim."""
    turn = np.linspace(-180.0, 180.0, 181)
    rings = [np.stack((np.full_like(turn, latitude), turn), 1) for latitude in range(-60, 61, 30)]
    rings += [np.stack((turn[45:136], np.full(91, longitude)), 1) for longitude in range(-180, 180, 30)]
    for ring in rings:
        x, y, depth = _seen_from(ring, eye)
        axes.plot(np.where(depth > 0, x, np.nan), y, color=FAINT, linewidth=0.4, zorder=1)
    axes.plot(np.cos(np.radians(turn)), np.sin(np.radians(turn)), color=FAINT, linewidth=0.8, zorder=1)


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    across = min(2, count)
    down = -(-count // across)
    figure = new_figure(width * across + 0.8, height * down + 0.5)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _finish(figure: Figure, drawn: Any, panels: list[Axes], title: str | None, label: str) -> None:
    if title:
        figure.suptitle(title, fontsize=11)
    bar = figure.colorbar(drawn, ax=panels, shrink=0.85, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(label, color=FAINT)
