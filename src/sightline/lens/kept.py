"""A sight on the CPU that may be without q and k: it answers from what was computed, and says what it cannot.

A map of up to 512 x 512 is kept whole, cell by cell, so everything can be asked of it. Of a larger one the overview is
kept, and any picture that is made of whole bins of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens import geometry, pictures
from sightline.lens.job import Allowed, Between, Weighted
from sightline.lens.levels import level_of
from sightline.lens.readings import SIGNED, Reader, check_of, times_sizes
from sightline.lens.requests import Picture, Received, Top, of_what
from sightline.lens.sight import Sight
from sightline.lens.statistics import NoScores
from sightline.lens.tiles.accumulators import Accumulator, Pixels, RowSums, Seen
from sightline.lens.tiles.parts import gathers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float

    from sightline.backends.call import Call
    from sightline.lens.plan import Asked
    from sightline.lens.readings import Extra


class Overview(NamedTuple):
    """The whole map in bins of `cell` = (queries, keys): the sum of the weights of each bin, and the largest.

    What was not computed is None.
    """

    cell: tuple[int, int]
    sums: Float[Tensor, "batch heads rows columns"] | None
    maxima: Float[Tensor, "batch heads rows columns"] | None


class KeptSight(Sight):
    """A sight made of what a watched run kept.

    >>> import sightline as sl
    >>> from sightline.watching import watch
    >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> with watch(layer) as seen:
    ...     _ = layer(x, x, x)
    >>> seen[0].overview().cell
    (1, 1)
    """

    def __init__(
        self,
        call: Call,
        row: Tensor,
        kept: Mapping[Any, Any],
        lacks: str | None = None,
        extra: Extra | None = None,
    ) -> None:
        """`lacks` says what a file of an older format did not hold."""
        super().__init__(call, row, extra=extra)
        self._kept, self._lacks = dict(kept), lacks

    def _like(self, call: Call, row: Tensor, kept: dict[Any, Any], extra: Extra) -> KeptSight:
        sight = KeptSight(call, row, kept, self._lacks, extra)
        sight.mask_known = self.mask_known
        return sight

    @property
    def has_cells(self) -> bool:
        """Whether `tile` can tell any cell: q and k were kept, or the map cell by cell."""
        return self.has_qk or self._map() is not None

    def overview(self) -> Overview:
        """The whole map in bins, as it was computed while the model ran."""
        grids = {k: v for k, v in self._kept.items() if isinstance(k, Picture) and _is_overview(k)}
        cells = {picture.cell for picture in grids}
        if not cells:
            raise InputError(
                "no overview was computed",
                expected='stats with "overview"',
                got=self._has(),
                hint="sl.watch(model), whose default has it, or sight.picture(…) if q and k were kept",
            )
        cell = min(c for c in cells if c is not None)
        by = {picture.reduce: grid for picture, grid in grids.items() if picture.cell == cell}
        return Overview(cell, by.get("sum"), by.get("max"))

    def tile(
        self, rows: slice | int, columns: slice | int, of: str = "weights"
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The exact weights of any rectangle of the map, if q and k were kept or the map is small; or a reading.

        >>> import sightline as sl
        >>> from sightline.watching import watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 16)
        >>> with watch(layer) as seen:
        ...     _ = layer(x, x, x)
        >>> seen[0].tile(slice(0, 2), slice(0, 5)).shape
        torch.Size([1, 2, 2, 5])
        """
        whole = self._map()
        if self.has_qk or whole is None:
            return super().tile(rows, columns, of)
        self._know(check_of(of))
        s = self.call.sizes
        band, span = geometry.resolve("rows", rows, s.queries), geometry.resolve("columns", columns, s.keys)
        if of == "weights":
            return whole[..., band, span].clone()
        call = self.call.replace(q=self.row)
        visible = None
        if call.mask is not None:
            visible = call.mask.tile(band, span, s.queries, s.keys, self.device)
        return Reader(call, self.extra).tile(of, Seen(band, span, whole[..., band, span], visible))

    def _map(self) -> Tensor | None:
        """The whole map, if it was kept cell by cell."""
        for reduce in ("sum", "max"):
            grid = self._kept.get(Picture(cell=(1, 1), reduce=reduce))
            if grid is not None:
                return grid
        return None

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]:
        if self.has_qk:
            return super().compute(requests)
        for of in dict.fromkeys(map(of_what, requests)):
            self._know(of)
        found = {request: self._derive(request) for request in requests}
        missing = [request for request, value in found.items() if value is None]
        if missing:
            raise InputError(
                f"{', '.join(_named(request) for request in missing)} needs q and k, which were not kept",
                expected=f"one of what was computed: {self._has()}",
                got=f"a map of {self.call.sizes.queries} x {self.call.sizes.keys} without q and k",
                hint="sl.watch(model, keep_qk=True), or name it in stats=(…)",
            )
        return found

    def _readable(self, what: str) -> Call:
        if self.has_qk:
            return self.call
        if what == "received(weights)":
            # The device and dtype are all that is asked for: the sum itself goes through `compute`.
            return self.call.replace(q=self.row)
        raise InputError(
            f"{what} needs q and k, which were not kept",
            expected="a run watched with keep_qk=True, or a map of at most 512 x 512",
            got=f"{self.call.sizes.queries} x {self.call.sizes.keys}, with {self._has()}",
            hint="sl.watch(model, keep_qk=True)",
        )

    def _derive(self, request: Asked) -> Any:
        """What follows from what was kept, exactly; None if it does not."""
        if isinstance(request, Picture) and request.of == "weights":
            return self._picture(request)
        if request == Received(of="norms") and "received" in self._kept:
            return times_sizes(self._kept["received"], self.extra)
        whole = self._map()
        if whole is None:
            return None
        call = self.call.replace(q=self.row)  # for its device and dtype
        s = call.sizes
        log = shares = level = None
        if call.normalizer.is_softmax:
            total = whole.sum(-1, keepdim=True)
            if bool(((total == 0) & (self.row > -torch.inf)[..., None]).any()):
                return None  # a sink has so much that of the keys nothing can be told
            shares = whole / total.masked_fill(total == 0, 1.0)
            log, level = shares.log().clamp_min(-1e30), level_of(self.row)[..., None]
        part: Accumulator
        if isinstance(request, Picture):
            axes = geometry.axes(request, s.queries, s.keys)
            part = Pixels(call, *axes, largest=request.reduce == "max", signed=request.of in SIGNED)
        elif isinstance(request, str) and request != "received":
            part = RowSums(call, {request})
        else:
            part = gathers(call, request)
        visible = None
        if call.mask is not None:
            visible = call.mask.tile(slice(0, s.queries), slice(0, s.keys), s.queries, s.keys, self.device)
            visible = visible.expand_as(whole)
        seen = Seen(slice(0, s.queries), slice(0, s.keys), whole, visible, None, log, shares, level)
        if of_what(request) != "weights":
            seen = seen._replace(weights=Reader(call, self.extra).tile(of_what(request), seen))
        try:
            part.add(seen)
        except NoScores:
            return None
        result = part.result()
        if isinstance(request, Picture):
            return pictures.finish(call, request, result, *axes)  # type: ignore[arg-type]
        return result[str(request)] if isinstance(result, dict) else result

    def _picture(self, picture: Picture) -> Tensor | None:
        s = self.call.sizes
        wanted = geometry.axes(picture, s.queries, s.keys)
        if picture.visible_only and not self.mask_known:
            return None
        reduce = "max" if picture.reduce == "max" else "sum"
        for kept, grid in self._kept.items():
            # Of single cells the sum is the maximum.
            if not (
                isinstance(kept, Picture) and _is_overview(kept) and (kept.reduce == reduce or kept.cell == (1, 1))
            ):
                continue
            have = geometry.axes(kept, s.queries, s.keys)
            pooled: Tensor | None = grid
            for dim, mine, theirs in ((-2, have[0], wanted[0]), (-1, have[1], wanted[1])):
                pooled = None if pooled is None else _regroup(pooled, dim, mine, theirs, reduce == "max")
            if pooled is not None:
                return pictures.finish(self.call.replace(q=self.row), picture, pooled, *wanted)
        return None

    def _has(self) -> str:
        names = [_named(request) for request in self._kept]
        return ", ".join(["lse", *names])


def _is_overview(picture: Picture) -> bool:
    return (
        picture.of == "weights"
        and picture.cell is not None
        and picture.rows is None
        and picture.columns is None
        and picture.reduce in ("sum", "max")
        and not picture.visible_only
    )


def _regroup(grid: Tensor, dim: int, have: geometry.Axis, want: geometry.Axis, largest: bool) -> Tensor | None:
    """Bins put together into larger ones; None if an edge of the larger ones lies inside a bin."""
    at = np.searchsorted(have.edges, want.edges)
    if at[-1] >= len(have.edges) or not np.array_equal(have.edges[at], want.edges):
        return None
    if np.array_equal(at, np.arange(len(have.edges))):
        return grid
    return gather_bins(grid.narrow(dim, int(at[0]), int(at[-1] - at[0])), dim, at[:-1] - at[0], largest)


def gather_bins(grid: Tensor, dim: int, starts: np.ndarray, largest: bool) -> Tensor:
    """Neighbouring bins put together, each group from its start to the next one's: their sum, or the largest."""
    reduce = np.maximum.reduceat if largest else np.add.reduceat
    return torch.from_numpy(reduce(grid.numpy(), starts, axis=dim))


def _named(request: object) -> str:
    of = "" if of_what(request) == "weights" else f", of={of_what(request)!r}"
    if isinstance(request, Picture):
        size = f"cell={request.cell}" if request.cell else f"size={request.size}"
        return f"picture({size}, reduce={request.reduce!r}{of})"
    if isinstance(request, Received):
        return f"received(of={request.of!r}, reduce={request.reduce!r})"
    for kind, name in ((Weighted, "received(weights"), (Between, "spans(…"), (Allowed, "share(…")):
        if isinstance(request, kind):
            return f"{name}{of})"
    return f"top({request.n}{of})" if isinstance(request, Top) else str(request)
