"""The lens: a full account of what was attended to, in memory linear in the context."""

from sightline.lens.api import look, observe
from sightline.lens.between import Spans
from sightline.lens.declared import declare
from sightline.lens.requests import Picture, Received, Top
from sightline.lens.sight import Sight, TopKeys
from sightline.lens.statistics import Statistic

__all__ = [
    "Picture",
    "Received",
    "Sight",
    "Spans",
    "Statistic",
    "Top",
    "TopKeys",
    "declare",
    "look",
    "observe",
]
