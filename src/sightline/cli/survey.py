"""`sightline survey`: the heads of a model over a corpus, into a Parquet data set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    first: tuple[float, int] | None = None  # when it began, and how many were done before
    last = 0, 0
    with (
        _telling(lambda: f"{last[0]} of {last[1]} texts are in {out}" if last[0] else ""),
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("reading texts", total=None, pace="")

        def report(done: int, total: int, errors: int) -> None:
            nonlocal first, last
            now, last = time.monotonic(), (done, total)
            first = first or (now, done)
            progress.update(
                task,
                description=f"{errors} errors" if errors else "texts",
                completed=done,
                total=total,
                pace=pace(done - first[1], total - done, now - first[0]),
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


def pace(done: int, left: int, seconds: float) -> str:
    """How quick a survey is, and how long it will take: the mean since it began, since parts come in bursts.

    >>> pace(30, 90, 60.0), pace(1, 2, 90.0), pace(0, 9, 5.0)
    ('30.0 a minute, 0:03:00 left', '40.0 an hour, 0:03:00 left', '')
    """
    if not done or seconds <= 0:
        return ""
    rate = done / seconds
    unit, length = ("a second", 1) if rate >= 1 else ("a minute", 60) if 60 * rate >= 1 else ("an hour", 3600)
    return f"{rate * length:.1f} {unit}, {timedelta(seconds=round(left / rate))} left"


@contextmanager
def _telling(done: Callable[[], str]) -> Iterator[None]:
    """At Ctrl-C say what is done, when the bar has gone."""
    try:
        yield
    except KeyboardInterrupt:
        if done():
            typer.echo(f"Stopped: {done()}; the same command goes on.", err=True)
        raise
