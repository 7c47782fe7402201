"""What ranks compare before they begin: a sum of the mask, the bias and the sinks, which must be the same on all."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from sightline.portable import Portable

# Numbers that are added up at once.
_AT_ONCE = 1 << 20


def summed(thing: Any) -> str:
    """A short word for what something holds, to the last bit; on whatever device it lies.

    >>> summed(torch.arange(3.0)) == summed(torch.arange(3.0)), summed(torch.arange(3.0)) == summed(torch.ones(3))
    (True, False)
    """
    return f"{zlib.crc32(_said(thing).encode()):08x}"


def _said(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"{thing.dtype} {tuple(thing.shape)} {_sums(thing.detach())}"
    if isinstance(thing, Portable):
        return f"{thing.class_name} {_said(dict(sorted(thing.fields().items())))}"
    if isinstance(thing, dict):
        return f"{{{', '.join(f'{name!r}: {_said(value)}' for name, value in thing.items())}}}"
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(_said, thing))}]"
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        return repr(thing)
    return getattr(thing, "__qualname__", type(thing).__qualname__)  # a function: nobody can look into it


@torch.no_grad()
def _sums(tensor: Tensor) -> tuple[int, int]:
    """The sum of all numbers as whole numbers, and the same with each weighed by its place."""
    for axis, step in enumerate(tensor.stride()) if tensor.layout == torch.strided else ():
        tensor = tensor.narrow(axis, 0, 1) if step == 0 and tensor.shape[axis] > 1 else tensor
    flat = tensor.reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    plain = placed = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), _AT_ONCE):
        part = flat[start : start + _AT_ONCE].view(whole).to(torch.int64)
        plain = plain + part.sum()
        # Sums that grow too large begin again from below: the same on every rank.
        placed = placed + (part * torch.arange(start + 1, start + 1 + len(part), device=flat.device)).sum()
    return int(plain), int(placed)
