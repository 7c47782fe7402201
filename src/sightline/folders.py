"""Where the package keeps what it can make again.

| folder | when |
| --- | --- |
| `SIGHTLINE_CACHE` | if it is set |
| `XDG_CACHE_HOME`/sightline | if that is set |
| ~/.cache/sightline | otherwise |
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where copies are kept; the folder need not exist.

    >>> isinstance(cache_folder(), Path)
    True
    """
    own = os.environ.get("SIGHTLINE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    # A relative path there is to be ignored, says the specification.
    return (Path(shared) if shared and Path(shared).is_absolute() else Path("~/.cache").expanduser()) / "sightline"
