"""From the sums or maxima of pixels to a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.lens.geometry import Axis
from sightline.lens.requests import Picture
from sightline.lens.tiles.accumulators import pool
from sightline.masks import EMPTY, MIXED

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call

# Cells of a mask that are looked at in one step.
_CELLS = 1 << 20


def finish(
    call: Call, picture: Picture, grid: Tensor, vertical: Axis, horizontal: Axis
) -> Float[Tensor, "*any height width"]:
    """Sums become means if asked for, pixels without a visible cell NaN if asked for, and cells are repeated.

    The grid is written over: new memory takes longer than the arithmetic.
    """
    if picture.visible_only:
        cells = visible_cells(call, vertical, horizontal).to(grid.dtype)
        if picture.reduce == "mean":
            grid /= cells.clamp_min(1)
        grid.masked_fill_(cells == 0, torch.nan)
    elif picture.reduce == "mean":
        grid /= _cells(vertical, horizontal, grid.device)
    for dim, axis in ((-2, vertical), (-1, horizontal)):
        if axis.shown is not None:
            grid = grid.index_select(dim, torch.from_numpy(axis.shown).to(grid.device))
    return grid


def grid_key(picture: Picture) -> tuple:
    """Mean and sum share their pixels' sums."""
    return (picture.size, picture.cell, picture.rows, picture.columns, picture.of, picture.reduce == "max")


def cells_of_pixels(vertical: Axis, horizontal: Axis) -> int | None:
    """How many cells a pixel has, if all have the same."""
    return vertical.each * horizontal.each or None


def means_of(pictures: list[Picture], grids: dict[tuple, tuple[Axis, Axis]]) -> dict[tuple, tuple[Picture, int]]:
    """Pictures that are the sums of their pixels divided by one number, by their grid: a pass can divide itself."""
    keys = [grid_key(picture) for picture in pictures]
    found: dict[tuple, tuple[Picture, int]] = {}
    for key, picture in zip(keys, pictures, strict=True):
        vertical, horizontal = grids[key]
        cells = cells_of_pixels(vertical, horizontal)
        plain = picture.reduce == "mean" and not picture.visible_only and vertical.shown is horizontal.shown is None
        if plain and cells is not None and keys.count(key) == 1:
            found[key] = picture, cells
    return found


def _cells(vertical: Axis, horizontal: Axis, device: torch.device) -> Tensor | int:
    """How many cells each pixel has: one number where all have the same, which needs no wait for a GPU."""
    same = cells_of_pixels(vertical, horizontal)
    if same is not None:
        return same
    heights, widths = np.diff(vertical.edges), np.diff(horizontal.edges)
    return torch.from_numpy(heights).to(device)[:, None] * torch.from_numpy(widths).to(device)


def visible_cells(call: Call, vertical: Axis, horizontal: Axis) -> Tensor:
    """How many cells of each pixel may be attended to, broadcastable to `[*batch, heads, height, width]`."""
    s, mask, device = call.sizes, call.mask, call.device
    area = torch.as_tensor(_cells(vertical, horizontal, device), device=device).expand(vertical.bins, horizontal.bins)
    if mask is None:
        return area
    kinds = mask.kinds(vertical.edges, horizontal.edges, s.queries, s.keys)
    count = area * torch.from_numpy(kinds != EMPTY).to(device)
    for i, row in enumerate(kinds):
        mixed = np.flatnonzero(row == MIXED)
        if not len(mixed):
            continue
        # Only the stretch of pixels that is neither all hidden nor all visible is looked at cell by cell.
        first, stop = int(mixed[0]), int(mixed[-1]) + 1
        rows = slice(int(vertical.edges[i]), int(vertical.edges[i + 1]))
        columns = slice(int(horizontal.edges[first]), int(horizontal.edges[stop]))
        by_column = torch.zeros((), dtype=torch.float64, device=device)
        step = max(1, _CELLS // (columns.stop - columns.start))
        for start in range(rows.start, rows.stop, step):
            band = slice(start, min(start + step, rows.stop))
            cells = mask.tile(band, columns, s.queries, s.keys, device)
            cells = cells.expand(*cells.shape[:-2], band.stop - band.start, columns.stop - columns.start)
            by_column = by_column + cells.sum(-2, keepdim=True, dtype=torch.float64)
        pooled = pool(by_column, -1, columns, horizontal, largest=False)[1].to(torch.int64)
        if pooled.dim() > count.dim() or pooled.shape[:-2] != count.shape[:-2]:
            leading = torch.broadcast_shapes(pooled.shape[:-2], count.shape[:-2])
            count = count.expand(*leading, *count.shape[-2:]).clone()
        count[..., i : i + 1, first:stop] = pooled
    return count
