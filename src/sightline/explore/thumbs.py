"""Maps as small pictures of one byte a pixel: 0 is masked, 1 is zero or next to it, 2 to 255 are logarithmic up to 1.

A step is 6.6 %, so a weight read back from a byte is right to 3.3 %.
"""

from __future__ import annotations

import math

import numpy as np

from sightline.errors import InputError
from sightline.explore.overview import overview_level
from sightline.explore.pyramid import Pyramid

SIDE = 64
FLOOR = 1e-7


def encode(weights: np.ndarray) -> np.ndarray:
    """Weights as bytes; NaN is masked.

    >>> encode(np.array([np.nan, 0.0, 1e-7, 1.0]))
    array([  0,   1,   2, 255], dtype=uint8)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.log(np.clip(weights, FLOOR, 1.0) / FLOOR) / -math.log(FLOOR)
        code = np.where(weights < FLOOR, 1, 2 + np.round(place * 253))
    return np.where(np.isnan(weights), 0, code).astype(np.uint8)


def decode(code: np.ndarray) -> np.ndarray:
    """The weights that bytes stand for.

    >>> decode(encode(np.array([0.5]))).round(2)
    array([0.5])
    """
    weights = FLOOR * np.exp((code.astype(np.float64) - 2) / 253 * -math.log(FLOOR))
    return np.where(code == 0, np.nan, np.where(code == 1, 0.0, weights))


def encode_signed(cells: np.ndarray, most: float) -> np.ndarray:
    """Cells of either sign as bytes: 0 masked, 128 nothing, 1 and 255 as much as the largest, by the root between.

    >>> encode_signed(np.array([np.nan, 0.0, -2.0, 0.5]), 2.0)
    array([  0, 128,   1, 192], dtype=uint8)
    """
    share = np.clip(np.nan_to_num(cells) / (most or 1.0), -1.0, 1.0)
    code = 128 + np.round(127 * np.sign(share) * np.sqrt(np.abs(share)))
    return np.where(np.isnan(cells), 0, code).astype(np.uint8)


def thumb(pyramid: Pyramid, side: int = SIDE, most: float | None = None) -> tuple[np.ndarray, bool]:
    """The whole map in at most `side` bins each way, in a square of `side`, and whether it is exact.

    Beyond the map it is masked; so is a map of which nothing was kept. With `most` it is that of a reading: the
    largest cell of each bin, as a share of that.
    """
    pool = "mean" if most is None else "max"
    levels = overview_level(pyramid.queries, side), overview_level(pyramid.keys, side)
    try:
        pyramid.check(levels, 0, 0, pool)
    except InputError:
        return np.zeros((side, side), np.uint8), True
    plan = pyramid.plan(levels, 0, 0, pool)
    for step in plan.steps:
        step()
    cells = plan.finish()[:side, :side]
    return encode(cells) if most is None else encode_signed(cells, most), not plan.is_estimate
