"""What a patch takes from another run: which of its rows and columns, and the numbers there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.editing.edits import Edit
    from sightline.editing.place import Place
    from sightline.watching.seen import Seen

_NEEDS = {
    "queries": "keep_qk=True",
    "keys": "keep_qk=True",
    "values": "keep_qk=True, influence=True",
}


def full_name(place: Place) -> str:
    """The name of a call as a Seen lists it."""
    return place.name if place.number == 1 else f"{place.name}#{place.number}"


def matched(edit: Edit, place: Place) -> tuple[Tensor, Tensor]:
    """For every query and key of a call, which one of the source it is; -1 for none."""
    source, positions = edit.options["source"], edit.options["positions"]
    name = full_name(place)
    if name not in source.layers:
        raise InputError(
            f"the source of a patch has no {name}",
            expected=f"one of its layers: {', '.join(source.layers[:8]) or 'none'}",
            got=name,
            hint="watch the source with all layers, or say layers=…",
        )
    batch, _, queries, keys = source.shape(name)
    if batch not in (1, place.batch):
        raise InputError(
            f"the source of a patch has another batch in {name}",
            expected=f"{place.batch}, or 1 for all",
            got=batch,
            hint="watch the source with one example",
        )
    rows = torch.arange(place.first_query, place.first_query + place.queries)
    columns = torch.arange(place.first_key, place.first_key + place.keys)
    if positions is None:
        if (queries, keys) != (place.query_end, place.key_end):
            raise InputError(
                f"the source of a patch is not as long as {name} here",
                expected=f"{place.query_end} queries and {place.key_end} keys",
                got=f"{queries} and {keys}",
                hint="positions={here: there} says what corresponds to what",
            )
        return rows.where(rows < queries, -1), columns.where(columns < keys, -1)
    here = [_column(n, place.query_end, "here") for n in positions]
    there = [_column(n, queries, "there") for n in positions.values()]
    if len(set(here)) < len(here):
        raise InputError("a position is named twice", expected="each once", got=positions, hint="positions={3: 5}")
    found = torch.full((max([*here, *rows[-1:].tolist()]) + 1,), -1)
    found[here] = torch.tensor(there)
    picked = found[rows.clamp_min(0)]
    if place.cross:
        if keys != place.key_end:
            raise InputError(
                f"the source of a patch attends to another number of keys in {name}",
                expected=place.key_end,
                got=keys,
                hint="positions are of the queries; patch the encoder's layers instead",
            )
        return picked, columns
    wide = torch.full((max([len(found), *(columns[-1:] + 1).tolist()]),), -1)
    wide[: len(found)] = found
    return picked, wide[columns]


def _column(number: int, end: int, side: str) -> int:
    if not -end <= number < end:
        raise InputError(
            f"there is no such position {side}",
            expected=f"0 to {end - 1}, or negative from the end",
            got=number,
            hint="positions={3: 5}",
        )
    return number % end


def heads_there(source: Source, name: str, heads: list[int]) -> list[int]:
    """Where heads of the model are among those that were watched."""
    kept = source.heads(name)
    missing = [head for head in heads if head not in kept]
    if missing:
        raise InputError(
            f"the source of a patch has not all heads of {name}",
            expected=f"heads {kept}",
            got=missing,
            hint="watch the source with heads=None",
        )
    return [kept.index(head) for head in heads]


class Source:
    """What a patch reads of another run: a Seen, or what a file holds of one."""

    layers: list[str]

    def shape(self, name: str) -> tuple[int, ...]:
        """The map of a layer: `(batch, heads, queries, keys)`."""
        raise NotImplementedError

    def heads(self, name: str) -> list[int]:
        """The numbers of the heads that were watched."""
        raise NotImplementedError

    def part(self, name: str, what: str) -> Tensor:
        """The outputs, queries, keys or values of a layer, `[batch, heads or key heads, time, dim]`; or its map."""
        raise NotImplementedError

    def rows(self, name: str, rows: Tensor) -> Tensor:
        """Rows of the map of a layer, `[batch, heads, rows, keys]`, in the order asked for."""
        return self.part(name, "pattern")[:, :, rows]

    def same_as(self, other: Source, what: str) -> bool:
        """Whether a patch from either is the same."""
        if self.layers != other.layers or any(self.heads(name) != other.heads(name) for name in self.layers):
            return False
        return all(torch.equal(self.part(name, what), other.part(name, what)) for name in self.layers)

    def __repr__(self) -> str:
        return f"<{len(self.layers)} layers>"


class Watched(Source):
    """A run that was watched."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    @property
    def layers(self) -> list[str]:  # type: ignore[override]
        return self.seen.layers

    def shape(self, name: str) -> tuple[int, ...]:
        return self.seen[name].shape

    def heads(self, name: str) -> list[int]:
        return self.seen.heads(name)

    def rows(self, name: str, rows: Tensor) -> Tensor:
        sight = self.seen[name]
        keys = slice(0, sight.shape[-1])
        if len(rows) and bool((rows.diff() == 1).all()):
            return sight.tile(slice(int(rows[0]), int(rows[-1]) + 1), keys)
        return torch.cat([sight.tile(slice(int(row), int(row) + 1), keys) for row in rows], -2)

    def part(self, name: str, what: str) -> Tensor:
        sight = self.seen[name]
        found: Tensor | None
        if what == "pattern":
            return sight.tile(slice(0, sight.shape[-2]), slice(0, sight.shape[-1]))
        if what == "output":
            return self.seen.output(name)
        if what == "values":
            found = sight.extra.v
        else:
            found = sight.call.q if what == "queries" else sight.call.k
        if found is None:
            raise InputError(
                f"the source of a patch did not keep the {what} of its heads",
                expected=f"sl.watch(model, {_NEEDS[what]})",
                got=f"a Seen without them for {name}",
                hint=f"with sl.watch(model, {_NEEDS[what]}) as source: model(…)",
            )
        if what == "queries" and bool((found == 0).all(-1).any()):
            raise InputError(
                f"the source of a patch has queries in {name} that were told what to look at",
                expected="a run whose patterns were not set by an edit",
                got="rows without a query of their own",
                hint='what="pattern"',
            )
        return found


class Stored(Source):
    """What a file holds of a run: what one patch reads."""

    def __init__(self, what: str, parts: dict[str, tuple[tuple[int, ...], list[int], Tensor]]) -> None:
        """For each layer the shape of its map, its heads, and the numbers."""
        self.what, self.parts, self.layers = what, parts, list(parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.parts[name][0]

    def heads(self, name: str) -> list[int]:
        return self.parts[name][1]

    def part(self, name: str, what: str) -> Tensor:
        if what != self.what:
            raise InputError(
                "another part of attention was saved", expected=self.what, got=what, hint=f"what={self.what!r}"
            )
        return self.parts[name][2]
