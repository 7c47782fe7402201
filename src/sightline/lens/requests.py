"""What can be asked of a sight, as small values that can be compared and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sightline.errors import InputError, InputTypeError
from sightline.lens.readings import SIGNED, check_of
from sightline.lens.statistics import STATISTICS, TOTAL
from sightline.shapes import as_whole

# What can be asked for by name beside the statistics of rows.
OTHERS = ("received", "top", "picture")
REDUCTIONS = ("mean", "max", "sum")
# What can be said of a column.
COLUMNS = ("sum", "max", "magnitude")


@dataclass(frozen=True, repr=False)
class Top:
    """The `n` strongest keys of every query, by their weights or by another reading of the cells.

    Of a signed reading these are the largest by magnitude, with their sign.

    >>> Top(8), Top(8, of="influence")
    (Top(n=8), Top(n=8, of='influence'))
    """

    n: int = 8
    of: str = "weights"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _whole("n", self.n, at_least=1))
        check_of(self.of)

    def __repr__(self) -> str:
        return f"Top(n={self.n})" if self.of == "weights" else f"Top(n={self.n}, of={self.of!r})"


@dataclass(frozen=True)
class Received:
    """What every key received, of its weights or of another reading of the cells.

    `reduce` is `"sum"` over queries, `"max"`, or `"magnitude"`, the sum without the signs. Of a signed reading the
    maximum is the largest by magnitude, with its sign.

    >>> Received(of="influence", reduce="magnitude")
    Received(of='influence', reduce='magnitude')
    """

    of: str = "weights"
    reduce: str = "sum"

    def __post_init__(self) -> None:
        check_of(self.of)
        if self.reduce not in COLUMNS:
            raise InputError(
                "unknown reduction", expected=f"one of {', '.join(COLUMNS)}", got=repr(self.reduce), hint='reduce="max"'
            )


@dataclass(frozen=True, init=False)
class Picture:
    """A picture of a rectangle of the map: `height` x `width` pixels, or exactly `cell` cells a pixel.

    `rows` and `columns` are slices, None for all. `reduce` says what a pixel shows of its cells:
    their mean, maximum or sum. Hidden cells count as weight 0; with `visible_only` a mean is taken over the visible
    cells alone, and a pixel without any visible cell is NaN. `of` names the reading of the cells; of a signed one the
    maximum is the largest by magnitude, with its sign.

    >>> Picture(256, 256, reduce="max").size
    (256, 256)
    """

    size: tuple[int, int] | None
    cell: tuple[int, int] | None
    rows: tuple[int, int | None] | None
    columns: tuple[int, int | None] | None
    reduce: str
    visible_only: bool
    of: str

    def __init__(
        self,
        height: int = 512,
        width: int | None = None,
        *,
        rows: slice | None = None,
        columns: slice | None = None,
        cell: tuple[int, int] | None = None,
        reduce: str = "mean",
        visible_only: bool = False,
        of: str = "weights",
    ) -> None:
        check_of(of)
        if reduce not in REDUCTIONS:
            raise InputError(
                "unknown reduction", expected=f"one of {', '.join(REDUCTIONS)}", got=repr(reduce), hint='reduce="max"'
            )
        pairs: dict[str, tuple[int, int] | None] = {}
        for name, pair in (("size", (height, height if width is None else width)), ("cell", cell)):
            pairs[name] = None
            if pair is not None:
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise InputTypeError(
                        f"{name} is two whole numbers",
                        expected="(rows, columns)",
                        got=repr(pair),
                        hint=f"{name}=(64, 64)",
                    )
                pairs[name] = (_whole(name, pair[0], at_least=1), _whole(name, pair[1], at_least=1))
        put = object.__setattr__
        put(self, "size", None if cell else pairs["size"])
        put(self, "cell", pairs["cell"])
        put(self, "rows", _pair("rows", rows))
        put(self, "columns", _pair("columns", columns))
        put(self, "reduce", reduce)
        put(self, "visible_only", bool(visible_only))
        put(self, "of", of)


Request: TypeAlias = str | Top | Picture | Received


def of_what(request: object) -> str:
    """Which reading of the cells a request is about.

    >>> of_what("entropy"), of_what(Top(3, of="norms"))
    ('weights', 'norms')
    """
    return getattr(request, "of", "weights")


def simplest(request: Request) -> Request:
    """The one form of requests that mean the same: weights and norms have no sign, so magnitudes are they themselves.

    >>> simplest(Received()), simplest(Received(of="norms", reduce="magnitude"))
    ('received', Received(of='norms', reduce='sum'))
    """
    if not isinstance(request, Received):
        return request
    if request.reduce == "magnitude" and request.of not in SIGNED:
        request = Received(request.of)
    return "received" if request == Received() else request


def names() -> tuple[str, ...]:
    """What can be asked for by name; a row's total and its lse, which are known, can be too.

    >>> names()
    ('entropy', 'max_score', 'distance', 'received', 'top', 'picture')
    """
    return (*(name for name in STATISTICS if name != TOTAL.name), *OTHERS)


def parse(stats: object) -> list[Request]:
    """The requests of a `stats=` argument, names checked; `"top"` and `"picture"` become their defaults.

    >>> parse(("entropy", "top"))
    ['entropy', Top(n=8)]
    """
    if isinstance(stats, str | Top | Picture | Received):
        stats = (stats,)
    if not isinstance(stats, tuple | list | set | frozenset):
        raise InputTypeError(
            "stats is a tuple of what to compute",
            expected=f"names out of {', '.join(names())}, sl.Top(n), sl.Picture(…), sl.Received(…)",
            got=type(stats).__name__,
            hint='stats=("entropy", "received")',
        )
    requests: list[Request] = []
    for stat in stats:
        if isinstance(stat, Top | Picture | Received):
            requests.append(simplest(stat))
        elif isinstance(stat, str) and (stat in STATISTICS or stat == "lse"):
            requests.append(stat)
        elif stat not in OTHERS:
            raise InputError(
                "unknown statistic",
                expected=f"one of {', '.join(names())}, sl.Top(n), sl.Picture(…) or sl.Received(…)",
                got=repr(stat),
                hint='stats=("entropy", "received")',
            )
        else:
            requests.append(Top() if stat == "top" else Picture() if stat == "picture" else stat)
    return requests


def _pair(name: str, span: slice | None) -> tuple[int, int | None] | None:
    if span is None or span == slice(None):
        return None
    ends = [n if n is None else as_whole(n) for n in (span.start, span.stop)] if isinstance(span, slice) else []
    if not ends or [n is None for n in ends] != [span.start is None, span.stop is None] or span.step not in (None, 1):
        raise InputTypeError(
            f"{name} is a slice without a step",
            expected="slice(start, stop)",
            got=repr(span),
            hint=f"{name}=slice(0, 1024)",
        )
    return (ends[0] or 0, ends[1])


def _whole(name: str, value: object, at_least: int) -> int:
    number = as_whole(value)
    if number is None:
        raise InputTypeError(
            f"{name} must be a whole number", expected="int", got=type(value).__name__, hint=f"{name}=8"
        )
    if number < at_least:
        raise InputError(f"{name} is too small", expected=f"{at_least} or more", got=number, hint=f"{name}=8")
    return number
