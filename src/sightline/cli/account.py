"""A run told in the terminal: its tokens, what its heads are like, the strongest links, and a small map."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sightline.explore import measures, thumbs
from sightline.explore.links import Link, strongest_link
from sightline.explore.run import Run

# Colours of the map from nothing to all, dark to light: magma, in steps a terminal can show.
RAMP = ("#1d1147", "#51127c", "#832681", "#b73779", "#e75263", "#fc8961", "#fec488", "#fcfdbf")
SHADES = " .:-=+*#%@"
WIDEST = 48
TOKENS = 400
UNSEEN = 8
# Links are looked for in every head of maps up to this size, and in the listed heads alone above it.
SMALL = 512 * 512


def account(run: Run, heads: int = 8, console: Console | None = None) -> None:
    """Say what a run shows, in at most a screen or two."""
    console = console or Console(highlight=False)
    measured, _ = measures.measure(run)
    order = measures.ranked(measured)
    about = run.about()
    console.print(
        f"[bold]{escape(str(about['model']))}[/]: {about['tokens']:,} tokens, "
        f"{len(run.layers)} layers, {len(order)} heads\n"
    )
    if run.unseen:
        _say_unseen(run.unseen, console)
    console.print(_tokens(run))
    small = run.layers[0].queries * run.layers[0].keys <= SMALL
    looked = sorted(order) if small else order[:heads]
    links = {place: strongest_link(run.view(*place), run.special_keys(run.layers[place[0]])) for place in looked}
    console.print(_portraits(run, measured, order[:heads], links))
    found = sorted(((link, place) for place, link in links.items() if link), key=lambda pair: -pair[0].weight)
    console.print(_links(run, found[:heads]))
    layer, head = order[0]
    number, numbers = run.layers[layer].number, run.layers[layer].numbers
    console.print(f"[bold]Layer {number} head {numbers[head]}[/], queries down, keys across")
    console.print(_map(run, layer, head, console))


def _say_unseen(unseen: dict[str, str], console: Console) -> None:
    """What attended without being seen: each reason once, and under it who gave it."""
    groups: dict[str, list[str]] = {}
    for name, reason in unseen.items():
        groups.setdefault(reason, []).append(name)
    modules = "module" if len(unseen) == 1 else "modules"
    console.print(Text(f"{len(unseen):,} {modules} attended without being seen:", style="bold"))
    for reason, names in list(groups.items())[:UNSEEN]:
        more = f" and {len(names) - UNSEEN:,} more" if len(names) > UNSEEN else ""
        console.print(Padding.indent(Text(reason), 2))
        console.print(Padding.indent(Text(", ".join(names[:UNSEEN]) + more), 4))
    if len(groups) > UNSEEN:
        left = sum(map(len, list(groups.values())[UNSEEN:]))
        console.print(f"  and {left:,} more, for other reasons", style="dim")
    console.print()


def _tokens(run: Run) -> Text:
    text = Text()
    for i, (token, kind) in enumerate(zip(run.labels.texts[:TOKENS], run.labels.kinds[:TOKENS], strict=True)):
        shown = token.replace("\n", "⏎").replace("\t", "⇥").strip(" ") or "␣"
        text.append(shown, style="dim" if kind & 1 else ("default" if i % 2 else "cyan"))
        text.append(" ")
    if len(run.tokens) > TOKENS:
        text.append(f"… {len(run.tokens) - TOKENS:,} more", style="dim")
    text.append("\n")
    return text


def _portraits(run: Run, measured: list, order: list, links: dict) -> Table:
    table = Table(title="Heads, the most interesting first", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("head", "focus", "first", "previous", "itself", "induction", "distance", "strongest link"):
        table.add_column(name, justify="left" if name in ("head", "strongest link") else "right")
    for layer, head in order:
        found = measured[layer][head]
        shares = [found[name] for name in ("focus", "first", "previous", "same", "induction")]
        distance = "" if found["distance"] is None else f"{found['distance']:.1f}"
        table.add_row(
            _name(run, layer, head),
            *("" if share is None else f"{100 * share:.0f} %" for share in shares),
            distance,
            _link(run, layer, links.get((layer, head))),
        )
    return table


def _links(run: Run, found: list) -> Table:
    table = Table(title="\nStrongest links", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for link, (layer, head) in found:
        table.add_row(_name(run, layer, head), _link(run, layer, link))
    return table


def _name(run: Run, layer: int, head: int) -> str:
    """A head as the explorer writes it, with the model's own numbers."""
    about = run.layers[layer]
    return f"L{about.number} H{about.numbers[head]}"


def _link(run: Run, layer: int, link: Link | None) -> Text:
    if link is None:
        return Text("")
    query, key, weight = link
    names = run.labels.texts[query].strip() or "␣", run.key_labels(run.layers[layer]).texts[key].strip() or "␣"
    text = Text(f"{names[0]} → {names[1]} ")
    text.append(f"{weight:.3f}", style="bold")
    return text


def _map(run: Run, layer: int, head: int, console: Console) -> Text:
    """The map in half blocks, two rows a line; in letters where there are no colours."""
    picture, _ = thumbs.thumb(run.view(layer, head).pyramid, min(WIDEST, max(8, console.width - 2)))
    rows, columns = (int(np.flatnonzero(picture.any(axis)).max(initial=0)) + 1 for axis in (1, 0))
    weights = thumbs.decode(picture[:rows, :columns])
    floor = 0.1 / max(run.layers[layer].keys, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.clip(np.log(np.maximum(weights, 1e-12) / floor) / np.log(1 / floor), 0, 1)
    text = Text()
    if console.color_system is None:
        for row in np.where(np.isnan(weights), -1, place):
            signs = (" " if x < 0 else SHADES[min(int(x * len(SHADES)), len(SHADES) - 1)] for x in row)
            text.append("".join(2 * sign for sign in signs).rstrip() + "\n")
        return text
    for top in range(0, rows, 2):
        for column in range(columns):
            upper = _color(place[top, column], weights[top, column])
            lower = _color(place[top + 1, column], weights[top + 1, column]) if top + 1 < rows else None
            if upper is None and lower is None:
                text.append(" ")
            elif upper is None:
                text.append("▄", style=lower)
            else:
                text.append("▀", style=upper if lower is None else f"{upper} on {lower}")
        text.append("\n")
    return text


def _color(place: float, weight: float) -> str | None:
    return None if np.isnan(weight) else RAMP[min(int(place * len(RAMP)), len(RAMP) - 1)]
