"""A run told in the terminal: its tokens, what its heads are like, the strongest links, and a small map."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sightline.cli.picture import head_name, picture, word
from sightline.explore import measures
from sightline.explore.links import Link, first_head, link_of
from sightline.explore.run import Run

TOKENS = 400
UNSEEN = 8
# Links are looked for in every head of maps up to this size, and in the listed heads alone above it.
SMALL = 512 * 512
# What the columns of the table are, and below which width it has only the first and the last.
COLUMNS = (
    "focus: 100 % looks at one key, 0 % at all alike. first, before, itself: share of the weight on the first token, "
    "the one before, the token itself. induction: on what followed the same token earlier. distance: mean, in tokens. "
    "strongest link: query → key, weight; to none of these, nor to the next."
)
NARROW = 66
# Columns of the longest name of a head that is likely, and of the space after it.
WIDEST_NAME = len("L999 H99 ")


def account(run: Run, heads: int = 8, console: Console | None = None) -> tuple[int, int]:
    """Say what a run shows, in at most a screen or two; gives the head of its map, by the model's own numbers."""
    console = console or Console(highlight=False)
    measured, _ = measures.measure(run)
    first = first_head(run, measured)
    order = [first, *(place for place in measures.ranked(measured) if place != first)]
    about = run.about()
    console.print(
        f"[bold]{escape(str(about['model']))}[/]: {about['tokens']:,} tokens, "
        f"{len(run.layers)} layer{'' if len(run.layers) == 1 else 's'}, {len(order)} heads\n"
    )
    if run.unseen:
        _say_unseen(run.unseen, console)
    console.print(_tokens(run))
    small = run.layers[0].queries * run.layers[0].keys <= SMALL
    looked = sorted(order) if small else order[:heads]
    links = {place: link_of(run, *place) for place in looked}
    console.print("Heads, the most interesting first", style="italic")
    console.print(_portraits(run, measured, order[:heads], links, console.width))
    if console.width >= NARROW:
        console.print(Text(COLUMNS, style="dim"))
    found = sorted(((link, place) for place, link in links.items() if link), key=lambda pair: -pair[0].weight)
    console.print("\nStrongest links, with the positions of query and key", style="italic")
    console.print(_links(run, found[:heads], console.width))
    console.print()
    console.print(picture(run, *order[0], console))
    layer, head = order[0]
    return run.layers[layer].number, run.layers[layer].numbers[head]


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
        text.append(word(token), style="dim" if kind & 1 else ("default" if i % 2 else "cyan"))
        text.append(" ")
    if len(run.tokens) > TOKENS:
        text.append(f"… {len(run.tokens) - TOKENS:,} more", style="dim")
    text.append("\n")
    return text


def _portraits(run: Run, measured: list, order: list, links: dict, width: int) -> Table:
    shares = ("focus", "first", "previous", "same", "induction") if width >= NARROW else ()
    titles = {"previous": "before", "same": "itself"}
    table = _table(header=True)
    table.add_column("head", no_wrap=True)
    for title in (*(titles.get(share, share) for share in shares), *(("distance",) if shares else ())):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("strongest link", no_wrap=True)
    for layer, head in order:
        found = measured[layer][head]
        values = [("" if found[share] is None else f"{100 * found[share]:.0f} %") for share in shares]
        if shares:
            values.append("" if found["distance"] is None else f"{found['distance']:.1f}")
        left = width - WIDEST_NAME - sum(len(str(column.header)) + 1 for column in table.columns[1:-1])
        table.add_row(head_name(run, layer, head), *values, _link(run, layer, links.get((layer, head)), left))
    return table


def _links(run: Run, found: list, width: int) -> Table:
    table = _table()
    for link, (layer, head) in found:
        table.add_row(head_name(run, layer, head), _link(run, layer, link, width - WIDEST_NAME, positions=True))
    return table


def _table(header: bool = False) -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), show_header=header, pad_edge=False)


def _link(run: Run, layer: int, link: Link | None, width: int, positions: bool = False) -> Text:
    """A link in at most so many columns: of long tokens the beginnings."""
    if link is None:
        return Text("")
    query, key, weight = link
    places = (f" ({query:,})", f" ({key:,})") if positions else ("", "")
    figure = f" {weight:.3f}"
    most = max(4, (width - len(" → ") - len(figure) - sum(map(len, places))) // 2)
    tokens = run.labels.texts[query], run.key_labels(run.layers[layer]).texts[key]
    text = Text(" → ".join(word(token, most) + place for token, place in zip(tokens, places, strict=True)))
    text.append(figure, style="bold")
    return text
