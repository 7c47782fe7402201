"""The command line runs as a module too."""

from __future__ import annotations

import subprocess
import sys

from sightline.version import __version__


def test_the_command_line_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sightline", "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout
