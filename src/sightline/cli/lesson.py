"""`sightline lesson`: the sources' lessons, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.errors import InputError
from sightline.lessons import LESSONS, find, run
from sightline.steps.html import check_target
from sightline.steps.terminal import make_console


def lesson(
    name: Annotated[str | None, typer.Argument(help="Which lesson; without one they are listed.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the lesson as a page with pictures to this file.")] = None,
) -> None:
    """Give one of the lessons on attention, from the plain average to real models."""
    if name is None:
        if html is not None:
            raise InputError(
                "which lesson?", expected=f"one of {', '.join(LESSONS)}", got="none", hint=f"lesson {LESSONS[0]}"
            )
        for entry in map(find, LESSONS):
            typer.echo(f"  {entry.name:<18}{entry.title}")
        typer.echo("\nsightline lesson NAME gives one; --html FILE writes it as a page with pictures.")
        return
    entry = find(name)
    if html is None:
        run(entry.name, make_console())
        return
    check_target(html)
    run(entry.name).save(html)
    typer.echo(f"{html}: {entry.title}, {html.stat().st_size / 1024:,.0f} KiB")
