"""The cells that a cut takes away, as a mask: a rectangle of a call, or a rule inside it. True = still there."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.masks import EMPTY, FULL, MIXED, Mask
from sightline.portable import some_heads

if TYPE_CHECKING:
    from sightline.editing.plan import Act


class Uncut(Mask):
    """Everything but what a cut took away.

    >>> import sightline as sl
    >>> some = lambda *on: torch.tensor([bool(x) for x in on])
    >>> Uncut(some(1), some(1), some(0, 1), some(1, 0, 0), None, (0, 0, 2, 3)).to_dense(2, 3)[0, 0].int()
    tensor([[1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """

    saved_as = "uncut"

    def __init__(
        self,
        members: Tensor,
        heads: Tensor,
        rows: Tensor,
        columns: Tensor,
        rule: Mask | None,
        at: tuple[int, int, int, int],
    ) -> None:
        """`at`: where rows and columns begin in the map that the rule is for, and how large that is."""
        self.members, self.heads, self.rows, self.columns, self.rule, self.at = members, heads, rows, columns, rule, at

    @staticmethod
    def of(act: Act, device: torch.device) -> Uncut:
        """What an act of the kind cut leaves of its call."""
        place = act.place
        end = place.first_key + place.keys
        queries = place.first_query + place.queries if place.cross else end
        rule = act.edit.options.get("mask")
        if rule is not None:
            rule = rule if rule.is_positional else rule.to(device)
            rule.check((place.batch,), place.heads, queries, end, device)
        members, heads, rows, columns = (x.to(device) for x in (act.examples, act.heads, act.rows, act.columns))
        return Uncut(members, heads, rows, columns, rule, (place.first_query, place.first_key, queries, end))

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        gone = self.members.view(-1, 1, 1, 1) & self.heads.view(1, -1, 1, 1) & self.rows[rows].view(1, 1, -1, 1)
        gone = (gone & self.columns[columns]).to(device)
        if self.rule is not None:
            row, column, height, width = self.at
            inside = slice(rows.start + row, rows.stop + row), slice(columns.start + column, columns.stop + column)
            gone = gone & self.rule.tile(*inside, height, width, device)
        return ~gone

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        both = (self.rows, row_edges), (self.columns, column_edges)
        rows, columns = (_marked(marks, sides) for marks, sides in both)
        touched = (rows[:, None] > EMPTY) & (columns > EMPTY)
        if self.rule is not None or not bool(self.members.all() & self.heads.all()):
            return np.where(touched, MIXED, FULL).astype(np.int8)
        gone = (rows[:, None] == FULL) & (columns == FULL)
        return np.where(gone, EMPTY, np.where(touched, MIXED, FULL)).astype(np.int8)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """It was made for its call."""

    @property
    def follows_order(self) -> bool:
        return False


class Picked(Mask):
    """A mask for some members and heads of its call."""

    saved_as = None
    holds = ("mask", "members", "heads")

    def __init__(self, mask: Mask, members: list[int], heads: list[int]) -> None:
        self.mask, self.members, self.heads = mask, members, heads

    @staticmethod
    def of(mask: Mask, members: list[int], heads: list[int]) -> Mask:
        """The same, of a mask that may be made of others."""
        if isinstance(mask, Uncut):
            return Uncut(mask.members[members], mask.heads[heads], *(mask.rows, mask.columns), mask.rule, mask.at)
        parts = mask.conjuncts()
        found = [part if part.is_positional else Picked(part, members, heads) for part in parts]
        return reduce(and_, found)

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        cells = some_heads(self.mask.tile(rows, columns, queries, keys, device), self.heads, 2)
        if cells.dim() < 4 or cells.shape[0] == 1:
            return cells
        return cells[torch.tensor(self.members, device=cells.device)]

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        return self.mask.kinds(row_edges, column_edges, queries, keys)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """What it is picked from was checked."""

    def __repr__(self) -> str:
        return repr(self.mask)


def _marked(marks: Tensor, sides: np.ndarray) -> np.ndarray:
    """Whether none, some or all are marked between the edges."""
    before = np.concatenate([[0], np.cumsum(marks.cpu().numpy())])
    count = before[sides[1:]] - before[sides[:-1]]
    return np.where(count == 0, EMPTY, np.where(count == sides[1:] - sides[:-1], FULL, MIXED))
