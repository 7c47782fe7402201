"""Sightline: attention you can see through."""

from sightline import caches, errors, lookup, models, nn, parallel, positions, steps, targets
from sightline.backends import Choice, attention, which_backend
from sightline.editing import Edits, Effects, edit, effects
from sightline.lens import Picture, Received, Sight, Spans, Statistic, Top, TopKeys, declare, look, observe
from sightline.masks import Mask, causal, dense, documents, padding, prefix, window
from sightline.positions import alibi
from sightline.surveying import survey
from sightline.version import __version__ as __version__
from sightline.watching import load, monitor, watch

__all__ = [
    "Choice",
    "Edits",
    "Effects",
    "Mask",
    "Picture",
    "Received",
    "Sight",
    "Spans",
    "Statistic",
    "Top",
    "TopKeys",
    "alibi",
    "attention",
    "caches",
    "causal",
    "declare",
    "dense",
    "documents",
    "edit",
    "effects",
    "errors",
    "load",
    "look",
    "lookup",
    "models",
    "monitor",
    "nn",
    "observe",
    "padding",
    "parallel",
    "positions",
    "prefix",
    "steps",
    "survey",
    "targets",
    "watch",
    "which_backend",
    "window",
]
