"""`sightline look`: run a model on a text, watched, and say what its heads attended to."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.cli import edited
from sightline.devices import HELP
from sightline.errors import InputError
from sightline.explore.aims import Aim
from sightline.explore.model_runs import Models, RunRequest, watched
from sightline.explore.report import report as report_page
from sightline.explore.run import Run, as_run
from sightline.files import write_whole
from sightline.watching import load

EXAMPLE = "The kids were scared of the lions, so they left right away."
LARGEST = 1_000_000


def look(
    text: Annotated[str, typer.Argument(help="A text, a file with one, or - for the standard input.")] = EXAMPLE,
    model: Annotated[
        str | None,
        typer.Option(
            help="minilm, smollm2 or a folder with a checkpoint; if left out minilm, with a target smollm2.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Which layers, e.g. 0-3,5; all if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep the run: a folder for sightline serve, or one file report.html.")
    ] = None,
    heads: Annotated[int, typer.Option(help="Heads in the table.", min=1, max=1000)] = 8,
    of: Annotated[
        str,
        typer.Option(
            help="What is read of a cell: weights, norms (what is carried), influence (what mattered), pull.",
        ),
    ] = "weights",
    target: Annotated[
        str | None, typer.Option(help='Influence on the logit of this token at the end, e.g. " Mary".')
    ] = None,
    instead: Annotated[str | None, typer.Option(help="Less the logit of this one.")] = None,
    cut: Annotated[
        str | None,
        typer.Option(help="Say what the target is without a head, 23.3, or without one of its edges, 23.3:-1:9."),
    ] = None,
    spans: Annotated[
        str | None, typer.Option(help="Parts of the text by characters: question=0:40,answer=41:60.")
    ] = None,
    device: Annotated[str, typer.Option(help=HELP)] = "cpu",
) -> None:
    """Say what a model attended to in a text, and keep it as a folder or a page."""
    content = read(text)
    # These take rich along, which other commands do not wait for.
    from rich.console import Console

    from sightline.cli import mattered
    from sightline.cli.account import account

    edits = edited.check(cut, target)
    reads = of in ("influence", "pull")
    mattered.check(of, target if reads or edits is None else None, instead if reads or edits is None else None)
    given = mattered.parts(spans, len(content))
    model = model or ("minilm" if target is None else "smollm2")
    as_page = out is not None and out.suffix.lower() in (".html", ".htm")
    if out is not None:
        check(out, as_page)
    known = Models([model], device=device)
    name = known.first()
    with folder(None if as_page else out) as place:
        wanted = None if target is None else mattered.target_of(*known.get(name)[::-1], name, target, instead)
        aim = Aim(target, instead or "") if reads and target is not None else None
        run, y = watched_run(known, name, content, layers, place, wanted if reads else None, aim)
        console = Console(highlight=False)
        less = "" if instead is None else f" less that of {instead!r}"
        what = f"{name}: the logit of {target!r}{less}"
        if of == "weights":
            layer, head = account(run, heads, console)
        else:
            said = "" if y is None else f"{what} is {y:.2f}"
            layer, head = mattered.heads(load(place), of, heads, said, console)
        if given is not None:
            mattered.spans(load(place), given, of, console)
        if edits is not None and wanted is not None:
            typer.echo("\n" + "\n".join(edited.changed(*known.get(name), content, wanted, edits, what)))
        if as_page:
            assert out is not None
            write(out, run)
        typer.echo()
        if out is not None:
            hint = "open it in a browser" if as_page else f"sightline serve {out}"
            typer.echo(f"Kept in {out}: {hint}")
        else:
            typer.echo(
                "Next, every head as a map in a browser:\n  sightline look TEXT --out FOLDER && sightline serve FOLDER"
            )
        steps = f"sightline steps TEXT --model {model} --layer {layer} --head {head}"
        typer.echo(f"How its weights come about, number by number:\n  {steps}")


def read(text: str) -> str:
    """The text itself, that of a file, or what comes in; empty and endless ones are refused."""
    if text == "-":
        content = sys.stdin.buffer.read(LARGEST + 1)
    elif _is_file(text):
        with open(text, "rb") as file:
            content = file.read(LARGEST + 1)
    else:
        content = text.encode("utf-8", "replace")
    if len(content) > LARGEST:
        raise InputError(
            "this text is too long",
            expected=f"at most {LARGEST:,} bytes",
            got=f"{LARGEST + 1:,} or more",
            hint="a part of it",
        )
    try:
        found = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "this is not text", expected="UTF-8", got=f"a byte at {error.start} that is none", hint="a text file"
        ) from error
    if not found.strip():
        raise InputError("there is no text", expected="a word or more", got="nothing", hint=f'"{EXAMPLE}"')
    return found


def _is_file(text: str) -> bool:
    try:
        return len(text) < 4096 and Path(text).is_file()
    except (OSError, ValueError):
        return False  # too long for a name, or with signs no name has: it is the text


def check(out: Path, as_page: bool) -> None:
    """Refuse a target that cannot be written, before the model runs."""
    parent = out.parent
    if not parent.is_dir():
        raise InputError(
            "there is no such folder", expected="a folder that exists", got=str(parent), hint="make it first"
        )
    if as_page and out.is_dir():
        raise InputError("this is a folder", expected="a file", got=str(out), hint="another name")
    if not os.access(out if out.exists() else parent, os.W_OK):
        raise InputError("this cannot be written", expected="a place to write to", got=str(out), hint="another")


@contextmanager
def folder(out: Path | None) -> Iterator[Path]:
    """Where the run is written: the folder asked for, or one that is removed at the end."""
    if out is not None:
        yield out
        return
    place = Path(tempfile.mkdtemp(prefix="sightline-"))
    try:
        yield place / "run"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def watched_run(
    models: Models,
    name: str,
    text: str,
    layers: str | None,
    place: Path,
    target: Any = None,
    aim: Aim | None = None,
) -> tuple[Run, float | None]:
    """Run the model with a progress bar on the standard error, if someone looks at it; and what the target is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"loading {name}", total=None)

        def report(stage: str = "", done: int | None = None, total: int | None = None, **_: Any) -> None:
            progress.update(task, description=stage, completed=done or 0, total=total)

        model, tokenizer = models.get(name)
        y = watched(model, tokenizer, RunRequest(text, name, layers), place, report, target=target, aim=aim)
    return as_run("look", load(place), origin=place.name), y


def write(out: Path, run: Run) -> None:
    """The report, whole or not at all."""
    content = report_page(run)
    write_whole(out, lambda file: file.write_bytes(content))
