"""`sightline atlas`: the heads of a survey as a page that opens without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.surveying.atlas import write_atlas


def atlas(
    survey: Annotated[Path, typer.Argument(help="A folder that sightline survey wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder of the page; atlas in that of the survey if left out.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make a page of all heads of a survey: ranked by any measure, with links in context and heads that are alike."""
    page = write_atlas(survey, out)
    typer.echo(f"Atlas: {page.resolve().as_uri()}")
    if open_browser:
        typer.launch(page.resolve().as_uri())
