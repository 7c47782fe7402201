"""What the scores of a row are compared with, so that they become weights: weight = exp(score - lse).

Of a softmax that is the log-sum-exp of the row's keys, which comes from the kernel that did the attention: one number,
rounded. Of a number such as -1e9, which models hide whole rows with, the rounding takes away all that the keys add to
it, and of 600 still some of the fifth digit. So of rows whose number is large what it lacks is measured: the logarithm
of the sum of exp(score - number), by the same products of the same tiles that the weights come from. These rows are
few, and the rest cost nothing.

A sink takes its share after that: what the keys have among each other does not depend on it, however large it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline.backends.tiles import Columns, scaled_rows, score_tile
from sightline.masks import EMPTY, FULL, edges, spans

if TYPE_CHECKING:
    from sightline.backends.call import Call

# Beyond these a float32 (and what is made of it: scores, logarithms of base 2) is off by more than some millionths.
# Half precision has weights that are off by thousandths.
_LARGE = {torch.float64: 64.0, torch.float32: 16.0}
_LARGE_IN_HALF = 32.0
# Beyond this the numbers of a row are so coarse that only their plain differences mean anything.
COARSE = 4096.0
# Products up to which nothing becomes infinite in a kernel of float32, logarithms of base 2 included.
_HELD = 1e37
# Keys that are measured at once.
_HEIGHT, _WIDTH = 256, 1024


class Levels:
    """The numbers of all rows of a call, and what was measured of them."""

    def __init__(self, call: Call, row: Tensor, fine: bool = False) -> None:
        """`row` `[*batch, heads, queries]`: the lse of the keys alone; for the other normalisers the visible keys.

        `fine`: products are made in float64 and then rounded, so that a score does not depend on the rectangle it is
        computed in. (A matrix product adds up in an order that depends on its shape.)
        """
        self.call, self.row = call, row
        self.fine = fine and call.device.type != "mps"  # which has no float64
        self._large: Tensor | None = None  # which rows are to be measured
        self._most: float | None = None  # what no product is larger than
        self._where: np.ndarray | None = None  # which queries have such rows
        self._rest: Tensor | None = None
        self._known: np.ndarray | None = None  # of which queries the rest is measured
        self._taken: Tensor | None = None
        self._finer: Levels | None = None
        self.on_gpu: Any = None  # what the kernels measured

    @property
    def finer(self) -> Levels:
        """The same rows, with products in float64, where the device has it."""
        if self._finer is None:
            as_it_is = self.call.q.dtype == torch.float64 or self.call.device.type == "mps"
            self._finer = self if as_it_is else Levels(self.call, self.row, fine=True)
        return self._finer

    @property
    def limit(self) -> float:
        """The largest number that is exact enough as it is."""
        return _LARGE.get(self.call.q.dtype, _LARGE_IN_HALF)

    @property
    def taken(self) -> Tensor | None:
        """What the logarithm of each row's sum lacks of that of its divisor: a sink, or keys that were taken away."""
        if self.call.lost is not None:
            return self.call.lost
        if self.call.sinks is None:
            return None
        if self._taken is None:
            self._taken = sink_takes(self.call.sinks, self.row)
        return self._taken

    @property
    def holds(self) -> bool:
        """Whether q and k are finite, and float32 holds all their products: kernels that know no infinities ask."""
        if self._most is None:
            self._products()
        assert self._most is not None
        return self._most * max(self.call.scale, 1.0) < _HELD

    def _products(self) -> Tensor:
        """What no product of a row is larger than, before its scale, `[*batch, heads, queries]`."""
        q, k, groups, dtype = self.call.q, self.call.k, self.call.sizes.groups, self.call.compute_dtype
        longest = k.norm(dim=-1, dtype=dtype).amax(-1).repeat_interleave(groups, -1)
        found = q.norm(dim=-1, dtype=dtype) * longest[..., None]
        self._most = float(found.amax())
        return found

    @property
    def large(self) -> Tensor:
        """Which rows are to be measured, `[*batch, heads, queries]`."""
        if self._large is None:
            self._large = self._found_large()
        return self._large

    def _found_large(self) -> Tensor:
        call = self.call
        if not call.normalizer.is_softmax or call.q is None or not self.row.numel():
            return torch.zeros_like(self.row, dtype=torch.bool)
        size = self.row.abs()
        if call.q.is_cpu and call.q.dtype in (torch.float16, torch.bfloat16):
            # The CPU's kernels take a short cut to the exponential, which shows in the fourth digit of a sum.
            return size < torch.inf
        large = size > self.limit
        if call.q.is_cpu and call.sizes.keys:
            # Products of large vectors are rounded as large numbers are, also where their sum is small.
            product = self._products() * call.scale
            large |= (product > 8 * self.limit) & (product < torch.inf)
        if self.taken is not None:
            # What is left of an lse from which a large sink was taken away has lost some digits.
            large |= self.taken > 1.0
        return large & (size < torch.inf)

    def any(self, rows: slice = slice(None)) -> bool:
        """Whether any of some queries has a row that is to be measured."""
        if self._where is None:
            self._where = self.large.flatten(0, -2).any(0).cpu().numpy()
        return bool(self._where[rows].any())

    def assume(self) -> None:
        """Take it that some row is to be measured: measuring in vain costs less than to wait for a GPU's answer."""
        self._where = np.ones(self.row.shape[-1], dtype=bool)

    @property
    def coarse(self) -> bool:
        """Whether some row's number is so large that scores are whole multiples of something."""
        return self.any() and bool((self.row.abs().masked_fill(~self.large, 0.0) > COARSE).any())

    def own_rest(self, logs: Tensor, rows: slice) -> Tensor:
        """What rows lack, from scores less their numbers, `[..., rows, keys]`: all keys that they see."""
        found = torch.logsumexp(logs, -1)
        usable = self.large[..., rows] & found.isfinite()
        return torch.where(usable, found, 0.0)

    def put(self, rows: slice, rest: Tensor) -> None:
        """Remember what some rows lack."""
        if self._rest is None or self._known is None:
            self._rest, self._known = torch.zeros_like(self.row), np.zeros(self.row.shape[-1], dtype=bool)
        self._rest[..., rows] = rest
        self._known[rows] = True

    def rest(self, rows: slice) -> Tensor:
        """What some rows lack, `[*batch, heads, rows]`; measured where nobody has done it yet."""
        if not self.any(rows):
            return torch.zeros_like(self.row[..., rows])
        if self._known is None or not self._known[rows].all():
            for start in range(rows.start, rows.stop, _HEIGHT):
                band = slice(start, min(start + _HEIGHT, rows.stop))
                if self.any(band) and (self._known is None or not self._known[band].all()):
                    self.put(band, self._measured(band))
                elif self._known is None or not self._known[band].all():
                    self.put(band, torch.zeros_like(self.row[..., band]))
        assert self._rest is not None
        return self._rest[..., rows]

    def scaled(self, rows: slice) -> Tensor:
        """A band of queries times the scale, as the products take them."""
        found = scaled_rows(self.call, rows)
        return found.double() if self.fine else found

    def measure(self, q_rows: Tensor, rows: slice, columns: list[Columns]) -> Tensor:
        """What the rows of a band lack, by the tiles that it is seen in."""
        number = level_of(self.row[..., rows, None])
        total = torch.full_like(self.row[..., rows], -torch.inf)
        for column in columns:
            scores = score_tile(self.call, q_rows, rows, column).scores
            total = torch.logaddexp(total, torch.logsumexp(scores.sub_(number), -1))
        return torch.where(self.large[..., rows] & total.isfinite(), total, 0.0)

    def _measured(self, band: slice) -> Tensor:
        call, s = self.call, self.call.sizes
        sides = edges(s.keys, _WIDTH)
        kinds = [FULL] * (len(sides) - 1)
        if call.mask is not None:
            kinds = call.mask.kinds(np.array([band.start, band.stop]), sides, s.queries, s.keys)[0].tolist()
        columns = [Columns(span, kind != FULL) for span, kind in zip(spans(sides), kinds, strict=True) if kind != EMPTY]
        return self.measure(self.scaled(band), band, columns)


def level_of(number: Tensor) -> Tensor:
    """A row that sees nothing is compared with 0: -inf - -inf would be NaN."""
    return number.masked_fill(number == -torch.inf, 0.0)


def sink_takes(sinks: Tensor, row: Tensor) -> Tensor:
    """What a sink adds to the logarithm of a row's sum, log(1 + exp(sink - lse)); 0 for a row that sees no key."""
    over = sinks[..., None].to(row.dtype) - row
    # torch's softplus takes large numbers for themselves as soon as float32 does.
    found = torch.clamp_min(over, 0.0) + torch.log1p(torch.exp(-over.abs()))
    return torch.where(row == -torch.inf, 0.0, found)


def without_sink(sinks: Tensor, lse: Tensor) -> Tensor:
    """The logarithm of a row's sum less its sink; -inf where the sink is all there is."""
    share = (sinks[..., None].to(lse.dtype) - level_of(lse)).exp().clamp_max(1.0)
    return torch.where(lse == -torch.inf, lse, lse + torch.log1p(-share))
