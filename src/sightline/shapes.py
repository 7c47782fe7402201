"""The one layout, and the checks that q, k and v follow it.

The layout is `[*batch, heads, time, dim]`, as in torch's scaled_dot_product_attention. `[heads, time, dim]`
is the same without a batch, and `[time, dim]` without batch and heads. Grouped heads need no flag: query
head `h` reads key head `h // (heads // kv_heads)`.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, NamedTuple

import torch

from sightline.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from torch import Tensor


class Sizes(NamedTuple):
    """The sizes of one attention call, read off q, k and v.

    >>> q, k = torch.zeros(2, 8, 5, 64), torch.zeros(2, 2, 7, 64)
    >>> sizes_of(q, k, k)
    Sizes(batch=(2,), heads=8, kv_heads=2, queries=5, keys=7, dim=64, value_dim=64)
    """

    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int

    @property
    def groups(self) -> int:
        """How many query heads share one key head."""
        return self.heads // self.kv_heads if self.kv_heads else 1


def default_scale(dim: int) -> float:
    """1 / sqrt(dim), so that scores keep unit variance.

    >>> default_scale(64)
    0.125
    """
    return 1 / math.sqrt(dim) if dim else 1.0


def as_whole(value: object) -> int | None:
    """A whole number of Python, numpy or another library as an int; None if it is none. True and False are none.

    >>> import numpy as np
    >>> as_whole(np.int32(3)), as_whole(3.0), as_whole(True)
    (3, None, None)
    """
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def as_number(value: object) -> float | None:
    """A number of Python, numpy or another library as a float; None if it is none. True and False are none.

    >>> import numpy as np
    >>> as_number(np.float32(0.5)), as_number(3), as_number("3")
    (0.5, 3.0, None)
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def _shapes(**tensors: Tensor) -> str:
    return ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())


def sizes_of(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """Read the sizes of a call, or raise an error that says what does not fit.

    >>> sizes_of(torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(5, 2)).value_dim
    2
    """
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, torch.Tensor):
            raise InputTypeError(
                f"{name} must be a tensor",
                expected="torch.Tensor",
                got=type(t).__name__,
                hint=f"torch.as_tensor({name})",
            )
    shape, k_shape, v_shape = q.shape, k.shape, v.shape
    rank = len(shape)
    if rank < 2 or len(k_shape) != rank or len(v_shape) != rank:
        raise InputError(
            "q, k and v must have the same number of axes, at least two",
            expected="[*batch, heads, time, dim], [heads, time, dim] or [time, dim], the same for all three",
            got=_shapes(q=q, k=k, v=v),
            hint="add the missing axes with unsqueeze, e.g. k[None]",
        )
    dtype = q.dtype
    if k.dtype != dtype or v.dtype != dtype:
        raise InputTypeError(
            "q, k and v must have the same dtype",
            expected=f"all {dtype}",
            got=f"q {q.dtype}, k {k.dtype}, v {v.dtype}",
            hint="k.to(q.dtype), or run under torch.autocast",
        )
    if not dtype.is_floating_point:
        raise InputTypeError(
            "q, k and v must be floating point",
            expected="float64, float32, float16 or bfloat16",
            got=dtype,
            hint="q.float()",
        )
    device = q.device
    if k.device != device or v.device != device:
        raise InputError(
            "q, k and v must be on the same device",
            expected=f"all on {device}",
            got=f"q {q.device}, k {k.device}, v {v.device}",
            hint="k.to(q.device)",
        )
    heads, kv_heads = (shape[-3], k_shape[-3]) if rank > 2 else (1, 1)
    if shape[:-3] != k_shape[:-3] or shape[:-3] != v_shape[:-3]:
        raise InputError(
            "q, k and v must have the same batch axes",
            expected=f"{tuple(shape[:-3])} in front of heads, time and dim",
            got=_shapes(q=q, k=k, v=v),
            hint="k.expand(*q.shape[:-3], *k.shape[-3:])",
        )
    if rank > 2 and v_shape[-3] != kv_heads:
        raise InputError(
            "k and v must have the same number of heads",
            expected=f"{kv_heads} heads in v, as in k",
            got=_shapes(k=k, v=v),
            hint="repeat the heads of the smaller one with repeat_interleave",
        )
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise InputError(
            "the heads of q must be a multiple of the heads of k and v",
            expected=f"a multiple of {kv_heads} heads in q",
            got=_shapes(q=q, k=k, v=v),
            hint="check the order of axes: [*batch, heads, time, dim]",
        )
    if shape[-1] != k_shape[-1]:
        raise InputError(
            "q and k must have the same size in their last axis",
            expected=f"dim {shape[-1]} in k, as in q",
            got=_shapes(q=q, k=k),
            hint="project both to the same dim; only v may differ",
        )
    if k_shape[-2] != v_shape[-2]:
        raise InputError(
            "k and v must have the same length",
            expected=f"{k_shape[-2]} keys in v, as in k",
            got=_shapes(k=k, v=v),
            hint="every key needs one value",
        )
    return Sizes(tuple(shape[:-3]), heads, kv_heads, shape[-2], k_shape[-2], shape[-1], v_shape[-1])
