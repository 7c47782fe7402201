"""Sightline: attention you can see through."""

from sightline import errors, lookup, nn, positions
from sightline.attention import Choice, attention, which_backend
from sightline.lens import Picture, Sight, Top, TopKeys, look, observe
from sightline.masks import Mask, causal, dense, documents, padding, prefix, window
from sightline.positions import alibi

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Mask",
    "Picture",
    "Sight",
    "Top",
    "TopKeys",
    "alibi",
    "attention",
    "causal",
    "dense",
    "documents",
    "errors",
    "look",
    "lookup",
    "nn",
    "observe",
    "padding",
    "positions",
    "prefix",
    "which_backend",
    "window",
]
