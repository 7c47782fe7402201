"""The command line: `sightline`, one file per command."""

from __future__ import annotations

import sys


def main() -> None:
    """Start the command line; without its packages, say which extra has them."""
    try:
        from sightline.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich", "click"}:
            raise
        sys.exit(f"sightline: the command line needs {error.name}: pip install 'sightline[cli]'")
    run()
