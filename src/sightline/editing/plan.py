"""What the edits in force mean for one call: which of its members, heads, rows and columns each of them is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sightline.editing import sources
from sightline.editing.where import marks
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.editing.edits import Edit
    from sightline.editing.place import Place


class Act(NamedTuple):
    """One edit in one call."""

    edit: Edit
    place: Place  # as the block calls it that the edit is in
    examples: Tensor  # [batch], bool
    heads: Tensor  # [heads]
    rows: Tensor  # [queries]
    columns: Tensor  # [keys]: of cut and boost
    there: tuple[Tensor, Tensor] | None = None  # of a patch: for every row and column here, the one there, or -1

    @property
    def step(self) -> str:
        """What it changes."""
        if self.edit.kind == "patch":
            return str(self.edit.options["what"])
        return {"ablate": "output", "force": "pattern"}.get(self.edit.kind, self.edit.kind)

    def meets(self, other: Act) -> bool:
        """Whether both are about the same head in the same place."""
        both = (self.examples & other.examples, self.heads & other.heads, self._set & other._set)
        return all(bool(marked.any()) for marked in both)

    @property
    def _set(self) -> Tensor:
        return self.columns if self.step in ("keys", "values") else self.rows


# Two of these in one place are refused; the others are combined.
_SETS = ("pattern", "output", "queries", "keys", "values")
MAP = ("temperature", "boost", "cut", "pattern", "queries", "keys")  # change weights
INPUT = (*MAP, "values")  # are done before the output is there


def acts_in(edits: Iterable[Edit], call: Call, place: Place) -> list[Act]:
    """The edits that concern a call; what cannot be done in it is refused, before anything is computed."""
    acts = [act for edit in edits if (act := _act(edit, call, place)) is not None]
    return [act for act in acts if act.examples.any() and act.rows.any()]


def check_apart(acts: list[Act]) -> None:
    """Refuse two edits that set the same."""
    for i, act in enumerate(acts):
        for other in acts[:i]:
            if act.step == other.step and act.step in _SETS and act.meets(other):
                raise InputError(
                    f"two edits set the {act.step} of the same head in {act.place.name}",
                    expected="one of them, or others in other places",
                    got=f"{other.edit} and {act.edit}",
                    hint="queries=, heads= or examples= keeps them apart",
                )


def _act(edit: Edit, call: Call, place: Place) -> Act | None:
    heads = edit.where.chosen(place)
    if heads is None:
        return None
    _check(edit, call, place)
    head_marks = torch.zeros(place.heads, dtype=torch.bool)
    head_marks[heads] = True
    examples = marks("examples", edit.where.examples, 0, place.batch, place.batch, place.name)
    rows = marks("queries", edit.where.queries, place.first_query, place.queries, place.query_end, place.name)
    chosen = edit.options.get("keys")
    columns = marks("keys", chosen, place.first_key, place.keys, place.key_end, place.name)
    if edit.kind != "patch":
        return Act(edit, place, examples, head_marks, rows, columns)
    there = sources.matched(edit, place)
    what = edit.options["what"]
    if what in ("keys", "values"):
        columns = there[1] >= 0
        rows = rows & bool(columns.any())
    else:
        rows = rows & (there[0] >= 0)
    return Act(edit, place, examples, head_marks, rows, columns, there)


def _check(edit: Edit, call: Call, place: Place) -> None:
    if edit.kind in ("boost", "temperature") and not call.normalizer.is_softmax:
        raise InputError(
            f"{edit.kind} is for softmax",
            expected="a layer with softmax",
            got=f"{call.normalizer.name} in {place.name}",
            hint="layers=…",
        )
    if edit.where.examples is not None and place.given and place.batch > place.given and place.batch % place.given == 0:
        raise InputError(
            f"{place.name} attends in pieces of its inputs, which are not examples",
            expected=f"edits of all {place.given} examples",
            got=f"{edit!r}, where each call has {place.batch} pieces",
            hint="without examples=; or run the examples one by one",
        )
    if edit.kind == "force" and place.cross and edit.options["pattern"] in ("previous", "itself"):
        raise InputError(
            f"{place.name} attends to another sequence",
            expected='force("uniform") or force("first") there',
            got=repr(edit),
            hint="layers=… to leave it out",
        )
