"""Changing attention and seeing what it does: `sl.edit`, `sl.Edits`, `sl.effects`.

| to find | look in |
| --- | --- |
| what an edit is, and how it is written | `edits.py`, `where.py`, `files.py` |
| the block that puts edits in force | `api.py`, `editor.py`, `place.py` |
| what edits mean for one call | `plan.py`, `cells.py`, `sources.py` |
| the edited map and output | `maps.py`, `apply.py`; for those who watch: `shown.py` |
| every head replaced, and what changes | `head_effects.py`, `probe.py`, `short_cut.py`; shown: `effects_html.py` |
"""

from sightline.editing.api import edit
from sightline.editing.edits import Edits
from sightline.editing.head_effects import Effects, effects

__all__ = ["Edits", "Effects", "edit", "effects"]
