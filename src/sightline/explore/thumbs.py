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


def thumb(pyramid: Pyramid, side: int = SIDE) -> tuple[np.ndarray, bool]:
    """The whole map in at most `side` bins each way, in a square of `side`, and whether it is exact.

    Beyond the map it is masked; so is a map of which nothing was kept.
    """
    levels = overview_level(pyramid.queries, side), overview_level(pyramid.keys, side)
    try:
        pyramid.check(levels, 0, 0, "mean")
    except InputError:
        return np.zeros((side, side), np.uint8), True
    plan = pyramid.plan(levels, 0, 0, "mean")
    for step in plan.steps:
        step()
    return encode(plan.finish()[:side, :side]), not plan.is_estimate
