"""How much memory tensors hold at the same time, on any device."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """Counts the memory that is made inside the block, but what is `given`: `most` bytes were held at once."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.most = 0
        self._given = {x.untyped_storage().data_ptr() for x in given}
        self._held: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and x.untyped_storage().nbytes():
                memory = x.untyped_storage()
                at = memory.data_ptr()
                if at not in self._held and at not in self._given:
                    self._held[at] = memory.nbytes()
                    weakref.finalize(memory, self._held.pop, at)
        self.most = max(self.most, sum(self._held.values()))
        return found
