"""Whether the tensors of a mask are still what they were, and whether what is made from them may be kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def state_of(name: str, *tensors: Tensor | None) -> Hashable | None:
    """The state of a mask that is made of tensors; None if one of them does not count its changes."""
    given = [t for t in tensors if t is not None]
    if not all(counted(t) for t in given):
        return None
    return (name, *((id(t), t._version) for t in given))


def counted(tensor: Tensor) -> bool:
    """Whether torch counts the changes of a tensor: not in inference mode, nor where numpy has the same memory."""
    return not tensor.is_inference() and not _shared(tensor)


def own(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if numpy has the same memory and may change it unnoticed."""
    return tensor.clone() if _shared(tensor) else tensor


def _shared(tensor: Tensor) -> bool:
    # Memory that torch did not take itself, or has handed to numpy, it may not resize.
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not tensor.untyped_storage().resizable()


def may_keep() -> bool:
    """Whether tensors made now can be kept for later: not those of a graph, a transformation or a dispatch mode."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )
