"""What can be said of every row of a map, each declared once.

A declaration says what is added up (or maximised) over the keys of a row, tile by tile, how that is finished, and how
it is shown. All else reads it: what can be asked for, the passes, files, generation that grows, the explorer. Sums and
maxima are all there is, so chunks of keys, patches of the explorer and ranks merge by adding or by the larger one, and
rows (the steps of a generation) are put one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sightline.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from sightline.lens.tiles.accumulators import Seen

# Stands for the logarithm of 0: in sums of w log w a hidden cell is 0 times a large number, not 0 times -inf.
LEAST = -1e30
_HIDDEN = -1e29


class Cells:
    """One tile of the map, as a statistic reads it.

    Hidden cells have weight and share 0, a logarithm of about -1e30, and the score -inf.
    """

    __slots__ = ("_distance", "_mass", "_offset", "_seen", "_shares", "log_of_softmax")

    def __init__(self, seen: Seen, offset: int, shares: Tensor | None) -> None:
        """`offset`: the place of the first query among the keys."""
        self._seen, self._offset, self._shares = seen, offset, shares
        self.log_of_softmax = seen.log  # None for other normalisers
        self._distance: Tensor | None = None
        self._mass: Tensor | None = None

    @property
    def weights(self) -> Float[Tensor, "*batch heads rows columns"]:
        """The weights as they are, after what a sink took."""
        return self._seen.weights

    @property
    def shares(self) -> Float[Tensor, "*batch heads rows columns"]:
        """What the keys have among each other.

        They sum to 1 over a row under softmax, and to `Rows.mass` under the other normalisers.
        """
        if self._shares is None:
            raise InputError(
                "there are no shares in sums over weights",
                expected='cells.weights, or a statistic of="shares"',
                got="cells.shares",
                hint='Statistic(…, of="shares")',
            )
        return self._shares

    @property
    def log(self) -> Float[Tensor, "*batch heads rows columns"]:
        """The natural logarithm of the shares."""
        if self.log_of_softmax is not None:
            return self.log_of_softmax
        return self.shares.log().clamp_min_(LEAST)

    @property
    def scores(self) -> Float[Tensor, "*batch heads rows columns"]:
        """Scaled, capped, with their bias; -inf where hidden."""
        log, level = self._seen.log, self._seen.level
        if log is not None and level is not None:
            return torch.where(log <= _HIDDEN, -torch.inf, log + level)
        if self._seen.scores is None:
            raise NoScores("the scores of this map are not known")
        return self._seen.scores

    @property
    def visible(self) -> Bool[Tensor, "*batch heads rows columns"]:
        """Which cells the mask leaves."""
        if self._seen.visible is None:
            return torch.ones_like(self.weights, dtype=torch.bool)
        return self._seen.visible.expand_as(self.weights)

    @property
    def distance(self) -> Float[Tensor, "rows columns"]:
        """How far the key is from the query, |i - j|, aligned at the end."""
        if self._distance is None:
            places, columns = self.places()
            self._distance = (places[:, None] - columns).abs().to(self.weights.dtype)
        return self._distance

    def places(self) -> tuple[Tensor, Tensor]:
        """Where the queries and the keys of the tile stand: whole numbers whose differences are distances."""
        rows, columns, device = self._seen.rows, self._seen.columns, self.weights.device
        return (
            torch.arange(rows.start + self._offset, rows.stop + self._offset, device=device),
            torch.arange(columns.start, columns.stop, device=device),
        )

    @property
    def mass(self) -> Float[Tensor, "*batch heads rows"]:
        """The sum of the shares."""
        return self.shares.sum(-1) if self._mass is None else self._mass

    def largest_score(self) -> Float[Tensor, "*batch heads rows"]:
        """The largest score of each row, without a tile of them."""
        log, level = self._seen.log, self._seen.level
        if log is None or level is None:
            return self.scores.amax(-1)
        found = log.amax(-1)
        return torch.where(found <= _HIDDEN, -torch.inf, found + level[..., 0])

    def far(self) -> Float[Tensor, "*batch heads rows"]:
        """Sums of shares times distances, and on the way those of the shares, as a product with two columns.

        Away from the diagonal a distance is a row's part plus a column's part, both positive.
        """
        shares, rows, columns = self.shares, self._seen.rows, self._seen.columns
        first, last = rows.start + self._offset, rows.stop - 1 + self._offset
        before, after = columns.stop - 1 <= first, columns.start >= last
        if not before and not after:
            return (shares * self.distance).sum(-1)
        places, column = self.places()
        inner = (columns.stop - 1 - column) if before else (column - columns.start)
        outer = (places - (columns.stop - 1)) if before else (columns.start - places)
        both = shares @ torch.stack([torch.ones_like(inner), inner], -1).to(shares.dtype)
        self._mass = both[..., 0]
        return both[..., 0] * outer.to(shares.dtype) + both[..., 1]


class NoScores(InputError):
    """The scores of a map cannot be told from what was kept of it."""


class Rows(Mapping[str, Tensor]):
    """What was added up of every row, by the names of the parts, `[*batch, heads, queries]` each.

    >>> Rows({"far": torch.tensor([6.0])}, mass=torch.tensor([2.0])).mean("far")
    tensor([3.])
    """

    def __init__(self, parts: Mapping[str, Tensor], mass: Tensor | None = None) -> None:
        """`mass`: what the shares of each row sum to; None if that is 1."""
        self._parts, self.mass = parts, mass

    def __getitem__(self, name: str) -> Tensor:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def mean(self, name: str, power: int = 1) -> Tensor:
        """A sum over shares as if they summed to 1; 0 for a row without any. `power`: of the share in the sum."""
        if self.mass is None:
            return self[name]
        some = self.mass.clamp_min(torch.finfo(self.mass.dtype).tiny)
        return torch.where(self.mass > 0, self[name] / (some if power == 1 else some**power), 0.0)


class Shown(NamedTuple):
    """How a number of a row or a head is shown: see `Statistic`."""

    name: str
    label: str
    unit: str = ""
    about: str = ""
    range: tuple[float, float] | None = None


Part: TypeAlias = Callable[[Cells], Tensor]


@dataclass(frozen=True, eq=False)
class Statistic:
    """A number for every row of a map: what is added up over its keys, how that is finished, how it is shown.

    Made known by `sl.declare`, it can be asked for by its name wherever entropy can: in `stats=`, of a sight, of a
    watched generation, of a file, in the explorer.

    Args:
        name: what it is asked for by.
        sums: what is added up, by names of one's own: functions of a tile (`Cells`) that give a number for each row.
        maxima: the same for what the largest is taken of.
        finish: from the parts (`Rows`) to the result; of a single one its mean, or the largest, if not given.
        of: `"shares"`, which sum to 1 over a row, or `"weights"`, of which a sink may have taken some.
        rescale: what the parts would be if all shares were multiplied by a factor, `[*batch, heads, rows]`; times that
            factor if not given, as is right of sums of shares times something.
        by_place: whether it counts from where the query stands among the keys, as a distance does.
        label, unit, about: how people call it, what it is measured in, and what it says.
        range: the numbers that the ends of a colour scale stand for; from the least to the greatest if not given.
        shown: whether the explorer lists it.

    >>> import sightline as sl
    >>> def near(cells):
    ...     return (cells.shares * (cells.distance < 4)).sum(-1)
    >>> sl.Statistic("nearby", sums={"near": near}, by_place=True, range=(0, 1)).label
    'nearby'
    """

    name: str
    sums: Mapping[str, Part] = field(default_factory=dict)
    maxima: Mapping[str, Part] = field(default_factory=dict)
    finish: Callable[[Rows], Tensor] | None = None
    of: str = "shares"
    rescale: Callable[[Rows, Tensor], Mapping[str, Tensor]] | None = None
    by_place: bool = False
    label: str = ""
    unit: str = ""
    about: str = ""
    range: tuple[float, float] | None = None
    shown: bool = True

    def __post_init__(self) -> None:
        if not self.label and isinstance(self.name, str):
            object.__setattr__(self, "label", self.name.replace("_", " "))

    def finished(self, rows: Rows) -> Float[Tensor, "*batch heads queries"]:
        """The statistic, from its parts."""
        if self.finish is not None:
            return self.finish(rows)
        (name,) = rows
        return rows.mean(name) if self.of == "shares" else rows[name]

    def rescaled(self, rows: Rows, factor: Tensor) -> Mapping[str, Tensor]:
        """Its parts, if all shares were multiplied by a factor."""
        if self.rescale is not None:
            return self.rescale(rows, factor)
        # Of no cell the largest is -inf, and stays so.
        return {
            name: x * factor if name in self.sums else torch.where(x == -torch.inf, x, x * factor)
            for name, x in rows.items()
        }

    @property
    def described(self) -> Shown:
        """How it is shown."""
        return Shown(self.name, self.label, self.unit, self.about, self.range)


# Every row statistic by its name, in the order in which they are listed.
STATISTICS: dict[str, Statistic] = {}


def kept_rows(kept: Iterable[object]) -> dict[str, Shown]:
    """The row statistics among what is kept of a sight, as they are shown; one of a file need not be declared here.

    >>> [shown.label for shown in kept_rows(["received", "distance", "total", "from_a_file"]).values()]
    ['mean distance', 'from a file']
    """
    found = [name for name in kept if is_name(name) and name != "received"]
    every = {name: STATISTICS.get(name) or Statistic(name) for name in found if isinstance(name, str)}
    return {name: statistic.described for name, statistic in every.items() if statistic.shown}


def is_name(name: object) -> bool:
    """Whether something can be the name of a statistic: a plain word, as files and the page have them.

    >>> is_name("distance_variance"), is_name("a b"), is_name("_x")
    (True, False, False)
    """
    return isinstance(name, str) and len(name) <= 64 and name.isascii() and name.isidentifier() and name[0] != "_"


# Those that kernels add up too, in one reading with all else (`cpu/plan.py`, `gpu/plan.py`).


def _times_log(cells: Cells) -> Tensor:
    """The sum over a row of w log w, with 0 log 0 = 0."""
    if cells.log_of_softmax is None:
        return torch.special.entr(cells.shares).sum(-1).neg()
    return (cells.shares * cells.log_of_softmax).sum(-1)


def _smaller_entropy(rows: Rows, factor: Tensor) -> dict[str, Tensor]:
    # The sum of (s w) log (s w) is s times (the sum of w log w, and log s times the sum of w).
    assert rows.mass is not None
    more = torch.where(factor > 0, factor.log(), 0.0) * rows.mass
    return {"entropy": (rows["entropy"] + more) * factor}


def _entropy(rows: Rows) -> Tensor:
    # Of the shares divided by their sum: log(sum) - (sum of w log w) / sum.
    spread, mass = -rows["entropy"], rows.mass
    if mass is not None:
        some = mass.clamp_min(torch.finfo(mass.dtype).tiny)
        spread = torch.where(mass > 0, some.log() + spread / some, 0.0)
    return spread.clamp_min(0.0)


ENTROPY = Statistic(
    "entropy",
    sums={"entropy": _times_log},
    rescale=_smaller_entropy,
    finish=_entropy,
    unit="nats",
    about="of each row's weights divided by their sum; 0: all on one key",
)
MAX_SCORE = Statistic(
    "max_score",
    maxima={"max_score": Cells.largest_score},
    of="weights",
    label="largest score",
    about="after soft-cap, bias and mask",
)
DISTANCE = Statistic(
    "distance",
    sums={"distance": Cells.far},
    by_place=True,
    label="mean distance",
    unit="tokens",
    about="between query and key, weighted",
)
TOTAL = Statistic(
    "total",
    sums={"total": lambda cells: cells.weights.sum(-1)},
    of="weights",
    label="sum of weights",
    range=(0.0, 1.0),
    shown=False,
)
STATISTICS |= {statistic.name: statistic for statistic in (ENTROPY, MAX_SCORE, DISTANCE, TOTAL)}
FUSED = frozenset(STATISTICS)
