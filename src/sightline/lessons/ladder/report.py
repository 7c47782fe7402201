"""What came out of a ladder: the table, the curves, and samples, as text, data and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from sightline import plots
from sightline.files import write_whole
from sightline.lessons.ladder.settings import Settings
from sightline.lessons.ladder.text import Text

COLUMNS = ("rung", "what it adds", "parameters", "loss", "better by")
ALLOWED = 0.01  # nats by which a rung may be worse than the one below and still be called as good


def rows(rungs: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table: a row for each rung, with its loss in nats per held-out character. Times are not part of it.

    >>> rung = {"name": "average", "adds": "the past", "parameters": 1200, "loss": 2.5}
    >>> rows([rung, {**rung, "name": "one head", "loss": 2.25}])
    [('average', 'the past', '1,200', '2.5000', ''), ('one head', 'the past', '1,200', '2.2500', '0.2500')]
    """
    below = [None, *(rung["loss"] for rung in rungs)]
    return [
        (
            rung["name"],
            rung["adds"],
            f"{rung['parameters']:,}",
            f"{rung['loss']:.4f}",
            "" if before is None else f"{before - rung['loss']:.4f}",
        )
        for rung, before in zip(rungs, below)
    ]


def as_text(rungs: Sequence[dict[str, Any]]) -> str:
    """The table in plain characters."""
    table = [COLUMNS, *rows(rungs)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in table
    ]
    return "\n".join(line.rstrip() for line in [lines[0], "-" * len(lines[0]), *lines[1:]]) + "\n"


def best(rungs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rung with the lowest loss."""
    return min(rungs, key=lambda rung: rung["loss"])


def printable(words: str) -> str:
    """Text as it may be printed: what would give orders to a terminal is replaced.

    >>> printable("a\\x1b[2Jb\\n")
    'a�[2Jb\\n'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in words)


def not_better(rungs: Sequence[dict[str, Any]]) -> list[str]:
    """The rungs that are worse than the one below them by more than 0.01 nats.

    >>> not_better([{"name": "a", "loss": 2.0}, {"name": "b", "loss": 2.005}, {"name": "c", "loss": 2.1}])
    ['c']
    """
    return [after["name"] for before, after in pairwise(rungs) if not after["loss"] <= before["loss"] + ALLOWED]


def summary(rungs: Sequence[dict[str, Any]]) -> str:
    """One line: how far the ladder went, and where it did not go up."""
    gain = rungs[1]["loss"] - rungs[-1]["loss"]
    line = f"From {rungs[1]['name']} to {rungs[-1]['name']}: {gain:.2f} nats per character better."
    worse = not_better(rungs)
    return line + (f" Not better than the rung below: {', '.join(worse)}." if worse else "")


def write(folder: Path, rungs: Sequence[dict[str, Any]], text: Text, settings: Settings) -> list[Path]:
    """The table (.txt), everything (.json) and the curves (.png, .svg) in a folder; each file is whole or not there."""
    title = f"{text.name}: {settings.characters:,} characters per rung, seed {settings.seed}"
    figure = plots.curves({rung["name"]: rung["curve"] for rung in rungs}, title=title)
    chosen = best(rungs)
    sample = f"As the rung '{chosen['name']}' writes:\n\n{printable(chosen['sample'])}"
    words = f"{as_text(rungs)}\n{summary(rungs)}\n\n{sample}\n"
    data = {
        "text": {"name": text.name, "sha256": text.digest, "alphabet": len(text.alphabet)},
        "settings": settings.as_dict(),
        "torch": torch.__version__,
        "rungs": list(rungs),
    }
    made = [folder / f"ladder.{ending}" for ending in ("txt", "json", "png", "svg")]
    write_whole(made[0], lambda file: file.write_text(words, encoding="utf-8"))
    write_whole(made[1], lambda file: file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8"))
    for path in made[2:]:
        plots.save(figure, path)
    return made
