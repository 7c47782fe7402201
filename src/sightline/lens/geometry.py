"""Which cells a pixel covers.

With a size, pixel `i` of `size` over `n` cells covers cells floor(i n / size) to floor((i + 1) n / size). Where
there are fewer cells than pixels, a cell is repeated: pixel `i` shows cell floor(i n / size). With cells per
pixel, pixel `i` covers cells `i cell` to `(i + 1) cell`, and the last one what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sightline import caches
from sightline.errors import InputError, InputTypeError
from sightline.lens.requests import Picture
from sightline.shapes import as_whole


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a picture: where its bins begin and end in the map, and which bin each pixel shows.

    An axis is itself alone: what is made from one is kept by its identity.

    >>> axis(slice(0, 10), size=4, cell=None).edges
    array([ 0,  2,  5,  7, 10])
    """

    edges: np.ndarray
    shown: np.ndarray | None  # for a repeated cell: the bin of each pixel
    regular: int  # cells of every bin if all but perhaps the last have the same number, else 0

    @property
    def bins(self) -> int:
        return len(self.edges) - 1

    @property
    def start(self) -> int:
        return int(self.edges[0])

    @property
    def stop(self) -> int:
        return int(self.edges[-1])

    @property
    def each(self) -> int:
        """Cells of every bin if all have the same number, else 0.

        >>> axis(slice(0, 8), size=4, cell=None).each, axis(slice(0, 9), size=4, cell=None).each
        (2, 0)
        """
        length = self.stop - self.start
        if self.bins == 1:
            return length
        return self.regular if self.regular and length % self.regular == 0 else 0


def axis(span: slice, size: int | None, cell: int | None) -> Axis:
    """The bins of a stretch of the map, by number of pixels or by cells per pixel."""
    length = span.stop - span.start
    if cell is not None:
        edges = np.append(np.arange(0, length, cell), length)
        return Axis(edges + span.start, None, cell)
    assert size is not None
    pixels = np.arange(size + 1, dtype=np.int64) * length // size
    if length < size:
        return Axis(np.arange(length + 1) + span.start, pixels[:-1], 1)
    each = length // size
    return Axis(pixels + span.start, None, each if length % size == 0 else 0)


def axes(picture: Picture, queries: int, keys: int) -> tuple[Axis, Axis]:
    """Both axes of a picture of a map, or an error if its rectangle is not inside the map."""
    return _axes(picture.size, picture.cell, picture.rows, picture.columns, queries, keys)


_Two = tuple[int, int]
_Span = tuple[int, int | None]


@caches.memo("lens.axes", 64)  # every layer of a model asks for the same
def _axes(
    size: _Two | None, cell: _Two | None, rows: _Span | None, columns: _Span | None, queries: int, keys: int
) -> tuple[Axis, Axis]:
    both = []
    names = ("rows", "columns")
    for i, (pair, length) in enumerate(((rows, queries), (columns, keys))):
        span = resolve(names[i], None if pair is None else slice(*pair), length)
        if span.stop <= span.start:
            raise InputError(
                f"a picture of no {names[i]}",
                expected=f"at least one of {length}",
                got=f"{span.start}:{span.stop}",
                hint=f"{names[i]}=slice(0, {max(length, 1)})",
            )
        both.append(
            axis(
                span,
                None if size is None else size[i],
                None if cell is None else cell[i],
            )
        )
    return both[0], both[1]


def resolve(name: str, span: slice | int | None, length: int) -> slice:
    """A slice with its ends spelled out; ends beyond the map are an error, not silently cut."""
    if span is None:
        return slice(0, length)
    if isinstance(span, slice):  # numpy's integers are numbers too
        span = slice(*(n if as_whole(n) is None else as_whole(n) for n in (span.start, span.stop, span.step)))
    elif isinstance(one := as_whole(span), int):
        span = slice(one, one + 1 or None)
    if not isinstance(span, slice) or not all(n is None or isinstance(n, int) for n in (span.start, span.stop)):
        raise InputTypeError(
            f"the {name} are a slice of whole numbers",
            expected="slice(start, stop)",
            got=repr(span),
            hint=f"{name}=slice(0, {length})",
        )
    start = 0 if span.start is None else span.start
    stop = length if span.stop is None else span.stop
    start, stop = (start + length if start < 0 else start), (stop + length if stop < 0 else stop)
    if span.step not in (None, 1) or not 0 <= start <= stop <= length:
        raise InputError(
            f"the {name} are not a part of the map",
            expected=f"a slice inside 0:{length}",
            got=span,
            hint=f"{name}=slice(0, {length})",
        )
    return slice(start, stop)
