"""The lines of a program that give what a view shows: cells, rows, one link in every head, a path, effects."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sightline.explore.changes import needs_whole, read
from sightline.explore.effects import left
from sightline.explore.every_head import LEAST, LISTED, LONGEST
from sightline.explore.run import Layer, Run
from sightline.explore.screen import Screen
from sightline.explore.writing import OTHERS

# A map of more cells is given as the page shows it whole: in bins, at most so many a side.
WHOLE, BINS = 1 << 22, 512
TOP = 3  # keys of a query in every head


class Names:
    """How things are called in a program: the run, the head that is looked at, and what is found."""

    def __init__(self, run: Run, screen: Screen, suffix: str, place: str, head: int, seen: str) -> None:
        self.run, self.screen, self.suffix, self.place, self.seen = run, screen, suffix, place, seen
        self.about = run.layer(screen.layer)
        self.sight, self.head = f"{seen}[{self.about.name!r}]", f"[{place}{head}]"

    def __call__(self, name: str) -> str:
        return name + self.suffix

    def layers(self, some: Sequence[Layer]) -> str:
        """Some layers of the run, as an expression."""
        names = [layer.name for layer in some]
        account = getattr(self.run.account, "seen", self.run.account)
        known = list(account.layers)
        if names == known:
            return f"{self.seen}.layers" if hasattr(account, "number") else f"list({self.seen})"
        return f"{self.seen}.layers[::-1]" if names == known[::-1] and hasattr(account, "number") else str(names)


def _of(of: str) -> str:
    return "" if of == "weights" else f", of={of!r}"


def _span(span: slice) -> str:
    return f"slice({span.start}, {span.stop})"


def cells(names: Names, of: str) -> list[str]:
    """What is pinned: a cell, a row or several added up, a column; else the part of the map that is shown."""
    screen, about, found = names.screen, names.about, names("cells")
    columns = slice(None) if screen.key is None else slice(screen.key, screen.key + 1)
    across = "slice(None)" if screen.key is None else _span(columns)
    if len(screen.queries) > 1:
        line = f"sum({names.sight}.tile(query, {across}{_of(of)}){names.head} for query in {list(screen.queries)})"
    elif screen.queries:
        row = _span(slice(screen.queries[0], screen.queries[0] + 1))
        line = f"{names.sight}.tile({row}, {across}{_of(of)}){names.head}"
    elif screen.key is not None:
        line = f"{names.sight}.tile(slice(None), {across}{_of(of)}){names.head}"
    else:
        rows, columns = screen.rows or slice(0, about.queries), screen.columns or slice(0, about.keys)
        line = _part(names, of, rows, columns)
    return [f"{found} = {line}", f"print({found})"]


def _part(names: Names, of: str, rows: slice, columns: slice) -> str:
    screen, about = names.screen, names.about
    whole = rows == slice(0, about.queries) and columns == slice(0, about.keys)
    if (rows.stop - rows.start) * (columns.stop - columns.start) <= WHOLE:
        both = "slice(None), slice(None)" if whole else f"{_span(rows)}, {_span(columns)}"
        return f"{names.sight}.tile({both}{_of(of)}){names.head}"
    bins = tuple(2 ** max(0, math.ceil(math.log2((s.stop - s.start) / BINS))) for s in (rows, columns))
    both = "" if whole else f"{_span(rows)}, {_span(columns)}, "
    how = "" if screen.pool == "mean" else f", reduce={screen.pool!r}"
    return f"{names.sight}.picture({both}cell={bins}{how}, visible_only=True{_of(of)}){names.head}"


def shown(names: Names, of: str, again: bool) -> list[str]:
    """What else is shown; `again` where the model was run once more, and can be asked."""
    lines: list[str] = []
    for part in dict.fromkeys(names.screen.parts):
        made = _PARTS[part](names, of) if part not in _OF_MODEL or again else []
        lines += [*made, f"print({names(part)})"] if made else []
    return lines


def _row(names: Names, of: str) -> list[str]:
    queries = list(names.screen.queries)
    if not queries:
        return []
    return [
        f"{names('row')} = sum({names.sight}.tile(query, slice(None){_of(of)}){names.head} for query in {queries})[0]"
    ]


def _column(names: Names, of: str) -> list[str]:
    """Who looks at the key; without one at the query, where that is a key too."""
    queries, key = names.screen.queries, names.screen.key
    if key is None:
        key = queries[-1] if queries and not names.about.cross else None
    if key is None or key >= names.about.keys:
        return []
    tile = f"{names.sight}.tile(slice(None), {_span(slice(key, key + 1))}{_of(of)}){names.head}"
    return [f"{names('column')} = {tile}[:, 0]"]


def _received(names: Names, of: str) -> list[str]:
    return [f"{names('received')} = {names.sight}.received({_of(of).removeprefix(', ')}){names.head}"]


def _rollout(names: Names, _: str) -> list[str]:
    queries = list(names.screen.queries)
    if not queries or getattr(names.run.account, "rollout", None) is None:
        return []
    follow = f"{names.seen}.rollout(query)[{names.place.removesuffix(', ')}]"
    return [f"{names('rollout')} = torch.stack([{follow} for query in {queries}]).mean(0)"]


def _alike(names: Names) -> list[Layer]:
    """The layers that have such a cell."""
    query, key = names.screen.queries[-1], names.screen.key or 0
    like = names.about
    return [one for one in names.run.layers if one.cross == like.cross and query < one.queries and key < one.keys]


def _link(names: Names, of: str) -> list[str]:
    """One cell in every head; without a key the strongest keys of the query, and what they have."""
    if not names.screen.queries:
        return []
    query, key = names.screen.queries[-1], names.screen.key
    where, some = _span(slice(query, query + 1)), names.layers(_alike(names))
    tile = f"{names.seen}[name].tile({where}, {{}}{_of(of)})[{names.place}:, 0{{}}]"
    if key is not None:
        cell = tile.format(_span(slice(key, key + 1)), ", 0")
        return [f"{names('link')} = {{name: {cell} for name in {some}}}"]
    rows, keys = names("rows"), names("keys")
    most = f"row.abs().topk(min({TOP}, row.shape[-1])).indices"
    return [
        f"{rows} = {{name: {tile.format('slice(None)', '')} for name in {some}}}",
        f"{keys} = {{name: {most} for name, row in {rows}.items()}}",
        f"{names('link')} = {{name: ({keys}[name], row.gather(-1, {keys}[name])) for name, row in {rows}.items()}}",
    ]


def _path(names: Names, of: str) -> list[str]:
    """The strongest sources of a token from the last layer down, followed where they are strong, or were chosen."""
    walk, like, run = names.screen.walk, names.about, names.run
    if walk is None:
        return []
    some = [
        one
        for one in reversed(run.layers[-LONGEST:])
        if not one.cross and (one.queries, one.keys) == (like.queries, like.keys)
    ]
    special = [int(i) for i in np.flatnonzero(run.special_keys(like)) if i]
    place, taken = names("place"), {run.layers[layer].name: key for layer, key in walk.taken.items()}
    enough = str(LEAST) if of == "weights" else f"{LEAST} * float(size.max())"
    return [
        f"{place}, {names('path')}, taken = {walk.origin}, [], {taken}",
        f"for name in {names.layers(some)}:",
        f"    rows = {names.seen}[name].tile({place}, slice(None){_of(of)})[{names.place}:, 0].double().nan_to_num()",
        "    size = rows.abs()",
        f"    enough = {enough}",
        f"    size[:, {[0, *special]}] = size[:, {place}] = 0  # the first token, special ones, and itself",
        f"    order = size.flatten().argsort(descending=True, stable=True)[:{LISTED}]",
        "    spots = [divmod(int(i), size.shape[-1]) for i in order if size.flatten()[i] > 0]",
        "    sources = [(head, key, float(rows[head, key])) for head, key in spots]",
        f"    {names('path')}.append((name, {place}, sources))",
        "    if name in taken:",
        f"        {place} = taken[name]",
        "    elif sources and abs(sources[0][2]) >= enough:",
        f"        {place} = sources[0][1]",
    ]


def _heads(names: Names, of: str) -> list[str]:
    """What all heads are like; of a reading, one number for each."""
    if isinstance(names.run.account, dict) or not hasattr(names.run.account, "portraits"):
        return []
    made = f"{names.seen}.portraits()" if of == "weights" else f"{names.seen}.by_head({of!r})"
    return [f"{names('heads')} = {made}"]


def _effects(names: Names, _: str) -> list[str]:
    target, edits = names.screen.target, names.run.meta.get("edits") or []
    if target is None:
        return []
    tokens = str(target[0]) if target[1] is None else f"{target[0]}, than={target[1]}"
    part, last = f"ids[:, : {target[2] + 1}]", 1
    if needs_whole(names.run.meta):
        part, last = "ids", names.about.queries - target[2]
        tokens += f", at={-last}"
    given = f'{{"ids": {part}, "last": {last}}}, sl.targets.logit({tokens})'
    done = f"{names('effects')} = sl.effects(model, {given}{_which(names.run)})"
    if not edits:
        return [done]
    return ["with sl.edit(model) as edits:", *(f"    {read(edit).python()}" for edit in edits), f"    {done}"]


def _which(run: Run) -> str:
    """Which heads are taken out: those that the edits have left, and the run has."""
    rest = left(run)
    layers, heads = (sorted({pair[i] for pair in rest}) for i in (0, 1))
    every = [(layer, head) for layer in layers for head in heads]
    gone = sorted(set(every) - set(rest))
    if not gone and layers == list(range(len(layers))):
        return ""
    without = f" if (layer, head) not in {gone}" if gone else ""
    return f", heads=[(layer, head) for layer in {layers} for head in {heads}{without}]"


def _written(names: Names, _: str) -> list[str]:
    """Each token that was written with its probability, and the likeliest of those that were not."""
    told = names.run.meta.get("written")
    if not told:
        return []
    ids = [token["id"] for token in told["tokens"]]
    chances = names("chances")
    others = f"[id for id in row.topk({OTHERS + 1}).indices.tolist() if id != token][:{OTHERS}]"
    return [
        f"{chances} = {names('output')}[0, {told['prompt'] - 1} :].detach().float().softmax(-1)",
        f"{names('written')} = [",
        f"    (token, float(row[token]), [(id, float(row[id])) for id in {others}])",
        f"    for token, row in zip({ids}, {chances})",
        "]",
    ]


def _likely(names: Names, _: str) -> list[str]:
    """How likely the two tokens are that are asked about."""
    target = names.screen.target
    if target is None:
        return []
    tokens = [token for token in target[:2] if token is not None]
    return [f"{names('likely')} = {names('output')}[0, {target[2]}].detach().float().softmax(-1)[{tokens}]"]


_PARTS = {
    "row": _row,
    "column": _column,
    "received": _received,
    "rollout": _rollout,
    "link": _link,
    "path": _path,
    "effects": _effects,
    "heads": _heads,
    "written": _written,
    "likely": _likely,
}
_OF_MODEL = ("effects", "written", "likely")
