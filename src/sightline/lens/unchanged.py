"""Whether the tensors of a call are still what they were: a sight is a photograph, and no mirror.

A sight reads q and k when something is asked of it, and copies neither. Torch counts the changes of every tensor, and
views share their count, so a change is noticed. Tensors made in inference mode have no count: a sight has copies of
those. What passes by the count (`.data`, memory that numpy shares) cannot be noticed.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.portable import Portable


class Unchanged:
    """The counts of a call's tensors as they are now, to be compared with later."""

    def __init__(self, call: Call, row: Tensor) -> None:
        tensors = [("q", call.q), ("k", call.k), ("sinks", call.sinks), ("the lse", row), ("lost", call.lost)]
        tensors += [("bias", part) for part in tensors_of(call.bias)]
        tensors += [("the mask", part) for part in tensors_of(call.mask)]
        self._then = [(name, x, count(x)) for name, x in tensors if isinstance(x, Tensor)]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Unchanged:
        """Of some tensors, by the names that an error calls them."""
        found = cls.__new__(cls)
        found._then = [(name, x, count(x)) for name, x in tensors.items()]
        return found

    def also(self, name: str, tensor: Tensor) -> None:
        """Watch one more."""
        self._then.append((name, tensor, count(tensor)))

    def changed(self) -> dict[str, None]:
        """The names of what was changed since."""
        return dict.fromkeys(name for name, tensor, then in self._then if count(tensor) != then)

    def check(self, names: Container[str] | None = None) -> None:
        """Raise if any tensor was changed since, or any of some."""
        changed = [name for name in self.changed() if names is None or name in names]
        if changed:
            raise InputError(
                f"{' and '.join(changed)} {'was' if len(changed) == 1 else 'were'} changed after the call",
                expected="the tensors as they were: a sight reads them when something is asked of it",
                got="an operation in place since then, such as mul_ or a slice that was written to",
                hint="ask before they change (stats=…, sight.prepare(…)), or give copies: q.clone()",
            )


def count(tensor: Tensor) -> int | None:
    """How often a tensor was changed, if it counts that."""
    return None if tensor.is_inference() else tensor._version


def that_counts(call: Call) -> Call:
    """The same call, with copies of those tensors that do not count their changes."""
    changes: dict[str, object] = {}
    for name in ("q", "k", "sinks"):
        tensor = getattr(call, name)
        if isinstance(tensor, Tensor) and tensor.is_inference():
            changes[name] = tensor.clone()
    if "k" in changes:
        changes["v"] = changes["k"]
    for name in ("mask", "bias"):
        if any(tensor.is_inference() for tensor in tensors_of(getattr(call, name))):
            changes[name] = copy.deepcopy(getattr(call, name))
    return call.replace(**changes) if changes else call


def tensors_of(thing: Tensor | Portable | None) -> Iterator[Tensor]:
    """The tensors that a mask or bias is made of, its parts' included."""
    if isinstance(thing, Tensor):
        yield thing
    elif thing is not None:
        yield from thing.tensors()
