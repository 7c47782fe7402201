"""What `make` asks of npm in this folder, one at a time: `python web/npm.py build | tools | page`.

`build` installs the packages that build the page, `tools` those that check it too, `page` builds it. `npm ci` begins
with an empty folder: two at once, or one beside a build, would leave half of it. So whoever asks waits for the others,
and installs nothing that they brought. A stamp is there only while all its packages are.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = HERE / "node_modules"
BUILD, TOOLS = PACKAGES / ".stamp-build", PACKAGES / ".stamp-tools"
PINS = [HERE / "package.json", HERE / "package-lock.json"]


def main(asked: str) -> int:
    if shutil.which("npm") is None:
        print("The explorer's page is built with Node.js; on Debian and Ubuntu: apt-get install nodejs npm")
        return 1
    with PINS[1].open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if asked == "page":
            return npm(lock.fileno(), "run", "--silent", "build")
        return install(lock.fileno(), tools=asked == "tools")


def install(lock: int, tools: bool) -> int:
    if fresh(TOOLS if tools else BUILD):
        return 0
    for stamp in (BUILD, TOOLS):
        stamp.unlink(missing_ok=True)
    some = [] if tools else ["--omit=dev"]
    # What npm says of its progress is of no use; its errors are.
    code = npm(lock, "ci", *some, "--loglevel=error", "--no-audit", "--no-fund", stdout=subprocess.DEVNULL)
    if code == 0:
        PACKAGES.mkdir(exist_ok=True)
        for stamp in (BUILD, TOOLS) if tools else (BUILD,):
            stamp.touch()
    return code


def fresh(stamp: Path) -> bool:
    """Whether somebody installed it since the pins were changed."""
    pins = [pin.stat().st_mtime_ns for pin in PINS if pin.exists()]
    return stamp.exists() and stamp.stat().st_mtime_ns >= max(pins)


def npm(lock: int, *asked: str, **how: int) -> int:
    # It holds the lock too: whoever ends this process alone does not let others in.
    return subprocess.run(["npm", *asked], cwd=HERE, pass_fds=[lock], check=False, **how).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
