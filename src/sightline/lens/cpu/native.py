"""The sums of a band of rows by the compiled kernel (`kernels/native/tile.c`): all of a tile in one reading.

The same as `BandSums` for rows, and beside it the sums of one picture's pixels along their rows. Weights are written
down only for what the kernel does not know; where a picture's pixels are single cells, straight into the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from sightline.lens.cpu.hiding import LEAST
from sightline.lens.cpu.row_sums import Step, Tile

if TYPE_CHECKING:
    from sightline.kernels.native.tile import Kernel
    from sightline.lens.cpu.strips import Strip, Sums

# The kernel's lines.
LINES = ("largest", "entropy", "distance", "total")


class CompiledSums:
    """The sums of a band of rows that stand at some places."""

    def __init__(self, kernel: Kernel, wanted: Sequence[str], places: np.ndarray, factor: Tensor | None) -> None:
        self._kernel, self._places, self._rows, self._factor = kernel, places, bool(wanted), factor
        self._found = np.empty((len(LINES), len(places)), np.float32)
        self._held: list[np.ndarray | Tensor] = [self._found]  # memory that the kernel is told the address of
        self._picture = 0  # the address of the band's first cell in a picture of cells

    def step(
        self,
        tile: Tile,
        left: int,
        seen: tuple[np.ndarray, np.ndarray] | None,
        strip: tuple[Strip, int] | None,
        keep: bool,
    ) -> Step:
        """What is to be done with a tile whose first column is `left`, when it has its logarithms.

        `seen` are the first column of the map that each row sees and the end, None if all see all of the tile; the
        n-th part of the strip gets its pixels; with `keep` the weights are written down.
        """
        pixels, following, each = None, 0, 1
        if strip is not None:
            part = strip[0].parts[strip[1]]
            pixels, following, each = self._address(part), part.stride(0), strip[0].rows.each
        weights = self._address(tile.weights) if keep else None
        return partial(
            self._kernel, *self._read(tile, left, seen), pixels, following, each, weights, tile.logs.shape[1], self._by
        )

    def step_into_picture(
        self, tile: Tile, left: int, seen: tuple[np.ndarray, np.ndarray] | None, sums: Sums | None, width: int
    ) -> Step:
        """The same where the weights are the cells of a picture of some width; their sums over rows go to `sums`."""
        read, column = self._read(tile, left, seen), 4 * left
        pixels: tuple[int | None, int, int] = (None, 0, 1)
        if sums is not None:
            part = sums.part(left, tile.logs.shape[1])
            pixels = (self._address(part), part.stride(0), sums.each)
        return lambda: self._kernel(*read, *pixels, self._picture + column, width, self._by)

    def _read(self, tile: Tile, left: int, seen: tuple[np.ndarray, np.ndarray] | None) -> tuple[int | None, ...]:
        """What the kernel reads, and where the sums of rows go."""
        height, width = tile.logs.shape
        first = stop = None
        if seen is not None:
            first, stop = (self._address(np.clip(x - left, 0, width).astype(np.int32)) for x in seen)
        places = self._address((self._places - left).astype(np.float32))
        found = self._address(self._found) if self._rows else None
        return self._address(tile.logs), height, width, first, stop, places, found, height

    @property
    def _by(self) -> int | None:
        """What each row's weights are multiplied by."""
        return None if self._factor is None else self._factor.data_ptr()

    def _address(self, x: np.ndarray | Tensor) -> int:
        self._held.append(x)
        return x.data_ptr() if isinstance(x, Tensor) else x.ctypes.data

    def begin(self, picture: int = 0) -> None:
        """Before the first tile; `picture` is where a picture of cells has the band's first row."""
        self._picture = picture
        self._found[0] = LEAST
        self._found[1:] = 0.0

    def result(self, name: str, out: np.ndarray) -> None:
        """One number for each row, after the last tile."""
        out[:] = self._found[LINES.index(name)]
