"""The picture that a vision model was given: saved beside the run, with where its patches stand."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.explore.run import Run

LARGEST = 64 << 20
# What a file begins with, by what a browser calls it: nothing else is sent.
KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def about(run: Run) -> dict[str, int] | None:
    """Where the patches stand: rows, columns, and how many tokens come before them; None without a picture."""
    grid: Any = getattr(run.account, "grid", None)
    if grid is None or _file(run) is None or grid.first + grid.rows * grid.columns > len(run.tokens):
        return None
    return {"rows": grid.rows, "columns": grid.columns, "first": grid.first}


def _file(run: Run) -> Path | None:
    return getattr(run.account, "image", None)


def read(run: Run) -> tuple[bytes, str]:
    """The bytes of the picture, and their kind."""
    path = _file(run)
    if path is None or about(run) is None:
        raise InputError("this run has no picture", expected="a run saved with its image", got="none", hint="the map")
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise InputError("the picture of this run is no file that can be shown")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            "the picture of this run cannot be read",
            expected="the file that the run names",
            got=error.strerror or "no file",
            hint="save the run again, with its picture",
        ) from error
    for start, kind in KINDS.items():
        if content.startswith(start):
            return content, kind
    raise InputError("the picture of this run is neither PNG nor JPEG", expected="PNG or JPEG", got="other", hint="PNG")
