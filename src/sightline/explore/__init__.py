"""What the explorer shows, as numbers: no web framework is needed, so `sightline look` and reports use it too.

| to find | look in |
| --- | --- |
| what can be asked of a run | `atlas.py` |
| one text of one account | `run.py`, its tokens in `labels.py` |
| one head of a sight | `head.py`, `head_view.py` |
| tiles at every zoom level | `pyramid.py`, over `overview.py`, `estimate.py`, `visible_counts.py` |
| what heads are like | `measures.py`, `links.py`, `thumbs.py` |
| numbers to take away | `export.py`, `worked_table.py`, `report.py` |
| where runs come from | `model_runs.py`, `image_runs.py`, `saved.py`, in a notebook `one_model.py` |
| pictures, and which tokens are their patches | `images.py`, `parts.py` |

Modules import each other in that direction alone: `atlas` knows all, `overview` and `labels` know none. Nothing is kept
between calls except in the objects that callers hold.
"""
