"""Where the tokens of a run came before: where an induction head would look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.watching.record.chosen_keys import repeats

if TYPE_CHECKING:
    from torch import nn

    from sightline.watching.intercept.looked import Looked
    from sightline.watching.record.account import Wanted
    from sightline.watching.tokens import Reader


class Repeats:
    """Where an induction head would look, for each query: found when somebody needs it, once for all layers of a pass.

    >>> Repeats(torch.tensor([[7, 8, 9, 7, 8]]), 3).keys
    tensor([[1, 2]])
    """

    def __init__(self, ids: Tensor, first_query: int) -> None:
        self.ids, self.first_query = ids, first_query
        self._keys: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """`[batch, queries]`; -1 where the token is new."""
        if self._keys is None:
            with torch.no_grad():
                self._keys = repeats(self.ids)[:, self.first_query :]
        return self._keys

    def along(self, batch: int, count: int) -> Repeats:
        """The same of several calls, one after another along the batch."""
        return Repeats(self.ids.expand(batch, -1).repeat(count, 1), self.first_query)


class Repeating:
    """The part of a watch that knows of repeated tokens; they are the same for all layers of a pass."""

    encoder: nn.Module | None
    names: dict[int, str]
    reader: Reader
    wanted: Wanted
    repeats: tuple[Tensor, tuple[int, int], Repeats] | None  # of ids, from a query up to a key

    def _repeats(self, name: str, looked: Looked, end_key: int) -> Repeats | None:
        """Where an induction head would look, from the tokens; the same for all layers of a pass."""
        fits = looked.first_query >= 0 and self.ids_fit(name, looked.call.sizes.batch[0], end_key)
        return self.repeats_at(name, looked.first_query, end_key) if fits else None

    def _ids(self, name: str) -> Tensor | None:
        encodes = self.encoder is not None and name.startswith(f"{self.names[id(self.encoder)]}.")
        return self.reader.memory if encodes else self.reader.ids

    def ids_fit(self, name: str, batch: int, end_key: int) -> bool:
        """Whether the tokens of all keys up to here are known, and of use."""
        ids = self._ids(name) if self.wanted.shares else None
        return ids is not None and ids.shape == (batch, end_key)

    def repeats_at(self, name: str, first_query: int, end_key: int) -> Repeats | None:
        """The same for the queries from one on, up to a key; more tokens may have come since."""
        ids = self._ids(name)
        if ids is None or ids.shape[-1] < end_key:
            return None
        at = (first_query, end_key)
        if self.repeats is None or self.repeats[0] is not ids or self.repeats[1] != at:
            self.repeats = (ids, at, Repeats(ids[:, :end_key], first_query))
        return self.repeats[2]
