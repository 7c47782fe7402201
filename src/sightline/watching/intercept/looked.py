"""One attention call as a handler understood it: for those who change it, and for those who look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.intercept.heads import Heads
    from sightline.watching.record.slices import Slice


class Looked(NamedTuple):
    """One attention call as a handler understood it, in four axes."""

    call: Call
    row: Tensor
    first_query: int  # its position among all keys; -1 for cross-attention
    first_key: int
    heads: Heads | None = None  # what they gave, where somebody wants it
    key: Tensor | None = None  # the keys, where those of the call stand for scores alone: q and k cannot be kept
    real: Tensor | None = None  # [batch, keys]: which keys are no padding, where no mask says so
    piece: Slice | None = None  # where these are some of the maps of a layer: each is a text with one head then


class Attended(NamedTuple):
    """A call that has run on the model's own kernel, in four axes, with its gradients: what edits change."""

    call: Call
    out: Tensor | None  # [batch, heads, queries, value_dim]; None: it has not run yet, and may not have to
    first_query: int
    first_key: int
    weights: Tensor | None = None  # the map, where the model asked for it
    row: Tensor | None = None  # the numbers of its rows, where they are known
    watched: bool = True  # whether somebody wants the account of it
    fresh: bool = False  # whether the output is nobody else's yet, and may be written into
    by_hand: str = ""  # "plain" or "dropped" where it is written by hand: what is known are its scores and values
    run: Callable[[], Tensor] | None = None  # the model's own kernel, where it has not run yet

    @property
    def given(self) -> Tensor:
        """What the model's own kernel gave, or gives now."""
        if self.out is not None:
            return self.out
        assert self.run is not None
        return self.run()


class Edited(NamedTuple):
    """The same as edits have it. Call and row are None where every weight is as it was."""

    out: Tensor
    weights: Tensor | None = None
    call: Call | None = None
    row: Tensor | None = None
    values: Tensor | None = None  # where some of them are other than those of the call: one for each head
    before: Tensor | None = None  # what heads gave, where it was then replaced or scaled: weights matter through it
