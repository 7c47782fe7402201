"""Where the project lives, as the package says it: the address of the repository that it is built from.

The repository itself names no host. A clone knows where it came from; a folder without one says nothing.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Repository": "",
    "Documentation": "/tree/main/docs",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Issues": "/issues",
}


def address(remote: str) -> str | None:
    """The page of a repository on a host, from what git calls its remote; None for a folder of this machine.

    >>> (
    ...     address("git@example.org:team/sightline.git"),
    ...     address("https://example.org/team/sightline/"),
    ...     address("/tmp/x"),
    ... )
    ('https://example.org/team/sightline', 'https://example.org/team/sightline', None)
    """
    found = re.fullmatch(
        r"(?:https?://|ssh://)?(?:[^@/\s]+@)?([\w-]+(?:\.[\w-]+)+)(?::\d+)?[:/]([\w./~-]+)", remote.strip()
    )
    if found is None:
        return None
    host, path = found.groups()
    return f"https://{host}/{path.strip('/').removesuffix('.git')}"


class Addresses(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = urls(Path(self.root))


def urls(root: Path) -> dict[str, str]:
    """The pages of the project, by what each is."""
    told = root / "PKG-INFO"  # in a source archive, which has no history
    if told.is_file():
        lines = re.findall(r"^Project-URL: ([^,\n]+), (\S+)$", told.read_text("utf-8"), re.MULTILINE)
        return dict(lines)
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "remote", "get-url", "origin"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    home = address(asked.stdout)
    return {} if home is None else {name: home + page for name, page in PAGES.items()}
