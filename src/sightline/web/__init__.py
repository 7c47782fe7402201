"""The explorer's server: HTTP around the numbers of `sightline.explore`, and the same answers inside a notebook.

| to find | look in |
| --- | --- |
| addresses, and what they answer | `routes.py`, numbers in them `parse.py` |
| everything behind them | `service.py` |
| the runs a server has | `library.py` |
| texts that wait for a model | `jobs.py` |
| who computes what, and when | `scheduler.py` |
| what goes wrong, as JSON | `problems.py` |
| who may ask, and for how long | `guard.py`, `connections.py` |
| the application, on a port, in a notebook | `app.py`, `serve.py`, `widget.py` |

The page itself is TypeScript, in `web/` at the top of the repository, built into `static/`. All that outlives a server
in a process is the loop of the widgets (`_loop` in `widget.py`), which starts with the first of them.
"""
