"""What a patch takes from another run: which of its rows and columns, and the numbers there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.editing.edits import Edit
    from sightline.editing.place import Place
    from sightline.watching.seen import Seen

_NEEDS = {
    "output": "keep_output=True",
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
    if name not in source:
        raise InputError(
            f"the source of a patch has no {name}",
            expected=f"one of its layers: {', '.join(source.layers[:8]) or 'none'}",
            got=name,
            hint="watch the source with all layers, or say layers=…",
        )
    batch, _, queries, keys = source[name].shape
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


def heads_there(source: Seen, name: str, heads: list[int]) -> list[int]:
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


def part_of(source: Seen, name: str, what: str) -> Tensor:
    """The outputs, queries, keys or values of a layer of a run: `[batch, heads, time, dim]`, keys and values per key head."""
    found: Any = None
    if what == "output":
        found = outputs(source, name)
    else:
        call = source[name].call
        if what == "keys":
            found = call.k
        elif what == "queries":
            found = call.q
            if found is not None and bool((found == 0).all(-1).any()):
                raise InputError(
                    f"the source of a patch has queries in {name} that were told what to look at",
                    expected="a run whose patterns were not set by an edit",
                    got="rows without a query of their own",
                    hint='what="pattern"',
                )
        else:
            found = source[name].extra.v
    if found is None:
        raise InputError(
            f"the source of a patch did not keep the {what} of its heads",
            expected=f"sl.watch(model, {_NEEDS[what]})",
            got=f"a Seen without them for {name}",
            hint=f"with sl.watch(model, {_NEEDS[what]}) as source: model(…)",
        )
    return found  # type: ignore[no-any-return]


def outputs(source: Seen, name: str) -> Tensor | None:
    """What the heads of a layer gave, before the output projection."""
    parts = getattr(source._layer(name), "parts", [])
    found = [part.extra.get("output") for part in parts]
    return None if not found or any(one is None for one in found) else torch.cat(found, -2)


def pattern_rows(source: Seen, name: str, rows: Tensor) -> Tensor:
    """Rows of the map of a layer of a run, `[batch, heads, rows, keys]`, in the order asked for."""
    sight = source[name]
    keys = sight.shape[-1]
    found = [sight.tile(slice(int(row), int(row) + 1), slice(0, keys)) for row in rows]
    if len(rows) and bool((rows.diff() == 1).all()):
        return sight.tile(slice(int(rows[0]), int(rows[-1]) + 1), slice(0, keys))
    return torch.cat(found, -2)
