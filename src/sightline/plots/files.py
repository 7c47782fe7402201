"""Files that appear whole or not at all, whenever the program is stopped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside the target, and put it in the target's place in one step.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "note.txt"), lambda file: file.write_text("all of it"))
    ...     Path(folder, "note.txt").read_text()
    'all of it'
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=f".part{path.suffix}")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        # On the disk before it has its name: a power cut must not leave the name with nothing behind it.
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # A temporary file is for its owner alone; the finished one is as readable as any other.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
