"""The cells that a cut takes away, as a mask: a rectangle of a call, or a rule inside it. True = still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sightline.masks import FULL, MIXED, Mask

if TYPE_CHECKING:
    from sightline.editing.place import Place
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
    def of(act: Act, place: Place, device: torch.device) -> Uncut:
        """What an act of the kind cut leaves of its call."""
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
        touched = [_any(marks, sides) for marks, sides in ((self.rows, row_edges), (self.columns, column_edges))]
        return np.where(touched[0][:, None] & touched[1][None], MIXED, FULL).astype(np.int8)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        """It was made for its call."""

    @property
    def follows_order(self) -> bool:
        return False


def _any(marks: Tensor, sides: np.ndarray) -> np.ndarray:
    """Whether anything is marked between the edges."""
    before = np.concatenate([[0], np.cumsum(marks.cpu().numpy())])
    return (before[sides[1:]] - before[sides[:-1]]) > 0
