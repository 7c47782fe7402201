"""`sightline steps`: the table of the worked example (S2.4) for any sentence, untrained or by a trained head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.devices import HELP, find_device
from sightline.errors import InputError
from sightline.models.loading import load
from sightline.steps import explain as steps_of
from sightline.steps import explain_words
from sightline.steps.html import check_target
from sightline.steps.labels import find

if TYPE_CHECKING:
    from sightline.steps import Steps

# Of a sentence with more words one has to be chosen: each has a table of its own.
TABLES = 64
CHARACTERS = 200_000


def steps(
    text: Annotated[str, typer.Argument(help="A sentence; - reads it from the standard input.")],
    model: Annotated[str | None, typer.Option(help="A trained model: minilm, smollm2 or a folder.")] = None,
    layer: Annotated[int, typer.Option(help="Which layer of the model, counted from 0.")] = 0,
    head: Annotated[int, typer.Option(help="Which head of the layer, counted from 0.")] = 0,
    query: Annotated[
        list[str] | None, typer.Option(help="Only the table of this word, or position.", metavar="<str>")
    ] = None,
    top: Annotated[int, typer.Option(help="Keys in a table; the others are added up in one line.")] = 16,
    seed: Annotated[int, typer.Option(help="Other random numbers, where no model is used.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    device: Annotated[str, typer.Option(help=HELP)] = "cpu",
) -> None:
    """Show how attention works on a sentence, number by number.

    Without a model, embeddings and weights are random: nothing was learned.
    """
    sentence, device = read(text), find_device(device)
    if html is not None:
        check_target(html)
    made = untrained(sentence, seed, head) if model is None else trained(sentence, model, layer, head, device)
    chosen = choose(made, query)
    if html is not None:
        made.save_html(html, queries=chosen, top=top)
        typer.echo(f"{html}: {len(chosen)} tables, {html.stat().st_size / 1024:,.0f} KiB")
        return
    made.print(queries=chosen, top=top)


def read(text: str) -> str:
    """The sentence, from the command line or the standard input; empty and endless ones are refused."""
    if text == "-":
        # One character more than allowed is enough to know.
        text = sys.stdin.buffer.read(4 * (CHARACTERS + 1)).decode("utf-8", "replace")
    if len(text) > CHARACTERS:
        raise InputError(
            "this text is too long to be shown step by step",
            expected=f"at most {CHARACTERS:,} characters",
            got=f"{len(text):,} or more",
            hint="a sentence; sightline look takes long texts",
        )
    if not text.strip():
        raise InputError("there are no words", expected="a sentence", got="none", hint='"Action gets results"')
    return text


def untrained(sentence: str, seed: int, head: int) -> Steps:
    """One head of random weights on random embeddings."""
    if head:
        raise InputError(
            "there is no such head", expected="0: without a model there is one", got=head, hint="--model minilm"
        )
    return explain_words(sentence, seed=seed)


def trained(sentence: str, name: str, layer: int, head: int, device: str = "cpu") -> Steps:
    """One head of a trained model, on any sentence."""
    model, tokenizer = load(name, device=device)
    made = steps_of(model, sentence, layer=layer, head=head, tokenizer=None if hasattr(model, "batch") else tokenizer)
    made.title = f"{name}: layer {layer}, head {head}"
    made.notes = (f"The sentence: {sentence.strip()}", *made.notes)
    return made


def choose(made: Steps, queries: list[str] | None) -> list[int]:
    """The positions of the words asked for, of all if none are; a word that stands twice has two."""
    if not queries:
        if len(made.labels) > TABLES:
            raise InputError(
                "every word would have a table of its own",
                expected=f"at most {TABLES} words, or one chosen",
                got=f"{len(made.labels):,} words",
                hint=f"--query {len(made.labels) - 1}, a word or its position",
            )
        return list(range(len(made.labels)))
    found = []
    for query in queries:
        try:
            found += find(made.labels, query)
        except InputError:
            if not query.removeprefix("-").isdecimal():
                raise
            found += find(made.labels, int(query))
    return found
