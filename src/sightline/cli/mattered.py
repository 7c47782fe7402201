"""Readings beyond the weights, told in the terminal: heads by what mattered or was carried, and parts of the text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sightline.cli.picture import word
from sightline.errors import InputError
from sightline.targets import Target, logit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sightline.watching import Seen

READINGS = ("weights", "norms", "influence", "pull")
SAID = {
    "influence": "Heads by influence: how much their cells together raise it; behind it the cell that did most",
    "pull": "Heads by pull: how much it would take to move their weights; behind it the cell that pulls most",
    "norms": "Heads by norms: how much they carry for a query; behind it the cell that carries most",
}
# Columns of a name of a head, of a number, and of the longest name of a span.
NAME, NUMBER, LONGEST = len("L999 H99 "), 8, 16


def check(of: str, target: str | None, instead: str | None) -> None:
    """Refuse what does not go together, before a model is loaded."""
    if of not in READINGS:
        raise InputError(
            "unknown reading", expected=f"one of {', '.join(READINGS)}", got=repr(of), hint="--of influence"
        )
    if of in ("influence", "pull") and target is None:
        raise InputError(f"{of} is of something", expected="--target TOKEN", got="no target", hint='--target " Mary"')
    if of not in ("influence", "pull") and (target or instead):
        raise InputError(
            "a target has an influence", expected="--of influence or --of pull", got=f"--of {of}", hint="--of influence"
        )


def target_of(tokenizer: Any, model: Any, name: str, target: str, instead: str | None) -> Target:
    """The logit of a token at the end of the text, or how much larger it is than another's."""
    if not hasattr(model, "generate") or tokenizer is None:
        raise InputError(
            f"{name} does not say what comes next",
            expected="a causal model with a tokenizer",
            got=name,
            hint="--model smollm2",
        )
    return logit(_id(tokenizer, target), None if instead is None else _id(tokenizer, instead))


def _id(tokenizer: Any, text: str) -> int:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if len(encoding.ids) != 1:
        pieces = ", ".join(map(repr, encoding.tokens[:6])) or "nothing"
        raise InputError(
            f"{text!r} is not one token",
            expected="one token, most often with its space in front",
            got=f"{len(encoding.ids)}: {pieces}",
            hint=f'" {text.strip()}"' if not text.startswith(" ") and text.strip() else "its first piece",
        )
    return int(encoding.ids[0])


def parts(spans: str | None, length: int) -> dict[str, tuple[int, int]] | None:
    """Named parts of a text of so many characters, as people write them: `question=0:40,answer=41:60`.

    >>> parts("question=0:40,answer=41:", 60)
    {'question': (0, 40), 'answer': (41, 60)}
    """
    if spans is None:
        return None
    found: dict[str, tuple[int, int]] = {}
    for part in spans.split(","):
        match = re.fullmatch(r"\s*([^=,:]+?)\s*=\s*(\d*)\s*:\s*(\d*)\s*", part)
        start, stop = (0, 0) if match is None else (int(match[2] or 0), int(match[3] or length))
        if match is None or match[1] in found or not 0 <= start < stop <= length:
            raise InputError(
                "this is not a part of the text",
                expected=f"name=start:end in characters, from 0 to {length}, each name once",
                got=part.strip()[:60] or "nothing",
                hint="--spans question=0:40,answer=41:60",
            )
        found[match[1]] = (start, stop)
    return found


def heads(seen: Seen, of: str, count: int, said: str, console: Console) -> tuple[int, int]:
    """The heads that a reading is largest of, each with its strongest cell; gives the first, by the model's numbers."""
    table = _table()
    rows = sorted(_heads(seen, of), key=lambda row: -abs(row[2]))
    if said:
        console.print(Text(said, style="bold"))
    console.print(Text(SAID[of], style="italic"))
    tokens = (seen.tokens or [[]])[0]
    for layer, head, total, (query, key, value) in rows[:count]:
        places = f" ({query:,})", f" ({key:,})"
        number = f"{value:+.3f}" if of != "norms" else f"{value:.3f}"
        room = console.width - NAME - NUMBER - len(" → ") - len(number) - 1 - sum(map(len, places))
        names = [word(tokens[i], max(4, room // 2)) if i < len(tokens) else "" for i in (query, key)]
        edge = Text(f"{names[0]}{places[0]} → {names[1]}{places[1]} ")
        edge.append(number, style="bold")
        table.add_row(f"L{layer} H{head}", f"{total:+.2f}" if of != "norms" else f"{total:.2f}", edge)
    console.print(table)
    if of == "norms":
        console.print(Text(f"norms of {seen[0].norms_of}", style="dim"))
    return rows[0][0], rows[0][1]


def _heads(seen: Seen, of: str) -> list[tuple[int, int, float, tuple[int, int, float]]]:
    found = []
    for name in seen.layers:
        sight = seen[name]
        if of == "norms":
            totals = sight.received(of="norms").sum(-1)[0] / sight.shape[-2]
        elif of == "pull":
            totals = sight.received(of="pull", reduce="magnitude").sum(-1)[0]
        else:
            totals = sight.influence.sum(-1)[0]
        keys, values = sight.top(1, of=of)
        for i, head in enumerate(seen.heads(name)):
            query = int(values[0, i, :, 0].abs().argmax())
            edge = query, int(keys[0, i, query, 0]), float(values[0, i, query, 0])
            found.append((seen.number(name), head, float(totals[i]), edge))
    return found


def spans(seen: Seen, given: dict[str, tuple[int, int]], of: str, console: Console) -> None:
    """What parts of the text have of each other, all layers together, and what each layer has of each part."""
    between = seen.spans(given, given, of)
    first = next(iter(between.values()))
    how = "summed over heads" if of in ("influence", "pull") else "mean over heads"
    console.print(
        Text(f"\n{of} of parts of the text, {how}: queries down, keys across, layers together", style="italic")
    )
    every = between.together()
    table = every.sum(0) if of in ("influence", "pull") else every.mean(0)
    console.print(_numbers("query", first.queries, first.keys, table.tolist(), console.width))
    console.print(Text("\nThe same of all queries, layer by layer", style="italic"))
    layers = seen.spans(given, None, of).together()[:, 0].tolist()
    names = [f"L{seen.number(name)}" for name in seen.layers]
    console.print(_numbers("layer", names, first.keys, layers, console.width))


def _numbers(what: str, rows: Sequence[str], columns: Sequence[str], table: list, width: int) -> Table:
    """A table of numbers in at most so many columns of the terminal: of many parts the first."""
    label = min(max(map(len, (what, *rows))), LONGEST)
    widths = [max(min(len(name), LONGEST), NUMBER) + 1 for name in columns]
    shown = len(columns)
    while shown > 1 and label + 1 + sum(widths[:shown]) > width:
        shown -= 1
    found = _table(header=True)
    found.add_column(what, no_wrap=True)
    for name in columns[:shown]:
        found.add_column(word(name, LONGEST), justify="right", no_wrap=True, min_width=NUMBER)
    for name, row in zip(rows, table):
        found.add_row(word(name, LONGEST), *(f"{x:.3f}" for x in row[:shown]))
    if shown < len(columns):
        found.caption = f"{len(columns) - shown} more parts do not fit"
        found.caption_justify = "left"
    return found


def _table(header: bool = False) -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), show_header=header, pad_edge=False)
