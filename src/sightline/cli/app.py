"""What all commands share: the table of them, errors as clear lines, and exit codes."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Annotated

import typer

from sightline.errors import SightlineError
from sightline.version import __version__

# Each command is a function named like its file, `sightline.cli.<file>`; its docstring is its help.
COMMANDS: tuple[str, ...] = (
    "look",
    "serve",
    "steps",
    "heads",
    "lesson",
    "ladder",
    "models",
    "survey",
    "atlas",
    "bench",
)

app = typer.Typer(
    help="Attention you can see through.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)


def tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sightline {__version__}")
        raise typer.Exit


@app.callback()
def sightline(
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which version this is, and stop.", callback=tell_version, is_eager=True),
    ] = False,
) -> None:
    """Attention you can see through."""


for _name in COMMANDS:
    _module = importlib.import_module(f"sightline.cli.{_name}")
    # The first sentence whole: of a long one typer would show the beginning.
    _short = (inspect.getdoc(getattr(_module, _name)) or "").partition("\n\n")[0].replace("\n", " ")
    if hasattr(_module, "app"):
        app.add_typer(_module.app, name=_name, short_help=_short)
    else:
        app.command(_name, short_help=_short)(getattr(_module, _name))


def run(arguments: list[str] | None = None) -> None:
    """Run one command. What goes wrong is one clear line on stderr and a non-zero exit, never a traceback."""
    try:
        app(arguments, prog_name="sightline")
    except SightlineError as error:
        sys.exit(f"sightline: {'; '.join(line.strip() for line in str(error).splitlines() if line.strip())}")
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        sys.exit(f"sightline: {name}{error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)
