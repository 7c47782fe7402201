"""A sight whose keys lie elsewhere too, as each of several processes has it: it asks them, through whoever made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from torch import Tensor

from sightline.backends.tiles import Columns
from sightline.errors import InputError
from sightline.lens import geometry
from sightline.lens.job import Weighted
from sightline.lens.levels import Levels
from sightline.lens.readings import times_sizes
from sightline.lens.requests import Picture, Received, Top, of_what
from sightline.lens.sight import Sight
from sightline.memory import require

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call, MaskLike
    from sightline.lens.plan import Asked
    from sightline.lens.readings import Extra


class Others(Protocol):
    """The processes that hold the sequence, this one among them. All of them must ask for the same."""

    queries: int  # of all
    keys: int

    @property
    def positions(self) -> list[int]:
        """Where the local queries stand among those of all."""

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]: ...

    def tile(self, rows: slice, columns: slice) -> Tensor: ...


class RankSight(Sight):
    """A rank's part of a sight: its own queries over the keys of all ranks.

    `shape` is (*batch, heads, queries of this rank, keys of all). Row statistics and `top` are of the local queries,
    with keys counted through the whole; `received` is of the local keys over the queries of all ranks; `picture` is
    of the whole map, its rows counted through the whole, and the same on every rank; `tile` is of local queries and
    any keys of the whole. `influence` (with `grad`) is of the local queries, and `received(of="norms")` of the local
    keys; there are no other readings.

    What was not asked for in `stats` is computed when it is, with the keys passed around: every rank must ask, for the
    same, in the same order.

    >>> import torch
    >>> import sightline as sl
    >>> q = torch.randn(8, 16)
    >>> _, sight = sl.parallel.observe(q, q, q, mask=sl.causal())  # one process: the whole of it
    >>> sight.shape, sight.received().shape
    ((8, 8), torch.Size([8]))
    """

    def __init__(self, call: Call, row: Tensor, others: Others, flat: bool, extra: Extra | None = None) -> None:
        """`call`: the local queries and keys, with the sizes, the mask and the bias of local queries and all keys.

        `extra`: of the local queries g . o, and of the local keys the sizes of what they carry.
        """
        super().__init__(call, row, flat, extra)
        self._others = others

    @property
    def positions(self) -> list[int]:
        """Where the local queries stand among the queries of all ranks."""
        return self._others.positions

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the map of all ranks: (*batch, heads, queries, keys)."""
        return (*self.shape[:-2], self._others.queries, self._others.keys)

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]:
        """The values of some requests in one pass around the ring, kept nowhere."""
        check_spread(requests)
        self._unchanged.check()
        return self._others.compute(requests)

    def tile(
        self, rows: slice | int, columns: slice | int, of: str = "weights"
    ) -> Float[Tensor, "*batch heads rows columns"]:
        """The exact weights of some local queries and any keys of the whole. Every rank must ask, each for its own."""
        if of != "weights":
            _refuse(f"{of} of a tile")
        s = self.call.sizes
        band, span = geometry.resolve("rows", rows, s.queries), geometry.resolve("columns", columns, s.keys)
        cells = self.row.numel() // max(s.queries, 1) * (band.stop - band.start) * (span.stop - span.start)
        require("this tile", 3 * cells * self.row.itemsize, self.device, "a smaller rectangle, or picture()")
        self._unchanged.check()
        return self._shaped(self._others.tile(band, span))

    def picture(
        self,
        rows: slice = slice(None),
        columns: slice = slice(None),
        size: tuple[int, int] = (512, 512),
        cell: tuple[int, int] | None = None,
        reduce: str = "mean",
        visible_only: bool = False,
        of: str = "weights",
    ) -> Float[Tensor, "*batch heads height width"]:
        """A picture of any rectangle of the whole map, as `Sight.picture`; every rank must ask for the same."""
        band = geometry.resolve("rows", rows, self._others.queries)
        span = geometry.resolve("columns", columns, self._others.keys)
        request = Picture(*size, rows=band, columns=span, cell=cell, reduce=reduce, visible_only=visible_only, of=of)
        return self._shaped(self.value(request))

    def _resolved(self, picture: Picture) -> Picture:
        """The same picture, a rectangle that is the whole map without bounds."""
        rows, columns = (
            None if pair in (None, (0, None), (0, length)) else slice(*pair)
            for pair, length in ((picture.rows, self._others.queries), (picture.columns, self._others.keys))
        )
        return Picture(
            *(picture.size or (512, 512)),
            cell=picture.cell,
            rows=rows,
            columns=columns,
            reduce=picture.reduce,
            visible_only=picture.visible_only,
            of=picture.of,
        )

    def received(
        self,
        weights: Float[Tensor, "*batch heads queries"] | None = None,
        of: str = "weights",
        reduce: str = "sum",
    ) -> Float[Tensor, "*batch heads keys"]:
        """What the local keys received of the queries of all ranks, of weights or of norms: every rank must ask."""
        if of != "norms" or reduce != "sum":
            return super().received(weights, of, reduce)
        found, extra = super().received(weights), self.extra
        return self._shaped(times_sizes(found[None] if self._flat else found, extra))

    def spans(
        self,
        keys: Mapping[str, Any],
        queries: Mapping[str, Any] | None = None,
        of: str = "weights",
        reduce: str | None = None,
    ) -> NoReturn:
        """Not to be had of a sequence on several ranks: `received` and `picture` are."""
        _refuse("spans")

    def share(self, mask: MaskLike) -> NoReturn:
        """Not to be had of a sequence on several ranks: `received` and `picture` are."""
        _refuse("share")

    def scores(self, rows: slice | int, columns: slice | int) -> NoReturn:
        """Not to be had of a sequence on several ranks: `tile` gives the weights."""
        _refuse("scores")

    def select(self, batch: int | None = None, heads: Sequence[int] | None = None) -> NoReturn:
        """Not to be had of a sequence on several ranks: select from what was computed."""
        _refuse("select")

    def save(self, path: str | Path, keep_qk: bool = True) -> NoReturn:
        """Not to be had of a sequence on several ranks: save what was computed."""
        _refuse("save")

    def __getstate__(self) -> NoReturn:
        _refuse("a copy")


class KnownLevels(Levels):
    """The numbers of rows of which only some keys are here: what they lack was measured over all of them."""

    def __init__(self, call: Call, row: Tensor, rest: Tensor, fine: bool = False) -> None:
        super().__init__(call, row, fine)
        self._given = rest

    def _found_large(self) -> Tensor:
        return self._given != 0

    def measure(self, q_rows: Tensor, rows: slice, columns: list[Columns]) -> Tensor:
        return self._given[..., rows]

    def own_rest(self, logs: Tensor, rows: slice) -> Tensor:
        return self._given[..., rows]


def check_spread(requests: Sequence[Asked]) -> None:
    """Refuse what one pass around the ring does not find: it sees the weights, and adds up what keys received."""
    for request in requests:
        known = isinstance(request, str | Top | Picture) or (isinstance(request, Weighted) and request.reduce == "sum")
        if not known or of_what(request) != "weights":
            name = f"{request!r}" if isinstance(request, Top | Picture | Received) else type(request).__name__.lower()
            _refuse(name)


def _refuse(what: str) -> NoReturn:
    raise InputError(
        f"{what} is not to be had of one rank's part of a sight",
        expected="a sight of one process",
        got="one whose keys lie on other ranks",
        hint="ask for entropy, received(), top(), tile() or picture(), and keep these tensors",
    )
