"""The commands of the Makefile on other machines: without npm, without root, without a home, in a path with spaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What a recipe may call beside what a test puts in place.
SYSTEM = ("sh", "make", "test", "id", "sed", "rm", "mkdir", "touch", "awk", "echo", "cat", "sleep")
SIGHTLINE = """#!/bin/sh
echo "sightline $*"
"""
BUILDS = """#!/bin/sh
mkdir -p ../src/sightline/web/static && touch ../src/sightline/web/static/index.html
"""
FAILS = """#!/bin/sh
echo "npm error network: no such registry" >&2
exit 1
"""
TELLS = """#!/bin/sh
echo "npm $*" >> "{log}"
case "$*" in *build) mkdir -p "{page}" && touch "{page}/index.html" ;; esac
"""
# As npm does it: the folder is emptied first, and filled bit by bit; what builds a page needs all of it.
SLOW = """#!/bin/sh
echo "begin $*" >> "{log}"
case "$*" in
  ci*) rm -rf node_modules && mkdir node_modules && sleep 0.3 && touch node_modules/half && sleep 0.3 &&
    touch node_modules/all ;;
  *build) test -f node_modules/all && sleep 0.3 && test -f node_modules/all &&
    mkdir -p "{page}" && touch "{page}/index.html" ;;
esac || exit 1
echo "end $*" >> "{log}"
"""
NEEDS_A_HOME = """#!/bin/sh
echo "home is $HOME" >&2
mkdir -p "$HOME/.npm" && echo "and can be written to" >&2
exit 1
"""


class Checkout:
    """The Makefile with an environment that is already there, and only the programs that a test wants."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a path with spaces"
        self.bin = folder / "bin"
        for place in (self.root / ".venv" / "bin", self.root / "web", self.bin):
            place.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)
        for name in SYSTEM:
            found = shutil.which(name)
            assert found, f"this machine has no {name}"
            (self.bin / name).symlink_to(found)
        self.program(self.root / ".venv" / "bin" / "sightline", SIGHTLINE)
        (self.bin / "python3").symlink_to(sys.executable)
        shutil.copy(ROOT / "web" / "npm.py", self.root / "web")
        (self.root / "web" / "package-lock.json").write_text("{}")
        for stamp in ("created", "run"):
            (self.root / ".venv" / f".stamp-{stamp}").touch()

    def program(self, path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def make(self, *arguments: str, **environment: str) -> tuple[int, str]:
        begun = self.begin(*arguments, **environment)
        said, _ = begun.communicate(timeout=60)
        return begun.returncode, said

    def begin(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        own = {"PATH": str(self.bin), "HOME": str(self.bin), **environment}
        return subprocess.Popen(
            ["make", *arguments],
            cwd=self.root,
            env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_demo_is_an_account_and_then_the_explorer(checkout: Checkout) -> None:
    checkout.program(checkout.bin / "npm", BUILDS)
    code, said = checkout.make("demo", "PORT=1234")
    assert code == 0, said
    assert said.index("sightline look") < said.index("sightline serve .venv/demo --port 1234")
    assert "could not" not in said


def tells(checkout: Checkout) -> Path:
    """Where an npm that builds writes what it was asked for."""
    log = checkout.bin / "npm.log"
    checkout.program(checkout.bin / "npm", TELLS.format(log=log, page=checkout.root / "src/sightline/web/static"))
    return log


def test_the_demo_installs_what_builds_the_page_and_no_more(checkout: Checkout) -> None:
    log = tells(checkout)
    assert checkout.make("demo")[0] == 0
    install, build = log.read_text().splitlines()
    assert install.startswith("npm ci --omit=dev ")
    assert build == "npm run --silent build"
    assert checkout.make("demo")[0] == 0
    assert len(log.read_text().splitlines()) == 2, "neither is done twice"


def test_check_and_test_look_at_the_page_too(checkout: Checkout) -> None:
    log = tells(checkout)
    for name in ("ruff", "mypy", "python"):
        checkout.program(checkout.root / ".venv" / "bin" / name, f'#!/bin/sh\necho "{name} $*" >> "{log}"\n')
    for stamp in ("dev", "warm", "chromium", "compiler"):
        (checkout.root / ".venv" / f".stamp-{stamp}").touch()
    code, said = checkout.make("check", "--jobs=1")
    assert code == 0, said
    *python, install, page = log.read_text().splitlines()
    assert python == ["ruff check .", "ruff format --check .", "mypy "]
    assert install.startswith("npm ci ")
    assert "--omit" not in install
    assert page == "npm --prefix web run check"
    log.unlink()
    code, said = checkout.make("test", "--jobs=1")
    assert code == 0, said
    done = log.read_text().splitlines()
    assert "npm run --silent build" in done
    assert not any("npm ci" in line for line in done), "what is there is not installed again"
    assert done[-2] == "npm --prefix web test"
    assert "pytest" in done[-1]


@pytest.mark.parametrize(
    "npm, reason", [(FAILS, "npm error network: no such registry"), (None, "apt-get install nodejs")]
)
def test_the_demo_without_a_page_is_the_account_and_the_reason(
    npm: str | None, reason: str, checkout: Checkout
) -> None:
    if npm is not None:
        checkout.program(checkout.bin / "npm", npm)
    code, said = checkout.make("demo")
    assert code == 0, said
    assert said.index("sightline look") < said.index("page could not be built") < said.index(reason)
    assert "sightline serve" not in said


STAMPS = ("web/node_modules/.stamp-build", "web/node_modules/.stamp-tools")


def slowly(checkout: Checkout) -> Path:
    log = checkout.bin / "npm.log"
    checkout.program(checkout.bin / "npm", SLOW.format(log=log, page=checkout.root / "src/sightline/web/static"))
    return log


def one_by_one(log: Path) -> list[str]:
    """What npm was asked for, in its order: each ended before the next began."""
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    assert [what for what, _ in lines] == ["begin", "end"] * (len(lines) // 2), lines
    assert [asked for _, asked in lines[::2]] == [asked for _, asked in lines[1::2]], lines
    return [asked for _, asked in lines[::2]]


@pytest.mark.parametrize("goals", [("page", STAMPS[1]), STAMPS, ("demo", STAMPS[1]), (STAMPS[1], "page", STAMPS[0])])
def test_npm_does_one_thing_at_a_time(goals: tuple[str, ...], checkout: Checkout) -> None:
    """Two that empty the folder at once leave half of it, and the stamp of a whole one."""
    log = slowly(checkout)
    code, said = checkout.make(*goals, "--jobs=4")
    assert code == 0, said
    assert "could not" not in said
    done = one_by_one(log)
    installed = [one for one in done if one.startswith("ci")]
    assert "--omit" not in installed[-1], "what checks the page is there at the end"
    assert (checkout.root / "web/node_modules/all").exists()
    assert all((checkout.root / stamp).exists() for stamp in STAMPS)
    if "run --silent build" in done:
        assert not any(one.startswith("ci") for one in done[done.index("run --silent build") :]), "under its hands"


def test_two_who_make_the_page_at_once_do_not_disturb_each_other(checkout: Checkout) -> None:
    log = slowly(checkout)
    both = [checkout.begin(*goals) for goals in (("page",), (STAMPS[1],))]
    for one in both:
        said = one.communicate(timeout=60)[0]
        assert one.returncode == 0, said
    one_by_one(log)
    assert (checkout.root / "web/node_modules/all").exists()


def test_packages_that_are_not_all_there_have_no_stamp(checkout: Checkout) -> None:
    log = slowly(checkout)
    assert checkout.make(STAMPS[1])[0] == 0
    assert checkout.make(STAMPS[1])[0] == 0
    assert len(one_by_one(log)) == 1
    checkout.program(checkout.bin / "npm", "#!/bin/sh\ntouch node_modules/half\nexit 1\n")
    os.utime(checkout.root / "web" / "package-lock.json")
    for stamp in STAMPS:
        os.utime(checkout.root / stamp, (1, 1))
    assert checkout.make(STAMPS[0])[0] != 0
    assert not any((checkout.root / stamp).exists() for stamp in STAMPS)


def test_a_page_that_was_asked_for_by_name_fails_with_the_reason(checkout: Checkout) -> None:
    checkout.program(checkout.bin / "npm", FAILS)
    code, said = checkout.make("page")
    assert code != 0
    assert "npm error network: no such registry" in said


@pytest.mark.parametrize("home", ["cannot be made", "none"])
def test_without_a_home_there_is_one_beside_the_environment(home: str, checkout: Checkout) -> None:
    checkout.program(checkout.bin / "npm", NEEDS_A_HOME)
    file = checkout.root / "file"
    file.touch()
    code, said = checkout.make("page", HOME="" if home == "none" else str(file / "home"))
    assert f"home is {checkout.root}/.venv/home" in said, code
    assert "and can be written to" in said


def test_a_home_that_can_be_written_to_stays(checkout: Checkout) -> None:
    checkout.program(checkout.bin / "npm", NEEDS_A_HOME)
    assert f"home is {checkout.bin}\n" in checkout.make("page")[1]


@pytest.mark.parametrize(
    "stamp, packages, there",
    [("chromium", "chromium", "google-chrome"), ("compiler", "gcc libc6-dev", "cc")],
)
def test_who_may_not_install_is_told_what(stamp: str, packages: str, there: str, checkout: Checkout) -> None:
    if stamp == "compiler":
        checkout.program(checkout.bin / "chromium", SIGHTLINE)
    checkout.program(checkout.bin / "id", "#!/bin/sh\necho 1000\n")
    checkout.program(checkout.bin / "apt-get", "#!/bin/sh\necho 'not allowed'\nexit 100\n")
    checkout.program(checkout.bin / "apt-cache", "#!/bin/sh\nexit 100\n")
    code, said = checkout.make(f".venv/.stamp-{stamp}")
    assert code != 0
    assert f"sudo apt-get install {packages}" in said
    assert "not allowed" not in said
    checkout.program(checkout.bin / there, SIGHTLINE)
    assert checkout.make(f".venv/.stamp-{stamp}")[0] == 0


@pytest.mark.parametrize("known, package", [(0, "chromium-headless-shell"), (100, "chromium")])
def test_root_gets_what_is_missing_installed(known: int, package: str, checkout: Checkout) -> None:
    """Chromium without windows where the system knows it; it is known only after its lists were renewed."""
    checkout.program(checkout.bin / "apt-cache", f"#!/bin/sh\ntest -f renewed && exit {known}\nexit 100\n")
    checkout.program(checkout.bin / "id", "#!/bin/sh\necho 0\n")
    checkout.program(checkout.bin / "apt-get", '#!/bin/sh\ntouch renewed\necho "apt-get $*" >&2\n')
    code, said = checkout.make(".venv/.stamp-chromium")
    assert code == 0, said
    assert f"apt-get install -y -qq {package}\n" in said
