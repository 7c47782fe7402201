"""The map of a head in a terminal: rows are queries, columns are keys, and both are labelled."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from sightline.explore import thumbs
from sightline.explore.run import Run

# Colours of the map from nothing to all, dark to light: magma, in steps a terminal can show.
RAMP = ("#1d1147", "#51127c", "#832681", "#b73779", "#e75263", "#fc8961", "#fec488", "#fcfdbf")
SHADES = " .:-=+*#%@"
# Bins of a map that is pooled, and queries of one that is not: each has a line and its token beside it.
WIDEST, TALLEST = 48, 32
# Letters of a token, and of its position before it.
NAME, PLACE = 10, 3
# Columns between two positions over the map, and lines between two beside it.
TICK, LINES = 5, 4


def head_name(run: Run, layer: int, head: int) -> str:
    """A head as the explorer writes it, with the model's own numbers: L3 H1."""
    about = run.layers[layer]
    return f"L{about.number} H{about.numbers[head]}"


def word(token: str, most: int = 1000) -> str:
    """A token that takes one line of a terminal, and at most so many columns of it.

    >>> word(" the"), word("\\n"), word(" "), word("antidisestablishmentarianism", 8)
    ('the', '⏎', '␣', 'antidis…')
    """
    shown = token.replace("\n", "⏎").replace("\t", "⇥").strip(" ") or "␣"
    shown = "".join(sign if sign.isprintable() else "?" for sign in shown)
    return shown if cell_len(shown) <= most else f"{set_cell_size(shown, most - 1).rstrip()}…"


def picture(run: Run, layer: int, head: int, console: Console) -> Text:
    """A heading, the positions of keys, a line for every query (or two, or more), and what the signs mean."""
    about = run.layers[layer]
    letters = console.color_system is None
    room = console.width - PLACE - NAME - 2
    whole = about.queries <= TALLEST and 2 * about.keys <= room
    gutter = PLACE + NAME + 2 if whole else len(f"{max(about.queries, about.keys):,}") + 1
    wide = 2 if whole or letters else 1  # signs a column
    side = max(about.queries, about.keys) if whole else max(8, min(WIDEST, (console.width - gutter) // wide))
    codes, _ = thumbs.thumb(run.view(layer, head).pyramid, side)
    bins = tuple(_bin(n, side) for n in (about.queries, about.keys))
    rows, columns = -(-about.queries // bins[0]), -(-about.keys // bins[1])
    weights = thumbs.decode(codes[:rows, :columns])
    floor = 0.1 / max(about.keys, 1)
    place = np.clip(np.log(np.maximum(np.nan_to_num(weights), 1e-12) / floor) / -np.log(floor), 0, 1)

    text = Text(no_wrap=True, overflow="crop")
    text.append(head_name(run, layer, head), style="bold")
    text.append(": queries down, keys across, by position")
    text.append("\n" if bins == (1, 1) else f"; a sign is the mean of {bins[0]} x {bins[1]}\n")
    text.append(" " * gutter + _ticks(columns, bins[1], wide) + "\n", style="dim")
    step = 1 if whole or letters else 2
    for row in range(0, rows, step):
        if whole:
            token = set_cell_size(word(run.labels.texts[row], NAME), NAME)
            text.append(f"{row:>{PLACE}} {token} ", style="dim" if run.labels.kinds[row] & 1 else "")
        else:
            at = f"{row * bins[0]:,}" if row // step % LINES == 0 else ""
            text.append(f"{at:>{gutter - 1}} ", style="dim")
        if letters:
            text.append("".join(wide * sign for sign in _signs(weights[row], place[row])).rstrip())
        elif whole:
            for i in range(columns):
                text.append("██" if not np.isnan(weights[row, i]) else "  ", style=_color(place[row, i]))
        else:
            _half_blocks(text, weights[row : row + 2], place[row : row + 2])
        text.append("\n")
    least = f"{floor ** (1 - 1 / len(SHADES if letters else RAMP)):.2g}"
    if letters:
        text.append(f"weight: blank below {least} or hidden, then {' '.join(SHADES[1:])} up to 1", style="dim")
    else:
        text.append(f"weight: below {least} ", style="dim")
        for color in RAMP:
            text.append("█", style=color)
        text.append(" 1, nothing where hidden", style="dim")
    return text


def _bin(n: int, side: int) -> int:
    """How many cells a bin holds: the least power of two with which there are at most `side` bins."""
    size = 1
    while -(-n // size) > side:
        size *= 2
    return size


def _ticks(columns: int, size: int, wide: int) -> str:
    """Positions over the columns, each where its column begins.

    >>> _ticks(12, 1, 2)
    '0         5         10'
    """
    line = ""
    for column in range(0, columns, TICK):
        if len(line) <= column * wide:
            line = line.ljust(column * wide) + f"{column * size:,} "
    return line.rstrip()


def _signs(weights: np.ndarray, place: np.ndarray) -> list[str]:
    last = len(SHADES) - 1
    return [
        " " if np.isnan(w) else SHADES[min(int(x * len(SHADES)), last)] for w, x in zip(weights, place, strict=True)
    ]


def _half_blocks(text: Text, weights: np.ndarray, place: np.ndarray) -> None:
    """Two rows in one line."""
    for column in range(weights.shape[1]):
        upper, lower = (
            _color(place[i, column]) if i < len(weights) and not np.isnan(weights[i, column]) else None for i in (0, 1)
        )
        if upper is None:
            text.append(" " if lower is None else "▄", style=lower)
        else:
            text.append("▀", style=upper if lower is None else f"{upper} on {lower}")


def _color(place: float) -> str:
    return RAMP[min(int(place * len(RAMP)), len(RAMP) - 1)]
