"""What a build adds to the package: where the project lives, and, for one kind of wheel, the kernel in C.

The repository itself names no host. A clone knows where it came from; a folder without one says nothing.

`make native-wheel` names a compiler in SIGHTLINE_WHEEL_CC: the wheel then has the kernel inside, compiled for Linux on
x86-64, for three kinds of processors. Without it the wheel is the same for every machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
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


# A library for each number of lanes, and the processors it is for: kernels/native/build.py says what they must have.
KINDS = {4: "x86_64", 8: "x86_64_v3", 16: "x86_64_v4"}
NATIVE = "sightline/kernels/native"
# The C library of the oldest Linux that the wheel is for.
TARGET = "x86_64-linux-gnu.2.17"


class Native(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = os.environ.get("SIGHTLINE_WHEEL_CC")
        if not compiler or self.target_name != "wheel" or version == "editable":
            return
        self.made = tempfile.TemporaryDirectory()
        source = Path(self.root, "src", NATIVE, "tile.c")
        for lanes, processor in KINDS.items():
            made = Path(self.made.name, f"tile-x86_64-{lanes}.so")
            flags = f"-target {TARGET} -mcpu={processor} -O3 -std=gnu11 -shared -fPIC -s -Wno-psabi -DLANES={lanes}"
            subprocess.run([*shlex.split(compiler), *flags.split(), "-o", str(made), str(source)], check=True)
            build_data["force_include"][str(made)] = f"{NATIVE}/brought/{made.name}"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "made"):
            self.made.cleanup()
