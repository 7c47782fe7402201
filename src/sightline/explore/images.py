"""The picture that a vision model was given: saved beside the run, with where its patches stand."""

from __future__ import annotations

import base64
import io
import os
import stat
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.explore.parts import OTHERS
from sightline.explore.run import Run
from sightline.image_files import decoded, upright

# Bytes of a picture that is sent, and of one that a report holds as it is.
LARGEST, EMBEDDED = 64 << 20, 1 << 20
# What a file begins with, by what a browser calls it: nothing else is sent.
KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def about(run: Run) -> dict[str, Any] | None:
    """Where the patches stand: rows, columns, where they begin among tokens and memory; None without a picture."""
    grid: Any = getattr(run.account, "grid", None)
    first, memory = (getattr(run.account, name, None) for name in ("first", "memory_first"))
    if grid is None or (_file(run) is None and run.picture is None) or (first is None and memory is None):
        return None
    for start, tokens in ((first, run.tokens), (memory, run.memory)):
        if start is not None and start + grid.rows * grid.columns > len(tokens or ()):
            return None
    patches = range(first, first + grid.rows * grid.columns) if first is not None else ()
    alone = first is not None and all(i in patches or text in OTHERS for i, text in enumerate(run.tokens))
    return {"rows": grid.rows, "columns": grid.columns, "first": first, "memory": memory, "alone": alone}


def _file(run: Run) -> Path | None:
    return getattr(run.account, "image", None)


def read(run: Run) -> tuple[bytes, str]:
    """The bytes of the picture, and their kind."""
    path = _file(run)
    if about(run) is None:
        raise InputError("this run has no picture", expected="a run saved with its image", got="none", hint="the map")
    content = run.picture if run.picture is not None or path is None else _read(path)
    assert content is not None
    for start, kind in KINDS.items():
        if content.startswith(start):
            return content, kind
    raise InputError("the picture of this run is neither PNG nor JPEG", expected="PNG or JPEG", got="other", hint="PNG")


def _read(path: Path) -> bytes:
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise InputError("the picture of this run is no file that can be shown")
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            "the picture of this run cannot be read",
            expected="the file that the run names",
            got=error.strerror or "no file",
            hint="save the run again, with its picture",
        ) from error


def embedded(run: Run) -> str | None:
    """The picture as an address that holds it; one that is large is made smaller. None without a picture."""
    if about(run) is None:
        return None
    content, kind = read(run)
    if len(content) > EMBEDDED:
        picture = upright(decoded(content, "a large picture in a report"))
        picture.thumbnail((1024, 1024))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=90)
        content, kind = file.getvalue(), "image/jpeg"
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
