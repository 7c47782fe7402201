"""The lens: a full account of what was attended to, in memory linear in the context."""

from sightline.lens.api import look, observe
from sightline.lens.declared import declare
from sightline.lens.requests import Picture, Top
from sightline.lens.sight import Sight, TopKeys
from sightline.lens.statistics import Statistic

__all__ = ["Picture", "Sight", "Statistic", "Top", "TopKeys", "declare", "look", "observe"]
