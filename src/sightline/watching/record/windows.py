"""Windows that a module attends to one after another: pieces of one sequence, cut from one tensor, are one sight.

Qwen-VL's vision layers split their queries and keys by the ends of windows, and attend within each. A call whose q and
k begin in memory where those of the call before ended is the next piece: the sight is block-diagonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from sightline.backends.call import Call


class Piece(NamedTuple):
    """The end of a call: its pass, its layer, where its q and k end in memory, and its last key."""

    turn: int
    full: str
    ends: tuple[tuple, tuple]
    end_key: int


class Windows:
    """The last call of each module."""

    def __init__(self) -> None:
        self.last: dict[str, Piece] = {}

    def goes_on(self, name: str, turn: int, call: Call, first_query: int) -> Piece | None:
        """The piece that a call goes on after, if there is one."""
        before, s = self.last.get(name), call.sizes
        if before is None or before.turn != turn or first_query or s.queries != s.keys or call.bias is not None:
            return None
        return before if before.ends == (_place(call.q, 0), _place(call.k, 0)) else None

    def put(self, name: str, full: str, turn: int, call: Call, end_key: int) -> None:
        """A call: the next one may go on after it."""
        queries, keys = call.sizes.queries, call.sizes.keys
        if queries == keys and call.bias is None:
            self.last[name] = Piece(turn, full, (_place(call.q, queries), _place(call.k, keys)), end_key)
        else:
            self.last.pop(name, None)


def _place(x: Tensor, time: int) -> tuple:
    """Where a position of a tensor `[batch, heads, time, dim]` lies in memory, and how its axes do."""
    other = (x.shape[0], x.shape[1], x.shape[3])
    offset, strides = x.storage_offset(), x.stride()
    begin = x.data_ptr() - offset * x.itemsize  # of its storage, which takes longer to ask
    return (begin, offset + time * strides[2], other, strides)
