"""Watch: look into anybody's PyTorch model while it runs, without changing it."""

from sightline.lens.kept import KeptSight, Overview
from sightline.watching.api import load, watch
from sightline.watching.hearing import monitor
from sightline.watching.read.portraits import Portrait, Portraits, induction
from sightline.watching.read.spans import LayerSpans
from sightline.watching.seen import Seen

__all__ = [
    "KeptSight",
    "LayerSpans",
    "Overview",
    "Portrait",
    "Portraits",
    "Seen",
    "induction",
    "load",
    "monitor",
    "watch",
]
