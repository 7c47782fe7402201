"""The rule of all parts of a layer as one: what a prompt and the steps behind it saw, in one mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.masks import Band, Mask, causal, padding, prefix
from sightline.masks.functions import Stacked
from sightline.watching.record.shares import real_keys

if TYPE_CHECKING:
    from jaxtyping import Bool

    from sightline.watching.record.layer import Layer, Piece


def mask_of(layer: Layer) -> Mask | None:
    """The rule of all parts as one: causal or a window over a run that grows, else the parts' own masks, stacked."""
    parts = layer.parts
    if len(parts) == 1 and not parts[0].first_key:
        return parts[0].call.mask
    pieces = [piece for part in parts for piece in part.pieces]
    if layer.kind == "cross":
        return pieces[-1].mask
    simple = _growing(layer, pieces)
    return Stacked(pieces) if simple is None else simple


def _growing(layer: Layer, pieces: list[Piece]) -> Mask | None:
    """Causal (or a window, or a prefix) and the latest padding, if that is what all parts say."""
    bands: list[Band | None] = []
    real: Tensor | None = None  # [batch, keys]
    for mask, queries, first_key, end_key in pieces:
        keys = end_key - first_key
        both = band_and_padding(mask, keys, torch.device("cpu"))
        if both is None:
            return None
        band, marks = both
        if band is not None and band.align == "start" and queries != keys:
            return None
        bands.append(band)
        if marks is not None:
            if real is None:
                real = torch.ones(marks.shape[0], layer.keys, dtype=torch.bool)
            real[:, first_key:end_key] &= marks
    lefts = {band.left for band in bands if band is not None}
    if len(lefts) > 1 or any(band is not None and band.right != 0 for band in bands):
        return None
    left = lefts.pop() if lefts else None
    first = pieces[0]
    open_start = bands[0] is None and first.queries > 1
    for band, piece in zip(bands[1:], pieces[1:]):
        if band is None and piece.queries > 1:
            return None
        if band is None and left is not None and piece.end_key - piece.first_key > left + 1:
            return None
    if open_start and (left is not None or layer.parts[0].row or first.queries != first.end_key):
        return None
    rule: Mask = prefix(first.end_key) if open_start else causal() if left is None else Band(left, 0)
    return rule if real is None else rule & padding(real)


def band_and_padding(
    mask: Mask | None, keys: int, device: torch.device
) -> tuple[Band | None, Bool[Tensor, "batch keys"] | None] | None:
    """The band of a mask that is a band, padding, or both, and the keys that are real; None if it is more."""
    band: Band | None = None
    for rule in [] if mask is None else mask.conjuncts():
        if rule.band is None and rule.key_row(keys, device) is None:
            return None
        if rule.band is not None and band is not None:
            return None
        band = band if rule.band is None else rule.band
    return band, real_keys(mask, keys, device)
