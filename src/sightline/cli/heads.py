"""`sightline heads`: a census of what the heads of a model are, and what it loses without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.census import Census, census
from sightline.census.page import page
from sightline.cli.look import check, read
from sightline.devices import HELP
from sightline.errors import InputError
from sightline.explore.model_runs import Models
from sightline.files import write_whole
from sightline.watching.read.measures import OF_MAPS

TEXTS = (
    "When Mary and John went to the store, John gave a drink to Mary. Then Mary thanked John and went home.",
    "The capital of France is Paris, and the capital of Italy is Rome. The capital of Spain is Madrid.",
    "The kids were scared of the lions, so they left right away. The lions did not follow them.",
)
MEASURES = (*OF_MAPS, "retrieval", "influence", "effect")


def heads(
    model: Annotated[str, typer.Argument(help="smollm2, or a folder with a checkpoint of a causal model.")] = "smollm2",
    texts: Annotated[
        Path | None, typer.Option(help="A file with texts, a paragraph each; a few sentences if left out.")
    ] = None,
    rank: Annotated[str, typer.Option(help=f"What heads are ranked by: {', '.join(MEASURES)}.")] = "effect",
    n: Annotated[int, typer.Option("--heads", help="Heads in the table.", min=1, max=10000)] = 20,
    out: Annotated[Path | None, typer.Option(help="Keep it as a page: heads.html.")] = None,
    device: Annotated[str, typer.Option(help=HELP)] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """Measure every head of a language model: what it looks at, and what the model loses without it."""
    if rank not in MEASURES:
        raise InputError(
            "heads are ranked by a measure",
            expected=f"one of {', '.join(MEASURES)}",
            got=repr(rank),
            hint="--rank effect",
        )
    if out is not None:
        check(out, as_page=True)
    content = TEXTS if texts is None else [one for one in read(str(texts)).split("\n\n") if one.strip()]
    if texts is not None and not texts.is_file():
        raise InputError("there is no such file", expected="a file with texts", got=str(texts), hint="--texts FILE")
    known = Models([model], device=device)
    loaded, tokenizer = known.get(known.first())
    if not hasattr(loaded, "generate") or tokenizer is None:
        raise InputError(
            f"{model} does not say what comes next",
            expected="a causal model with a tokenizer",
            got=model,
            hint="sightline heads smollm2",
        )
    ids = [tokenizer.encode(one).ids for one in content]

    def write(prompt: Any, count: int) -> list[int]:
        new: list[int] = loaded.generate(prompt.tolist(), max_new_tokens=count, eos=())
        return new

    found = census(loaded, ids, vocabulary=loaded.embedding.num_embeddings, generate=write)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        _tell(found, rank, n)
    if out is not None:
        whole = page(found, model, rank)
        write_whole(out, lambda file: file.write_text(whole, encoding="utf-8"))
        typer.echo(f"Kept in {out}: open it in a browser", err=as_json)
    if not found.complete:
        raise typer.Exit(130)


def _tell(found: Census, rank: str, n: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if rank not in found.table:
        console.print(f"It was interrupted before {rank} was measured: {', '.join(found.table) or 'nothing'} is there.")
        return
    names: list[Any] = [name for name in MEASURES if name in found.table]
    table = Table("layer", "head", *names, box=None)
    for layer, head in found.ranked(rank)[:n]:
        table.add_row(str(layer), str(head), *(f"{float(found.table[name][layer, head]):.3f}" for name in names))
    console.print(f"Heads by {rank}; influence and effect: how much the head raises the loss, below 0 it lowers it")
    console.print(table)
    if found.curves:
        console.print(f"\nLoss {found.loss:.3f} nats a token; with heads removed, in the order of")
        counts = [count for count, _ in next(iter(found.curves.values()))]
        lines = Table("", *map(str, counts), box=None)
        for name, points in found.curves.items():
            lines.add_row(name, *(f"{y:.3f}" for _, y in points))
        console.print(lines)
