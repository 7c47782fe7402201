"""`sightline survey`: the heads of a model over a corpus, into a Parquet data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.surveying import survey as run_survey


def survey(
    texts: Annotated[
        str, typer.Argument(help="A folder of texts, .jsonl, .parquet, or a dataset of Hugging Face on disk.")
    ],
    out: Annotated[Path, typer.Option(help="Where it is written; the same folder again goes on where it stopped.")],
    model: Annotated[str, typer.Option(help="minilm, smollm2 or a folder with a checkpoint.")] = "smollm2",
    engine: Annotated[str, typer.Option(help="local: processes of this machine; ray: actors of Ray.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes or actors, of one thread each.", min=0, max=4096)] = 1,
    column: Annotated[str, typer.Option(help="The column or field that holds the text.")] = "text",
    cut: Annotated[
        int | None, typer.Option(help="Divide longer texts into pieces of about so many characters.", min=16)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many texts or pieces.", min=1)] = None,
    links: Annotated[int, typer.Option(help="Strongest links to keep of each text and head.", min=0, max=100)] = 3,
    generate: Annotated[int, typer.Option(help="Tokens that the model writes after each text.", min=0)] = 0,
    influence: Annotated[bool, typer.Option("--influence", help="Also how much each head raises the loss.")] = False,
) -> None:
    """Say what every head of a model does in every text of a corpus: Parquet, for tables and for sightline atlas.

    Killed at any moment it goes on where it was when it is started again. Ctrl-C stops it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading texts", total=None, rate="")

        def report(done: int, total: int, errors: int) -> None:
            speed = progress.tasks[0].speed
            progress.update(
                task,
                description=f"{errors} errors" if errors else "texts",
                completed=done,
                total=total,
                rate=f"{speed:.1f}/s" if speed else "",
            )

        found = run_survey(
            model,
            texts,
            out,
            engine,
            workers=workers,
            column=column,
            cut=cut,
            limit=limit,
            links=links,
            generate=generate,
            influence=influence,
            report=report,
        )
    failed = f"; {found.errors} could not be run, and say why in their rows" if found.errors else ""
    typer.echo(f"{found.texts} texts in {out}{failed}.\nNext, a page of all heads: sightline atlas {out}")
