"""Files that appear whole or not at all and stay after a power cut, and files of others read with suspicion.

Nothing here touches the umask: it belongs to the whole process, and another thread may be making a file just then.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

from sightline.errors import InputError

_FOLDER = getattr(os, "O_DIRECTORY", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_PIECE = 1 << 20


def write_whole(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Let `write` fill a temporary file beside the target, and put it in the target's place in one step.

    File and folder are on the disk when this returns, unless `durable=False`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "note.txt"), lambda file: file.write_text("all of it"))
    ...     Path(folder, "note.txt").read_text()
    'all of it'
    """
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path.name} cannot be written",
            expected="a new path, or a file to replace",
            got="a folder, a pipe or a device of that name",
            hint="another path",
        )
    temporary = path.parent / f".{path.name}.{token_hex(6)}.part{path.suffix}"
    try:
        # Made as any file is made, so that it is readable by whom the umask and the folder's own rules allow.
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BINARY, 0o666)
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.close(handle)
        write(temporary)
        # Some writers put a file of their own there, for its owner alone.
        if stat.S_IMODE(temporary.stat().st_mode) != mode:
            temporary.chmod(mode)
        if durable:
            # On the disk before it has its name: a power cut must not leave the name with nothing behind it.
            sync_file(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Have what was written to a file on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do that."""
    if not _FOLDER:
        return
    try:
        handle = os.open(folder, os.O_RDONLY | _FOLDER)
    except PermissionError:  # may be written but not read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """A folder and those above it, on the disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def size_of_file(path: Path) -> int:
    """The size of a regular file. Anything else is a ValueError: to read a pipe or a device might never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("a folder, a pipe or a device, not a plain file")
    return found.st_size


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes; anything else is a ValueError."""
    size = size_of_file(path)
    if size <= limit:
        content = bytearray()
        with path.open("rb") as file:
            # Not all at once: that takes memory for the limit, however small the file is.
            while part := file.read(min(_PIECE, limit + 1 - len(content))):
                content += part
        if len(content) <= limit:
            return bytes(content)
        size = len(content)
    raise ValueError(f"{size:,} bytes, too large for what it is: at most {limit:,}")


def parse_json(text: str | bytes, nan: bool = False) -> Any:
    """JSON without doubled keys and, unless `nan=True`, without NaN or infinity; anything else is a ValueError.

    >>> parse_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    ValueError: the key 'a' twice
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(decoded, object_pairs_hook=_once_each, parse_constant=float if nan else _no_number)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:80]!r} twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is not a number")
