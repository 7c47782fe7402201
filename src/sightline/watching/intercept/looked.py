"""One attention call as a handler understood it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.intercept.heads import Heads


class Looked(NamedTuple):
    """One attention call as a handler understood it, in four axes."""

    call: Call
    row: Tensor
    first_query: int  # its position among all keys; -1 for cross-attention
    first_key: int
    heads: Heads | None = None  # what they gave, where somebody wants it
