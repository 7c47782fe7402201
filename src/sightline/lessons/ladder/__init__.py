"""The ladder: from no communication to a small transformer, one rung at a time, each trained on the same text (S0.7).

| file            | what is in it                                                    |
| --------------- | ---------------------------------------------------------------- |
| `rungs.py`      | the nine models, each with one thing more than the one before    |
| `text.py`       | the text as numbers, its last tenth held out                     |
| `settings.py`   | the budget, the same for every rung                              |
| `train.py`      | `climb`: train every rung                                        |
| `checkpoint.py` | where a ladder stands, so that it can be stopped at any moment   |
| `sample.py`     | text as a rung would write it                                    |
| `report.py`     | the table, the curves, the files                                 |

`sightline ladder` runs it.
"""

from sightline.lessons.ladder.rungs import RUNGS, Rung, Sizes
from sightline.lessons.ladder.settings import QUICK, QUICK_CHARACTERS, Settings
from sightline.lessons.ladder.text import Text, make_text, python_text, read_text
from sightline.lessons.ladder.train import climb

__all__ = [
    "RUNGS",
    "Rung",
    "Sizes",
    "Settings",
    "QUICK",
    "QUICK_CHARACTERS",
    "Text",
    "make_text",
    "python_text",
    "read_text",
    "climb",
]
