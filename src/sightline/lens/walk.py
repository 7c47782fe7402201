"""One walk over the tiles of the map for any set of statistics, in torch operations: runs on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.attention.tiles import Columns, scaled_rows, score_tile
from sightline.lens.accumulators import Accumulator, Seen
from sightline.masks import EMPTY, FULL, edges, spans

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.attention.call import Call

# Scores of one step over all heads, so that a tile and what is made of it stay in the cache.
_CELLS = 1 << 19
# Stands for the logarithm of 0.
_LEAST = -1e30


def walk(
    call: Call,
    row: Float[Tensor, "*batch heads queries"],
    accumulators: Sequence[Accumulator],
    rows: slice | None = None,
    columns: slice | None = None,
    align: tuple[int, int] = (1, 1),
) -> None:
    """Show every tile of a rectangle of the map that is not empty to every accumulator.

    `row` holds the one number per row that the weights need; `align` asks for tiles that hold whole pixels.
    """
    s = call.sizes
    rows, columns = rows or slice(0, s.queries), columns or slice(0, s.keys)
    height, width = _tile_size(call, align)
    row_edges = edges(rows.stop - rows.start, height) + rows.start
    column_edges = edges(columns.stop - columns.start, width) + columns.start
    kinds = None
    if call.mask is not None:
        kinds = call.mask.kinds(row_edges, column_edges, s.queries, s.keys).tolist()
    for i, band in enumerate(spans(row_edges)):
        q_rows = scaled_rows(call, band)
        for j, span in enumerate(spans(column_edges)):
            kind = FULL if kinds is None else kinds[i][j]
            if kind != EMPTY:
                tile = see(call, row, q_rows, band, Columns(span, kind != FULL))
                for accumulator in accumulators:
                    accumulator.add(tile)


def see(call: Call, row: Tensor, q_rows: Tensor, rows: slice, columns: Columns) -> Seen:
    """The weights of one tile."""
    tile = score_tile(call, q_rows, rows, columns)
    number = row[..., rows, None]
    if not call.normalizer.is_softmax:
        weights = call.normalizer.weights(tile.scores, number, tile.visible)
        return Seen(rows, columns.span, weights, tile.scores, None, tile.visible)
    # The scores are this tile's own: they become the logarithms in place.
    log = tile.scores.sub_(number.masked_fill(number == -torch.inf, 0.0))
    weights = log.exp()
    if columns.mixed or call.bias is not None:
        # In sums of w log w a hidden cell is 0 times a large number, not 0 times -inf.
        log.clamp_min_(_LEAST)
    return Seen(rows, columns.span, weights, None, log, tile.visible)


def _tile_size(call: Call, align: tuple[int, int]) -> tuple[int, int]:
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
