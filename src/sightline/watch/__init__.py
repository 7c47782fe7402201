"""Watch: look into anybody's PyTorch model while it runs, without changing it."""

from sightline.lens.kept import KeptSight, Overview
from sightline.watch.api import load, watch
from sightline.watch.hearing import monitor
from sightline.watch.portraits import Portrait, Portraits, induction
from sightline.watch.seen import Seen

__all__ = ["KeptSight", "Overview", "Portrait", "Portraits", "Seen", "induction", "load", "monitor", "watch"]
