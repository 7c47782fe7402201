"""One walk over the tiles of the map for any set of statistics, in torch operations: runs on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.backends.tiles import Columns, scaled_rows, score_tile
from sightline.lens.levels import level_of
from sightline.lens.tiles.accumulators import Accumulator, Seen
from sightline.lens.tiles.lean import Lean, is_lean
from sightline.masks import EMPTY, FULL, edges, spans

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.levels import Levels

# Scores of one step over all heads, so that a tile and what is made of it stay in the cache.
_CELLS = 1 << 19
# Of one map in memory that is used again.
_LEAN_TILE = 512, 512
# Stands for the logarithm of 0.
_LEAST = -1e30


def walk(
    levels: Levels,
    accumulators: Sequence[Accumulator],
    rows: slice | None = None,
    columns: slice | None = None,
    align: tuple[int, int] = (1, 1),
    weights_only: bool = False,
) -> None:
    """Show every tile of a rectangle of the map that is not empty to every accumulator.

    `align` asks for tiles that hold whole pixels. `weights_only`: no accumulator needs more of a tile than its weights.
    """
    call, s = levels.call, levels.call.sizes
    rows, columns = rows or slice(0, s.queries), columns or slice(0, s.keys)
    lean = Lean(levels) if weights_only and is_lean(call) else None
    height, width = _tile_size(call, align, _LEAN_TILE if lean else None)
    row_edges = edges(rows.stop - rows.start, height) + rows.start
    column_edges = edges(columns.stop - columns.start, width) + columns.start
    kinds = None
    if call.mask is not None:
        kinds = call.mask.kinds(row_edges, column_edges, s.queries, s.keys).tolist()
    for i, band in enumerate(spans(row_edges)):
        q_rows = scaled_rows(call, band)
        tiles = [
            Columns(span, kinds is not None and kinds[i][j] != FULL)
            for j, span in enumerate(spans(column_edges))
            if kinds is None or kinds[i][j] != EMPTY
        ]
        if columns == slice(0, s.keys) and levels.any(band):
            # By the same tiles: a matrix product rounds by its shape.
            levels.put(band, levels.measure(q_rows, band, tiles))
        for accumulator in accumulators:
            accumulator.band(band)
        quick = lean is not None and not levels.any(band)
        if lean is not None and quick:
            lean.band(band)
        for tile in tiles:
            seen = lean.see(tile) if lean is not None and quick else see(levels, q_rows, band, tile)
            for accumulator in accumulators:
                accumulator.add(seen)


def see(levels: Levels, q_rows: Tensor, rows: slice, columns: Columns) -> Seen:
    """The weights of one tile."""
    call = levels.call
    tile = score_tile(call, q_rows, rows, columns)
    number = levels.row[..., rows, None]
    if not call.normalizer.is_softmax:
        weights = call.normalizer.weights(tile.scores, number, tile.visible)
        return Seen(rows, columns.span, weights, tile.visible, scores=tile.scores)
    # The scores are this tile's own: they become the logarithms in place.
    level = level_of(number)
    log = tile.scores.sub_(level)
    if levels.any(rows):
        whole = columns.span == slice(0, call.sizes.keys)
        rest = (levels.own_rest(log, rows) if whole else levels.rest(rows))[..., None]
        log.sub_(rest)
        level = level + rest
    shares = log.exp()
    if columns.mixed or call.bias is not None:
        # In sums of w log w a hidden cell is 0 times a large number, not 0 times -inf.
        log.clamp_min_(_LEAST)
    weights, taken = shares, levels.taken
    if taken is not None:
        weights = shares * taken[..., rows, None].neg().exp()
    return Seen(rows, columns.span, weights, tile.visible, log=log, shares=shares, level=level)


def _tile_size(call: Call, align: tuple[int, int], given: tuple[int, int] | None = None) -> tuple[int, int]:
    if given is not None:
        return _multiple(given[0], align[0]), _multiple(given[1], align[1])
    s = call.sizes
    cells = max(_CELLS // max(1, s.heads * torch.Size(s.batch).numel()), 1 << 12)
    height, width = (
        (256, 512)
        if cells >= 1 << 17
        else (128, 512)
        if cells >= 1 << 16
        else (64, 256)
        if cells >= 1 << 14
        else (64, 64)
    )
    return _multiple(height, align[0]), _multiple(width, align[1])


def _multiple(size: int, of: int) -> int:
    """A tile size near `size` that holds whole pixels; a pixel much larger than a tile is cut."""
    return size if of <= 1 else max(size // of, 1) * of if of <= 2 * size else size
