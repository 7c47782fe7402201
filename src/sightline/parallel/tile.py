"""The exact cells of a rectangle whose keys lie on several ranks, as `sight.tile` gives them of one process.

A matrix product adds up in an order that depends on its shape, and a rank's blocks have other shapes than the map of
one process: so products are made in float64 here too. Rows whose number is too coarse for that are measured anew by the
same products, over the keys of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.backends.tiles import Columns, score_tile
from sightline.lens.levels import Levels, level_of
from sightline.lens.spread import KnownLevels
from sightline.lens.tiles.walk import see
from sightline.masks import edges, spans
from sightline.parallel.places import Piece, block

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.parallel.ring import Layout, Rows

# Cells of one head that are measured at once.
_HEIGHT, _WIDTH = 256, 1024


def tile(call: Call, layout: Layout, rows: Rows, band: slice, span: slice) -> Tensor:
    """The weights of some local queries, `band`, and of any keys of the whole, `span`; every rank must ask."""
    s = call.sizes
    shape = (*s.batch, s.heads, band.stop - band.start, span.stop - span.start)
    cells = torch.zeros(shape, dtype=call.compute_dtype, device=call.device)
    rest = _measured(call, layout, rows, band)
    for source, (k,) in layout.around("tile, keys", [call.k.contiguous()]):
        for own in layout.own:
            for theirs in layout.keys[source]:
                mine, wanted = _common(own.local, band), _common(_of(theirs), span)
                part = block(call, layout.whole, k, k, own, theirs) if mine and wanted else None
                if part is None or mine is None or wanted is None:
                    continue
                levels = KnownLevels(part, rows.number[..., own.local], rest[..., own.local], _is_fine(call))
                inner, columns = _less(mine, own.local.start), _less(wanted, theirs.start)
                seen = see(levels, levels.scaled(inner), inner, Columns(columns, part.mask is not None))
                cells[..., _less(mine, band.start), _less(wanted, span.start)] = seen.weights
    return cells


def _is_fine(call: Call) -> bool:
    return call.compute_dtype != torch.float64


def _measured(call: Call, layout: Layout, rows: Rows, band: slice) -> Tensor:
    """What the numbers of local rows lack, by products in float64 over all keys; of rows outside the band 0."""
    rest = torch.zeros_like(rows.number)
    if not call.normalizer.is_softmax:
        return rest
    large = _large(call, layout, rows)
    large[..., : band.start] = False
    large[..., band.stop :] = False
    # All go around, or nobody does.
    asked = layout.ranks.reduced("tile, rows to measure", large.any().to(torch.uint8)[None], torch.maximum)
    if not asked:
        return rest
    total = torch.full_like(rows.number, -torch.inf)
    for source, (k,) in layout.around("tile, rows measured", [call.k.contiguous()]):
        for own in layout.own:
            mine = _common(own.local, band)
            for theirs in layout.keys[source]:
                part = block(call, layout.whole, k, k, own, theirs) if mine is not None else None
                if part is not None and mine is not None:
                    levels = Levels(part, rows.number[..., own.local], fine=_is_fine(call))
                    here, inner = total[..., own.local], _less(mine, own.local.start)
                    torch.logaddexp(here, _sum(levels, inner), out=here)
    return torch.where(large & total.isfinite(), total, 0.0)


def _sum(levels: Levels, band: slice) -> Tensor:
    """The logarithm of what the keys of a block add up to, less the numbers of its rows; -inf outside the band."""
    found = torch.full_like(levels.row, -torch.inf)
    mixed, sides = levels.call.mask is not None, edges(levels.call.sizes.keys, _WIDTH)
    for start in range(band.start, band.stop, _HEIGHT):
        rows = slice(start, min(start + _HEIGHT, band.stop))
        q_rows, number, total = levels.scaled(rows), level_of(levels.row[..., rows, None]), found[..., rows]
        for columns in spans(sides):
            scores = score_tile(levels.call, q_rows, rows, Columns(columns, mixed)).scores
            torch.logaddexp(total, torch.logsumexp(scores.sub_(number), -1), out=total)
    return found


def _large(call: Call, layout: Layout, rows: Rows) -> Tensor:
    """Which local rows one process would measure: it looks at their numbers, and at the longest key of all."""
    s = call.sizes
    norms = call.k.norm(dim=-1, dtype=call.compute_dtype)
    longest = norms.amax(-1) if s.keys else norms.new_zeros(norms.shape[:-1])
    longest = layout.ranks.reduced("tile, the longest keys", longest, torch.maximum)
    # One key as long as that stands for all.
    key = torch.zeros(*longest.shape, 1, s.dim, dtype=call.compute_dtype, device=call.device)
    key[..., 0, 0] = longest
    return Levels(call.replace(k=key, sizes=s._replace(keys=1)), rows.number).large.clone()


def _less(span: slice, by: int) -> slice:
    return slice(span.start - by, span.stop - by)


def _of(piece: Piece) -> slice:
    return slice(piece.start, piece.start + piece.length)


def _common(a: slice, b: slice) -> slice | None:
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    return slice(start, stop) if start < stop else None
