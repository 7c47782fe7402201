"""Small JSON files, read with suspicion: of bounded size, plain UTF-8, one object without doubled keys."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from sightline import files
from sightline.memory import readable
from sightline.models.checkpoints.base import CheckpointError, refused


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """The object a file holds; a file of more than `limit` bytes is refused unread."""
    return parse_json(read_bytes(path, limit), path.name)


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a small file; one of more than `limit` bytes is refused unread."""
    name = path.name
    check_regular(path, name)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise refused(
            f"{name} is too large for what it is",
            expected=f"at most {readable(limit)}",
            got=readable(path.stat().st_size),
            hint="fetch the file again, from where the model is published",
        )
    return content


def check_regular(path: Path, name: str) -> None:
    """Refuse whatever is not a plain file: reading a pipe or a device would never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise refused(
            f"{name} is not a file",
            expected="a regular file",
            got="a folder, a pipe or a device",
            hint="check the path",
        )


def parse_json(content: bytes, name: str) -> dict[str, Any]:
    """One JSON object.

    >>> parse_json(b'{"a": 1}', "config.json")
    {'a': 1}
    >>> parse_json(b'{"a": 1, "a": 2}', "config.json")
    Traceback (most recent call last):
    ...
    sightline.models.checkpoints.base.CheckpointError: config.json cannot be understood
      expected: one JSON object
      got: the key 'a' twice
      try: fetch the file again; a copy may have been cut short
    """
    parsed = parse_any(content, name)
    if not isinstance(parsed, dict):
        raise _not_understood(name, f"a JSON {type(parsed).__name__}")
    return parsed


def parse_any(content: bytes, name: str) -> Any:
    """Whatever JSON there is: an object, a list, a number.

    >>> parse_any(b"[1, 2]", "modules.json")
    [1, 2]
    """
    try:
        return files.parse_json(content, nan=True)
    except ValueError as error:
        raise _not_understood(name, str(error) or type(error).__name__) from error


def _not_understood(name: str, got: str) -> CheckpointError:
    return refused(
        f"{name} cannot be understood",
        expected="one JSON object",
        got=got,
        hint="fetch the file again; a copy may have been cut short",
    )
