"""A sight: the account of what an attention call attended to.

It holds q, k, the call's options and one number per row, and from these computes anything that is asked for,
tile by tile, in memory linear in the context. What was computed once is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends.tiles import Columns, score_tile
from sightline.errors import InputError, InputTypeError
from sightline.lens import geometry, store
from sightline.lens.asked import Answers
from sightline.lens.between import Spans, spans_of
from sightline.lens.html import sight_html
from sightline.lens.job import Weighted
from sightline.lens.readings import Reader, check_of
from sightline.lens.requests import OTHERS, Picture, Received, Top
from sightline.lens.select import check_selection, select, select_kept
from sightline.lens.shares import share_of
from sightline.lens.statistics import STATISTICS, TOTAL
from sightline.lens.tiles.walk import see
from sightline.memory import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float, Int

    from sightline.backends.call import Call, MaskLike
    from sightline.lens.levels import Levels
    from sightline.lens.readings import Extra


class TopKeys(NamedTuple):
    """The strongest keys of every query, strongest first; of equal weights the lower key first.

    That is of the weights as they are computed: two keys that hold the same numbers may differ in the last bits of
    their weights, because a matrix product rounds its columns in different orders. Where a query sees fewer keys, the
    key is -1 and its weight 0. Of another reading (`sight.top(n, of="influence")`) `weights` holds that reading.

    >>> import sightline as sl
    >>> q = torch.eye(3)
    >>> sl.look(q, q, mask=sl.causal(), scale=9.0).top(2).keys
    tensor([[ 0, -1],
            [ 1,  0],
            [ 2,  0]])
    """

    keys: Int[Tensor, "*batch heads queries n"]
    weights: Float[Tensor, "*batch heads queries n"]


class Sight(Answers):
    """What an attention call attended to: any statistic, any tile, any picture of its map, computed when asked for.

    Made by `sl.observe` and `sl.look`. It is a photograph: if q, k, the mask or the bias are changed in place
    afterwards, what was computed stays, and what was not is refused. (Changes through `.data` or numpy go unnoticed.)

    >>> import sightline as sl
    >>> q, k = torch.randn(2, 8, 100, 64), torch.randn(2, 8, 120, 64)
    >>> sight = sl.look(q, k, mask=sl.causal())
    >>> sight.shape
    (2, 8, 100, 120)
    >>> sight.entropy.shape, sight.received().shape, sight.tile(slice(0, 4), slice(0, 6)).shape
    (torch.Size([2, 8, 100]), torch.Size([2, 8, 120]), torch.Size([2, 8, 4, 6]))
    """

    @classmethod
    def of(cls, levels: Levels) -> Sight:
        """A sight of rows that may have been measured already."""
        sight = Sight(levels.call, levels.row)
        sight._levels = levels
        return sight

    @property
    def entropy(self) -> Float[Tensor, "*batch heads queries"]:
        """In nats, of each row's weights divided by their sum, whatever a sink took; 0 for an empty row."""
        return self.statistic("entropy")

    @property
    def max_score(self) -> Float[Tensor, "*batch heads queries"]:
        """The largest score of each row, after soft-cap, bias and mask; -inf for an empty row."""
        return self.statistic("max_score")

    @property
    def distance(self) -> Float[Tensor, "*batch heads queries"]:
        """The expected distance |i - j| between query and key, aligned at the end; 0 for an empty row."""
        return self.statistic("distance")

    @property
    def total(self) -> Float[Tensor, "*batch heads queries"]:
        """The sum of each row's weights: about 1 for softmax, less with sinks, 0 for an empty row.

        It is added up; where q and k were not kept, nor this sum, a softmax has the sum of its definition.
        """
        return self.statistic(TOTAL.name)

    def statistic(self, name: str) -> Float[Tensor, "*batch heads queries"]:
        """The row statistic of this name: `"entropy"`, or any that was declared (`sl.declare`) or came in a file.

        >>> import sightline as sl
        >>> sl.look(torch.randn(5, 8), torch.randn(7, 8)).statistic("max_score").shape
        torch.Size([5])
        """
        if not isinstance(name, str) or (name not in STATISTICS and (name in OTHERS or name not in self._kept)):
            raise InputError(
                "unknown statistic",
                expected=f"one of {', '.join(STATISTICS)}",
                got=repr(name),
                hint="sl.declare(sl.Statistic(name, …)) makes a new one known",
            )
        known = name in self._kept or self.call.q is not None or not self.call.normalizer.is_softmax
        if name == TOTAL.name and not known:
            return self.due
        return self._shaped(self.value(name))

    if not TYPE_CHECKING:  # a checker of types should still find names that are misspelt

        def __getattr__(self, name: str) -> Tensor:
            """A declared statistic reads like the others: `sight.distance_variance`."""
            if name in STATISTICS:
                return self.statistic(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def due(self) -> Float[Tensor, "*batch heads queries"]:
        """What each row's weights sum to: by the definition of a softmax, less what a sink took; else added up."""
        if not self.call.normalizer.is_softmax:
            return self._shaped(self.value(TOTAL.name))
        if self.call.lost is not None:
            return self._shaped(torch.where(self.row == -torch.inf, 0.0, self.call.lost.neg().exp()))
        return self._shaped(torch.where(self.row == -torch.inf, 0.0, 1 - self._sink()))

    def received(
        self,
        weights: Float[Tensor, "*batch heads queries"] | None = None,
        of: str = "weights",
        reduce: str = "sum",
    ) -> Float[Tensor, "*batch heads keys"]:
        """How much each key received: the sum over queries, each times its weight. With weights r this is r.A.

        `of` names the reading of the cells (`"weights"`, `"norms"`, `"influence"`, `"pull"`). `reduce` is `"sum"`,
        `"max"`, or `"magnitude"`, the sum without signs; the maximum of a signed reading is the largest by magnitude,
        with its sign.

        >>> import sightline as sl
        >>> q = torch.randn(5, 8)
        >>> sl.look(q, q).received().sum().round()
        tensor(5.)
        """
        wanted_of_keys = Received(of, reduce)
        if weights is None:
            return self._shaped(self.value(wanted_of_keys))
        s = self.call.sizes
        wanted = self.shape[:-1]
        if not isinstance(weights, Tensor) or not weights.is_floating_point():
            raise InputTypeError(
                "weights must be a floating tensor",
                expected=f"shape {wanted}",
                got=getattr(weights, "dtype", type(weights).__name__),
                hint="weights.float()",
            )
        try:
            full = weights.to(self.device, self._readable("received(weights)").compute_dtype).expand(wanted)
        except RuntimeError:
            raise InputError(
                "the weights do not fit the map",
                expected=f"one for each query, {wanted}",
                got=tuple(weights.shape),
                hint="weights of [*batch, heads, queries]",
            ) from None
        request = Weighted(full.reshape(*s.batch, s.heads, s.queries), of, reduce)
        return self._shaped(self.compute([request])[request])

    def top(self, n: int = 8, of: str = "weights") -> TopKeys:
        """The `n` strongest keys of every query, strongest first; of a signed reading by magnitude, with their sign.

        >>> import sightline as sl
        >>> sl.look(torch.randn(4, 8), torch.randn(6, 8)).top(3).weights.shape
        torch.Size([4, 3])
        """
        keys, weights = self.value(Top(n, of))
        return TopKeys(self._shaped(keys), self._shaped(weights))

    def tile(
        self, rows: slice | int, columns: slice | int, of: str = "weights"
    ) -> Float[Tensor, "*batch heads rows columns"]:
        """The exact weights of any rectangle of the map, or another reading of its cells.

        Products are made in float64: a cell is the same in any rectangle, but for the last bit.

        >>> import sightline as sl
        >>> sl.look(torch.randn(9, 8), torch.randn(9, 8)).tile(slice(2, 5), slice(0, 9)).sum(-1).round()
        tensor([1., 1., 1.])
        """
        call, band, span = self._rectangle("tile", rows, columns)
        self._know(check_of(of))
        with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
            levels = self._levels.finer
            seen = see(levels, levels.scaled(band), band, Columns(span, call.mask is not None))
            return self._shaped(Reader(call, self.extra, fine=levels.fine).tile(of, seen))

    def scores(self, rows: slice | int, columns: slice | int) -> Float[Tensor, "*batch heads rows columns"]:
        """The scores of any rectangle of the map, after soft-cap, bias and mask: -inf where a cell is hidden.

        >>> import sightline as sl
        >>> sl.look(torch.eye(3), torch.eye(3), mask=sl.causal(), scale=2.0).scores(1, slice(0, 3))
        tensor([[0., 2., -inf]])
        """
        call, band, span = self._rectangle("scores", rows, columns)
        with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
            tile = score_tile(call, self._levels.finer.scaled(band), band, Columns(span, call.mask is not None))
        return self._shaped(tile.scores)

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
        """A picture of any rectangle of the map, at any resolution; it costs only that rectangle.

        With a `size`, pixel `i` covers cells floor(i n / size) to floor((i + 1) n / size); where there are fewer
        cells than pixels, cells are repeated. With `cell=(a, b)` a pixel covers exactly a x b cells, the last
        one what is left. `reduce` is `"mean"`, `"max"` or `"sum"`. Hidden cells count as 0; with `visible_only`
        means are over visible cells alone, and pixels without any are NaN. `of` names the reading of the cells; the
        maximum of a signed one is the largest by magnitude, with its sign.

        >>> import sightline as sl
        >>> sl.look(torch.randn(100, 8), torch.randn(90, 8)).picture(size=(10, 9)).shape
        torch.Size([10, 9])
        """
        if not isinstance(size, tuple) or len(size) != 2:
            raise InputTypeError(
                "size is two whole numbers", expected="(height, width)", got=repr(size), hint="size=(512, 512)"
            )
        s = self.call.sizes
        rows, columns = geometry.resolve("rows", rows, s.queries), geometry.resolve("columns", columns, s.keys)
        request = Picture(*size, rows=rows, columns=columns, cell=cell, reduce=reduce, visible_only=visible_only, of=of)
        return self._shaped(self.value(request))

    def spans(
        self,
        keys: Mapping[str, Any],
        queries: Mapping[str, Any] | None = None,
        of: str = "weights",
        reduce: str | None = None,
    ) -> Spans:
        """What named parts of the queries have of named parts of the keys: a table for every head, in one pass.

        A span is a slice, a list of positions, or booleans, which may differ from example to example
        (`[*batch, keys]`); no position may be in two. Without `queries` all are one, named `"all"`. `reduce` is
        `"sum"`, or `"mean"` over the queries that see a key; if not given, the sum for influence and pull, the mean
        for weights and norms. The last columns are `"rest"`, the keys in no span, and with sinks `"sink"`.

        >>> import sightline as sl
        >>> sight = sl.look(torch.zeros(4, 8), torch.zeros(4, 8), mask=sl.causal())
        >>> sight.spans({"first": slice(0, 1)}, {"begin": slice(0, 2), "end": [2, 3]}).table
        tensor([[0.7500, 0.2500],
                [0.2917, 0.7083]])
        """
        return spans_of(self, keys, queries, of, reduce)

    def share(self, mask: MaskLike) -> Float[Tensor, "*batch heads queries"]:
        """How much of each row a rule would keep: the sum of the weights of those keys that `mask` allows.

        It is of the weights as they are, not divided by the sum of the row: 1 less it is what a window, a block
        pattern or an eviction would lose.

        >>> import sightline as sl
        >>> sl.look(torch.zeros(4, 8), torch.zeros(4, 8), mask=sl.causal()).share(sl.window(1))
        tensor([1.0000, 1.0000, 0.6667, 0.5000])
        """
        return self._shaped(share_of(self, mask))

    def select(self, batch: int | None = None, heads: Sequence[int] | None = None) -> Sight:
        """The sight of one member of the batch, without batch axes, and of some heads, with whatever was computed.

        Members are counted through all axes of the batch. None means all of them.

        >>> import sightline as sl
        >>> sight = sl.look(torch.randn(2, 8, 5, 16), torch.randn(2, 4, 7, 16), mask=sl.causal())
        >>> one = sight.select(batch=1, heads=[3])
        >>> one.shape, torch.equal(one.tile(slice(0, 5), slice(0, 7))[0], sight.tile(slice(0, 5), slice(0, 7))[1, 3])
        ((1, 5, 7), True)
        """
        self._unchanged.check()
        s = self.call.sizes
        member, chosen = check_selection(batch, heads, s.batch, s.heads)
        kept = select_kept(self._kept, len(s.batch), member, chosen)
        extra = self._lasting().select(s.groups, member, chosen)
        return self._like(*select(self.call, self.row, member, chosen), kept, extra)

    def _like(self, call: Call, row: Tensor, kept: dict[Any, Any], extra: Extra) -> Sight:
        sight = Sight(call, row, extra=extra)
        sight._kept, sight._lacks = kept, self._lacks
        return sight

    def save(self, path: str | Path, keep_qk: bool = True) -> None:
        """Write the sight as a safetensors file: what was computed, and q and k unless `keep_qk=False`.

        The file appears whole or not at all, and is on the disk when this returns.
        """
        self._unchanged.check()
        store.save(self, Path(path), keep_qk)

    @staticmethod
    def load(path: str | Path, device: torch.device | str = "cpu") -> Sight:
        """Read a sight written by `save` of this version or an earlier one, on any machine."""
        found = store.load(Path(path), torch.device(device))
        sight = Sight(found.call, found.row, found.flat, found.extra)
        sight._kept, sight._lacks = found.kept, found.lacks
        return sight

    def _repr_html_(self) -> str:
        """The maps of its heads, for a notebook."""
        return sight_html(self)

    def _rectangle(self, what: str, rows: slice | int, columns: slice | int) -> tuple[Call, slice, slice]:
        """The call, to be read, and a rectangle of its map, which fits into memory cell by cell."""
        call, s = self._readable(what), self.call.sizes
        band, span = geometry.resolve("rows", rows, s.queries), geometry.resolve("columns", columns, s.keys)
        cells = torch.Size(s.batch).numel() * s.heads * (band.stop - band.start) * (span.stop - span.start)
        require(
            "this tile",
            5 * cells * call.compute_dtype.itemsize,  # of a product in float64, and what is made of it
            self.device,
            "a smaller rectangle, or picture() for an overview",
        )
        return call, band, span
