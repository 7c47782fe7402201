"""One pass over the map of a sequence that lies on several ranks: keys go around, with what they received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens import geometry, pictures
from sightline.lens.job import Weighted
from sightline.lens.requests import Picture, Top
from sightline.lens.spread import KnownLevels
from sightline.lens.statistics import STATISTICS
from sightline.lens.tiles.accumulators import Accumulator, Pixels, Received, RowSums, Seen, Strongest
from sightline.lens.tiles.walk import walk
from sightline.parallel.places import Piece, block, place
from sightline.parallel.tile import tile as tile_of

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.lens.plan import Asked
    from sightline.parallel.ring import Layout, Rows


class Around:
    """All ranks, asked by passing the keys around: what a `RankSight` reads."""

    def __init__(self, call: Call, layout: Layout, rows: Rows) -> None:
        self._call, self._layout, self._rows = call, layout, rows
        self.queries, self.keys = layout.whole.queries, layout.whole.keys

    @property
    def positions(self) -> list[int]:
        return [place for piece in self._layout.own for place in range(piece.start, piece.start + piece.length)]

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]:
        """The results of all requests, on every rank its own; pictures are of the whole map, the same on all."""
        self._all_ask([repr(one) if not isinstance(one, Weighted) else "received(weights)" for one in requests])
        with torch.no_grad(), torch.autocast(self._call.device.type, enabled=False):
            return _Pass(self._call, self._layout, self._rows, requests).run()

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """The exact weights of local queries and of any keys of the whole; every rank asks for its own."""
        self._all_ask(["a tile"])
        with torch.no_grad(), torch.autocast(self._call.device.type, enabled=False):
            return tile_of(self._call, self._layout, self._rows, rows, columns)

    def _all_ask(self, asked: list[str]) -> None:
        """Refuse on every rank what is not the same question on all: one would wait, or add up other things."""
        ranks = self._layout.ranks
        for rank, other in enumerate(ranks.agree("what is asked of the sight", {"asked": asked})):
            if other["asked"] != asked:
                raise InputError(
                    "the ranks ask for different things",
                    expected=f"{', '.join(asked)[:300]}, as on rank {ranks.members[ranks.rank]}",
                    got=f"{', '.join(other['asked'])[:300]} on rank {ranks.members[rank]}",
                    hint="the same questions in the same order on every rank",
                )


class _Pass:
    """What is gathered of the local queries, of the keys that go around, and of the whole map."""

    def __init__(self, call: Call, layout: Layout, rows: Rows, requests: Sequence[Asked]) -> None:
        self.call, self.layout, self.rows = call, layout, rows
        s, whole = call.sizes, layout.whole
        self.map = call.replace(
            sizes=s._replace(queries=whole.queries, keys=whole.keys), mask=whole.mask, bias=whole.bias
        )
        self.names = [r for r in requests if isinstance(r, str) and r in STATISTICS]
        self.tops = {r: _Best(call, r.n) for r in requests if isinstance(r, Top)}
        self.received = [r for r in requests if r == "received" or isinstance(r, Weighted)]
        self.pictures = [r for r in requests if isinstance(r, Picture)]
        self.grids: dict[tuple, Pixels] = {}
        for picture in self.pictures:
            axes = geometry.axes(picture, whole.queries, whole.keys)
            self.grids[pictures.grid_key(picture)] = Pixels(self.map, *axes, largest=picture.reduce == "max")
        self.sums = [RowSums(_piece(call, piece), self.names) for piece in layout.own]

    def run(self) -> dict[Any, Any]:
        call, layout, s = self.call, self.layout, self.call.sizes
        shape = (*s.batch, s.heads, layout.length(layout.ranks.rank), len(self.received))
        sent = [call.k.contiguous(), torch.zeros(shape, dtype=call.compute_dtype, device=call.device)]
        for source, (k, received) in layout.around("statistics, keys", sent, home=1 if self.received else 0):
            for number, rows in enumerate(layout.own):
                for columns in layout.keys[source]:
                    part = block(call, layout.whole, k, k, rows, columns)
                    if part is not None:
                        self._add(part, number, rows, columns, received[..., columns.local, :])
        return self._found(sent[1])

    def _add(self, part: Call, number: int, rows: Piece, columns: Piece, received: Tensor) -> None:
        """One block of the map: the queries of a piece, and the keys of another."""
        levels = KnownLevels(part, self.rows.number[..., rows.local], self.rows.rest[..., rows.local])
        sums = RowSums(part, self.names)
        sums.offset = place(rows, columns, self.layout.whole)
        by_key = [Received(part, _weights(request, rows)) for request in self.received]
        tops = {top: Strongest(part, top.n) for top in self.tops}
        moved = [_Moved(grid, rows.start, columns.start) for grid in self.grids.values()]
        parts: list[Accumulator] = [*by_key, *tops.values(), *moved]
        walk(levels, [*parts, sums] if self.names else parts)
        self.sums[number].join(sums, slice(0, rows.length))
        for i, one in enumerate(by_key):
            received[..., i] += one.result()
        for top, best in tops.items():
            self.tops[top].add(rows.local, columns.start, best)

    def _found(self, received: Tensor) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name in self.names:
            found[name] = torch.cat([sums.result()[name] for sums in self.sums], -1)
        for i, request in enumerate(self.received):
            found[request] = received[..., i].contiguous()
        found |= {top: best.result() for top, best in self.tops.items()}
        reduced = {
            key: self.layout.ranks.reduced("pictures", grid.result(), torch.maximum if grid.largest else torch.add)
            for key, grid in self.grids.items()
        }
        for picture in self.pictures:
            key = pictures.grid_key(picture)
            grid = self.grids[key]
            found[picture] = pictures.finish(self.map, picture, reduced[key].clone(), grid.vertical, grid.horizontal)
        return found


def _piece(call: Call, rows: Piece) -> Call:
    return call.replace(q=call.q[..., rows.local, :], sizes=call.sizes._replace(queries=rows.length))


def _weights(request: Asked, rows: Piece) -> Tensor | None:
    return request.weights[..., rows.local] if isinstance(request, Weighted) else None


class _Moved(Accumulator):
    """Shows tiles to something that counts rows and columns of the whole map."""

    def __init__(self, inner: Accumulator, row: int, column: int) -> None:
        self.inner, self.row, self.column = inner, row, column

    def add(self, tile: Seen) -> None:
        rows = slice(tile.rows.start + self.row, tile.rows.stop + self.row)
        columns = slice(tile.columns.start + self.column, tile.columns.stop + self.column)
        self.inner.add(tile._replace(rows=rows, columns=columns))


class _Best:
    """The strongest keys of all blocks, whose order is that of the ring: of equal weights the lower key comes first."""

    def __init__(self, call: Call, n: int) -> None:
        s = call.sizes
        shape = (*s.batch, s.heads, s.queries, n)
        self.n = n
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=call.device)
        self.weights = torch.full(shape, -1.0, dtype=call.compute_dtype, device=call.device)

    def add(self, rows: slice, start: int, found: Strongest) -> None:
        keys, weights = found.result()
        weights = torch.cat([self.weights[..., rows, :], torch.where(keys < 0, -1.0, weights)], -1)
        keys = torch.cat([self.keys[..., rows, :], torch.where(keys < 0, -1, keys + start)], -1)
        keys, order = keys.sort(dim=-1)
        weights, by_weight = weights.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        self.keys[..., rows, :] = keys.gather(-1, by_weight)[..., : self.n]
        self.weights[..., rows, :] = weights[..., : self.n]

    def result(self) -> tuple[Tensor, Tensor]:
        absent = self.weights < 0
        return self.keys.masked_fill(absent, -1), self.weights.masked_fill(absent, 0.0)
