"""`sightline ladder`: train every rung on the same text, and see what each step up is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.devices import HELP, find_device
from sightline.lessons import ladder as lesson
from sightline.lessons.ladder import RUNGS, checkpoint, climb, report
from sightline.plots.canvas import style


def ladder(
    text: Annotated[
        Path | None, typer.Option(help="A text file in UTF-8. Without it: the help on Python that Python ships.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the table, the curves and the checkpoint.", file_okay=True)
    ] = Path("sightline-ladder"),
    seed: Annotated[int, typer.Option(help="Of the first weights and of the batches.", min=0)] = 0,
    seeds: Annotated[
        int, typer.Option(help="Ladders, each with a seed of its own; says how much seeds differ.", min=1)
    ] = 1,
    steps: Annotated[int | None, typer.Option(help="Training steps of each rung.", min=1)] = None,
    device: Annotated[str, typer.Option(help=HELP)] = "auto",
    threads: Annotated[int, typer.Option(help="Of the CPU. Other numbers give other last digits.", min=1, max=256)] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes: small models, few steps.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from the first rung, whatever is in the folder.")
    ] = False,
) -> None:
    """Train nine models on the same text, each with one thing more than the one before, and compare them.

    No communication, the average of the past, attention without weights, one head, several heads, a feed-forward
    network, residuals and norms, positions, several layers: every rung has the same steps, batches and learning rates.

    About four minutes on one core. Stop it whenever you like, even with kill -9: the same command goes on where it
    was and ends with the same table. On the CPU the same seed and threads give the same table every time.
    """
    from rich.console import Console

    with style():  # pictures come last: better to hear now that they cannot be drawn
        pass
    sizes: dict[str, Any] = dict(lesson.QUICK) if quick else {}
    if steps is not None:
        sizes["steps"] = steps
    device = find_device(device)
    settings = lesson.Settings(**sizes, seed=seed, threads=threads, device=device)
    words = lesson.python_text() if text is None else lesson.read_text(text)
    if quick:
        words = words[: lesson.QUICK_CHARACTERS]
    read = lesson.make_text("pydoc_data.topics" if text is None else text.name, words, settings.context)
    checkpoint.prepare(out, fresh)
    checkpoint.load(out, checkpoint.identity(read, settings))  # another ladder's folder is refused first

    console = Console()
    console.print(
        f"{report.printable(read.name)}: {len(words):,} characters, {len(read.alphabet)} of them different; "
        f"the last {len(read.held_out):,} are held out.",
        f"Each rung reads {settings.characters:,} characters in {settings.steps} steps on {settings.device}.",
        sep="\n",
        highlight=False,
        markup=False,
    )
    rungs = _climb(console, read, settings, out)
    made = report.write(out, rungs, read, settings)
    ladders = [rungs]
    for other in range(seed + 1, seed + seeds):
        console.print(f"Seed {other}:", highlight=False)
        place = out / f"seed-{other}"
        checkpoint.prepare(place, fresh)
        again = lesson.Settings(**sizes, seed=other, threads=threads, device=device)
        ladders.append(_climb(console, read, again, place))
        made += report.write(place, ladders[-1], read, again)
    _show(console, rungs)
    if seeds > 1:
        console.print("\n".join(report.verdicts(ladders)), highlight=False, markup=False)
    console.print(f"Written: {', '.join(str(path) for path in made)}", highlight=False, markup=False, soft_wrap=True)


def _climb(console: Any, text: Any, settings: Any, out: Path) -> list[dict[str, Any]]:
    """Train with one bar for each rung."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        width = max(len(rung.name) for rung in RUNGS)
        bars = [
            progress.add_task(rung.name.ljust(width), total=settings.steps, start=False, loss="           ")
            for rung in RUNGS
        ]

        def listen(rung: int, step: int, loss: float | None) -> None:
            progress.start_task(bars[rung])
            shown = "" if loss is None else f"loss {loss:.3f}"
            progress.update(bars[rung], completed=step, loss=shown.ljust(11))

        return climb(text, settings, out, listen)


def _show(console: Any, rungs: list[dict[str, Any]]) -> None:
    """The table, what it says, and a sample of the best."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD, caption="loss: nats per character of the held-out part; better by: than the rung below"
    )
    for index, name in enumerate(report.COLUMNS):
        table.add_column(name, justify="left" if index < 2 else "right")
    for row in report.rows(rungs):
        table.add_row(*(Text(cell) for cell in row))
    chosen = report.best(rungs)
    console.print(table)
    console.print(report.summary(rungs), highlight=False)
    console.print(f"\nAs the rung '{chosen['name']}' writes:\n", highlight=False)
    console.print(Text(report.printable(chosen["sample"]), style="italic"))
    console.print()
