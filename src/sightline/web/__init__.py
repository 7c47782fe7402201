"""The explorer: look at attention as on a map, in a browser, from the whole context down to single cells.

| to find | look in |
| --- | --- |
| one head of a sight | `head.py`, `view.py` |
| tiles at every zoom level | `pyramid.py`, over `overview.py` |
| what heads are like | `facts.py`, `links.py`, `thumbs.py` |
| runs, and texts that wait for a model | `runs.py`, `library.py`, `jobs.py` |
| who computes what, and when | `scheduler.py`, `cache.py`, `service.py` |
| HTTP | `routes.py`, `guard.py`, `problems.py`, `app.py` |

The page itself is TypeScript, in `web/` at the top of the repository, built into `static/`.
"""
