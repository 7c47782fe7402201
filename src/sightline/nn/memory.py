"""Whether a memory is still the one that cached keys and values were made of."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Pair: TypeAlias = tuple[Tensor, Tensor]


class Source:
    """The memory that keys and values were made of, one tensor for each of both; often the same.

    It is held without a copy, because torch counts the changes of a tensor. What was made in inference mode has no such
    count: of it there is a copy, which is compared. So it is in compiled code, which cannot ask.
    """

    __slots__ = ("carried", "tensors", "versions")

    def __init__(self, keys_of: Tensor, values_of: Tensor) -> None:
        pair = keys_of, values_of
        # Where gradients flow the tensors themselves count: others with the same numbers would get none.
        self.carried = pair if torch.is_grad_enabled() and _needs_gradient(pair) else None
        first = _kept(keys_of)
        second = first if values_of is keys_of else _kept(values_of)
        self.tensors = first[0], second[0]
        self.versions = first[1], second[1]

    @property
    def is_unchanged(self) -> bool:
        """Whether nobody has written to the memory since."""
        (first, second), (before, also_before) = self.tensors, self.versions
        return _is_at(first, before) and _is_at(second, also_before)

    def is_of(self, keys_of: Tensor, values_of: Tensor) -> bool:
        """Whether these tensors hold what was read then. Another tensor with the same numbers does."""
        if not self.is_unchanged:
            return False
        if torch.is_grad_enabled() and _needs_gradient((keys_of, values_of)):
            return self.carried is not None and keys_of is self.carried[0] and values_of is self.carried[1]
        first, second = self.tensors
        if not _same(keys_of, first):
            return False
        return (values_of is keys_of and second is first) or _same(values_of, second)

    def chosen(self, indices: Tensor) -> Source | None:
        """The memory with its sequences chosen anew, as in `KVCache.reorder`; None if it is no longer known."""
        if not self.is_unchanged or self.carried is not None:
            return None
        first, second = self.tensors
        taken = first.index_select(0, indices)
        return Source(taken, taken if second is first else second.index_select(0, indices))


def _needs_gradient(tensors: tuple[Tensor, ...]) -> bool:
    return any(t.requires_grad for t in tensors)


def _kept(tensor: Tensor) -> tuple[Tensor, int | None]:
    """The same numbers without their graph, and the count of their changes; or a copy, which nobody else changes."""
    if torch.compiler.is_compiling():
        return tensor.detach().clone(), None
    if tensor.is_inference():
        with torch.inference_mode(False):
            return tensor.clone(), None
    return tensor.detach() if tensor.requires_grad else tensor, tensor._version


def _is_at(tensor: Tensor, version: int | None) -> bool:
    return version is None or tensor._version == version


def _same(now: Tensor, then: Tensor) -> bool:
    if now is then:
        return True
    if (now.shape, now.dtype, now.device) != (then.shape, then.dtype, then.device):
        return False
    # A view of the same memory needs no look at the numbers, for which the CPU would have to wait for a GPU.
    return (now.stride() == then.stride() and now.data_ptr() == then.data_ptr()) or torch.equal(now, then)
