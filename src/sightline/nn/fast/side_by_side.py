"""Linear layers with the same input, computed as one where their weights lie side by side in memory.

One product with a matrix three times as tall takes less time than three products. Parameters keep their names, shapes
and values: they are views of a larger block, and nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Affine = tuple[Tensor, Tensor | None]


def side_by_side(*linears: nn.Linear) -> tuple[Tensor, Tensor | None] | None:
    """The weight and the bias of linear layers as one, if they lie side by side; nothing is copied."""
    weight = _joined([linear.weight for linear in linears])
    biases = [linear.bias for linear in linears]
    if weight is None or len({b is None for b in biases}) > 1:
        return None
    if biases[0] is None:
        return weight, None
    bias = _joined(biases)
    return None if bias is None else (weight, bias)


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    first, end = parts[0], parts[0].storage_offset()
    for part in parts:
        fits = part.dtype == first.dtype and part.shape[1:] == first.shape[1:] and part.stride() == first.stride()
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not fits or not same or part.storage_offset() != end:
            return None
        end += len(part) * part.stride(0)
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    return first.detach().as_strided(shape, first.stride(), first.storage_offset())


@torch.no_grad()
def lay_side_by_side(*linears: nn.Linear) -> None:
    """Move the weights of linear layers with the same input next to each other, if they are plain parameters.

    >>> a, b = nn.Linear(8, 4), nn.Linear(8, 6)
    >>> lay_side_by_side(a, b)
    >>> side_by_side(a, b)[0].shape
    torch.Size([10, 8])
    """
    both: tuple[list[Tensor], list[Tensor]] = ([linear.weight for linear in linears], [x.bias for x in linears])
    for parts in both:
        plain = all(type(part) is nn.Parameter for part in parts)
        if not plain or len({(part.dtype, part.device, part.shape[1:]) for part in parts}) > 1 or parts[0].is_meta:
            continue
        for part, place in zip(parts, torch.cat(parts).split([len(part) for part in parts]), strict=True):
            part.data = place


def is_plain(linear: nn.Module) -> bool:
    """Whether calling a module is a product with its own weights and nothing else.

    >>> is_plain(nn.Linear(2, 2)), is_plain(nn.Identity())
    (True, False)
    """
    return type(linear) is nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks


class Joined:
    """The last answer of `side_by_side`, for as long as the weights stay where they are.

    Copies and pickles of a module get a new one.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: tuple[list[int], Affine | None] | None = None

    def __reduce__(self) -> tuple[type[Joined], tuple[()]]:
        return Joined, ()

    def of(self, *linears: nn.Linear) -> Affine | None:
        """The layers as one, or None if they do not lie side by side, or if calling them does more than a product."""
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        return self.of_plain(*linears) if all(map(is_plain, linears)) else None

    def of_plain(self, *linears: nn.Linear) -> Affine | None:
        """The same for layers of which it is known that they do no more than a product."""
        addresses = []
        for linear in linears:
            own = linear._parameters
            weight, bias = own["weight"], own["bias"]
            if type(weight) is not nn.Parameter:
                return None  # a fake one, or one of a subclass
            # What was joined is held, so no other weight can come to lie at its address.
            addresses.append(weight.data_ptr())
            if bias is not None:
                addresses.append(bias.data_ptr())
        if self._found is None or self._found[0] != addresses:
            self._found = (addresses, side_by_side(*linears))
        return self._found[1]

    def forget(self) -> None:
        self._found = None
