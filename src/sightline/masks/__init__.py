"""Masks: who may attend to whom, as rules that are never written out as queries x keys."""

from sightline.masks.base import Mask, as_mask
from sightline.masks.content import Dense, Documents, Padding, dense, documents, padding
from sightline.masks.positional import Band, Prefix, causal, prefix, window
from sightline.masks.rule import EMPTY, FULL, MIXED, edges, spans

__all__ = [
    "EMPTY",
    "FULL",
    "MIXED",
    "Band",
    "Dense",
    "Documents",
    "Mask",
    "Padding",
    "Prefix",
    "as_mask",
    "causal",
    "dense",
    "documents",
    "edges",
    "padding",
    "prefix",
    "spans",
    "window",
]
