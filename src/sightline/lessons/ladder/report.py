"""What came out of a ladder: the table, the curves, and samples, as text, data and pictures."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sightline import plots
from sightline.files import write_whole
from sightline.lessons.ladder.settings import Settings
from sightline.lessons.ladder.text import Text

COLUMNS = ("rung", "what it adds", "parameters", "loss", "better by")
# Nats by which a step must be better to have helped, and by which a rung may be worse and still be called as good: what
# another seed changes in a step of the full ladder (a test compares it with the committed results).
ALLOWED = 0.01
# Why a step may not help.
WHY = {
    "weight-free": """nothing in it can be learned but the embeddings, and they serve as what is read and as what
        decides where to look. A character is most like itself, and looks there, where it knows all. Only learned q and
        k can ask for something else than likeness""",
    "several heads": "each of several heads is narrower than the one, and a short training cannot use them",
    "feed-forward": """it stands alone behind the heads: all that they gathered must pass through it, and the way around
        it comes with the next rung""",
    "residuals and norms": "in one layer there is little to go around; they are what makes several layers trainable",
    "positions": "a training too short to learn what lies one character back",
    "several layers": "more to learn in the same number of steps",
}


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
    """How far the ladder went, which steps helped, and why one may not have."""
    gain = rungs[1]["loss"] - rungs[-1]["loss"]
    line = f"From {rungs[1]['name']} to {rungs[-1]['name']}: {gain:.2f} nats per character better."
    worse = not_better(rungs)
    line += f" Not better than the rung below: {', '.join(worse)}." if worse else ""
    return "\n".join([line, *verdicts([rungs])])


class Gain(NamedTuple):
    """What one step up brought, seed by seed, in nats per character."""

    name: str
    gains: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.gains)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; for one seed, what is known of the full ladder."""
        return statistics.stdev(self.gains) if len(self.gains) > 1 else ALLOWED / 2

    @property
    def verdict(self) -> str:
        """A step helped if it did with every seed, and by more than twice the spread of seeds.

        >>> Gain("one head", [0.06, 0.05, 0.07]).verdict, Gain("weight-free", [-0.001, 0.001]).verdict
        ('helped', 'no difference')
        """
        if not math.isfinite(self.mean):
            return "failed"
        if abs(self.mean) <= 2 * self.spread or min(self.gains) <= 0 < max(self.gains):
            return "no difference"
        return "helped" if self.mean > 0 else "worse"


def gains(ladders: Sequence[Sequence[dict[str, Any]]]) -> list[Gain]:
    """Of each step up what it brought in each of several ladders, which differ in their seed alone.

    >>> [(gain.name, gain.mean) for gain in gains([[{"name": "a", "loss": 2.0}, {"name": "b", "loss": 1.5}]])]
    [('b', 0.5)]
    """
    steps = zip(*(pairwise(rungs) for rungs in ladders))
    return [Gain(step[0][1]["name"], [below["loss"] - rung["loss"] for below, rung in step]) for step in steps]


def verdicts(ladders: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """Which steps helped, by how much against the spread of seeds, and why one may not have; a line for each."""
    found = gains(ladders)
    seeds = (
        f"over {len(ladders)} seeds, ± their spread" if len(ladders) > 1 else "one seed; another changes it by ± 0.01"
    )
    lines = [f"Which step helped (nats per character; {seeds}):"]
    for gain in found:
        spread = f" ± {gain.spread:.4f}" if len(ladders) > 1 else ""
        lines.append(f"  {gain.name}: {gain.mean:+.4f}{spread}, {gain.verdict}")
        if gain.verdict not in ("helped", "failed") and gain.name in WHY:
            lines.append(f"      why it may not: {' '.join(WHY[gain.name].split())}.")
    return lines


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
