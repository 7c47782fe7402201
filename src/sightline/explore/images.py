"""The picture that a vision model was given: a file in the folder of a saved run, and where its patches stand.

`meta["image"]` of the run names the file and says how many patches there are each way and how many tokens, such as a
class token, come before them: `{"file": "image.png", "grid": [14, 14], "first": 1}`.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any

from sightline.errors import InputError
from sightline.explore.run import Run

LARGEST = 20 << 20
# What a file begins with, by what a browser calls it: nothing else is sent.
KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_NAME = re.compile(r"[\w-]{1,64}\.(?:png|jpe?g)")


def about(run: Run) -> dict[str, int] | None:
    """Where the patches stand: rows, columns, and how many tokens come before them; None without a picture."""
    said = run.meta.get("image")
    if run.folder is None or not _sound(said):
        return None
    rows, columns = said["grid"]
    if said["first"] + rows * columns > len(run.tokens):
        return None
    return {"rows": rows, "columns": columns, "first": said["first"]}


def read(run: Run) -> tuple[bytes, str]:
    """The bytes of the picture, and their kind."""
    if about(run) is None or run.folder is None:
        raise InputError("this run has no picture", expected="a run saved with its image", got="none", hint="the map")
    path = run.folder / run.meta["image"]["file"]
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise InputError("the picture of this run is no file that can be shown")
        content = path.read_bytes()
    except OSError as error:
        raise InputError("the picture of this run cannot be read", got=error.strerror or "no file") from error
    for start, kind in KINDS.items():
        if content.startswith(start):
            return content, kind
    raise InputError("the picture of this run is neither PNG nor JPEG", expected="PNG or JPEG", got="other", hint="PNG")


def _sound(said: Any) -> bool:
    return (
        isinstance(said, dict)
        and set(said) == {"file", "grid", "first"}
        and isinstance(said["file"], str)
        and bool(_NAME.fullmatch(said["file"]))
        and isinstance(said["grid"], list)
        and len(said["grid"]) == 2
        and all(type(n) is int and 0 < n <= 4096 for n in said["grid"])
        and type(said["first"]) is int
        and 0 <= said["first"] <= 4096
    )
