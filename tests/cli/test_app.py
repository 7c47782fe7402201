"""What all commands share: the program starts, and whatever goes wrong is one clear message and an exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sightline
from sightline.cli import app as cli
from sightline.errors import InputError


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("columns, most", [(80, 80), (120, 120)])
@pytest.mark.parametrize("arguments", [[], *([name] for name in cli.COMMANDS), ["models", "check"]])
def test_help_is_whole_and_fits(
    arguments: list[str], columns: int, most: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        cli.run([*arguments, "--help"])
    shown = capsys.readouterr().out
    commands = shown.partition("Commands:")[2]
    assert "..." not in commands, "cut off"
    assert max(map(len, shown.splitlines())) <= most
    if not arguments and columns == 120:
        assert max(map(len, shown.splitlines())) > 80, "the room is used"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"sightline {sightline.__version__}\n"


def test_an_unknown_command_is_refused() -> None:
    """In a process of its own: nothing but the message is said, and the exit code tells of it."""
    done = subprocess.run(
        [sys.executable, "-c", "from sightline.cli import main; main()", "no-such-command"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no-such-command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error, message",
    [
        (
            InputError("no", expected="a", got="b", hint="c"),
            "sightline: no; expected: a; got: b; try: c",
        ),
        (PermissionError(13, "Permission denied", "out.html"), "sightline: out.html: Permission denied"),
    ],
)
def test_errors_become_one_message(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", failing)
    with pytest.raises(SystemExit) as stopped:
        cli.run([])
    assert stopped.value.code == message


def test_ctrl_c_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.run([])
    assert stopped.value.code == 130


def test_a_missing_package_names_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['typer'] = None; from sightline.cli import main; main()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "sightline[cli]" in done.stderr
    assert "Traceback" not in done.stderr
