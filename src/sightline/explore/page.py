"""The built page: files that the TypeScript of `web/` at the top of the repository is made into."""

from __future__ import annotations

from pathlib import Path

from sightline.errors import InputError

# Beside the server, which is what mostly reads them; a report is made of the same files without one.
STATIC = Path(__file__).parent.parent / "web" / "static"


def asset(name: str, static: Path = STATIC) -> str:
    """The text of one file."""
    try:
        return (static / name).read_text(encoding="utf-8")
    except OSError:
        raise InputError(
            "the page is not built, and a report is made of it",
            expected=f"{name} beside the package",
            got="none",
            hint="in the repository: cd web && npm ci && npm run build",
        ) from None
