"""One attention call as a handler understood it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from sightline.backends.call import Call


class Looked(NamedTuple):
    """One attention call as a handler understood it, in four axes."""

    call: Call
    row: Tensor
    first_query: int  # its position among all keys; -1 for cross-attention
    first_key: int
    key: Tensor | None = None  # the keys, where those of the call stand for scores alone: q and k cannot be kept
    real: Tensor | None = None  # [batch, keys]: which keys are no padding, where no mask says so
