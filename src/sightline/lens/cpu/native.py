"""The sums of a band of rows by the compiled kernel (`kernels/native/tile.c`): all of a tile in one reading.

The same as `BandSums` for rows, and beside it the sums of one picture's pixels along their rows. Weights are written
down only for what the kernel does not know.
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
    from sightline.lens.cpu.strips import Strip

# The kernel's lines.
_LINES = ("largest", "entropy", "distance", "total")


class CompiledSums:
    """The sums of a band of rows that stand at some places."""

    def __init__(self, kernel: Kernel, wanted: Sequence[str], places: np.ndarray, factor: Tensor | None) -> None:
        self._kernel, self._places, self._rows, self._factor = kernel, places, bool(wanted), factor
        self._found = np.empty((len(_LINES), len(places)), np.float32)
        self._held: list[np.ndarray | Tensor] = [self._found]  # memory that the kernel is told the address of

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
        height, width = tile.logs.shape
        first = stop = None
        if seen is not None:
            first, stop = (self._address(np.clip(x - left, 0, width).astype(np.int32)) for x in seen)
        pixels, following, each = None, 0, 1
        if strip is not None:
            part = strip[0].parts[strip[1]]
            pixels, following, each = self._address(part), part.stride(0), strip[0].rows.each
        return partial(
            self._kernel, self._address(tile.logs), height, width, first, stop,
            self._address((self._places - left).astype(np.float32)), self._address(self._found) if self._rows else None,
            height, pixels, following, each, self._address(tile.weights) if keep else None,
            None if self._factor is None else self._address(self._factor),
        )  # fmt: skip

    def _address(self, x: np.ndarray | Tensor) -> int:
        self._held.append(x)
        return x.data_ptr() if isinstance(x, Tensor) else x.ctypes.data

    def begin(self) -> None:
        """Before the first tile."""
        self._found[0] = LEAST
        self._found[1:] = 0.0

    def result(self, name: str, out: np.ndarray) -> None:
        """One number for each row, after the last tile."""
        out[:] = self._found[_LINES.index(name)]
