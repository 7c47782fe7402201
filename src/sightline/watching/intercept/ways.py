"""How scores written by hand lie: from the product of q and k to the softmax, and from there to the next product.

A way begins at a product, which has an axis of rows and one of columns. What only reshapes is written down, and tried
out on a tensor without numbers when a softmax comes; what moves numbers elsewhere (a roll, a gather, a piece) ends it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Product(NamedTuple):
    """Two factors of a product, `[..., rows, dim]` and `[..., columns, dim]` if they can be had, and where they lie."""

    q: Tensor | None
    k: Tensor | None
    shape: torch.Size
    rows: int  # axes of the product, counted from its end
    columns: int


class Way(NamedTuple):
    """A product, and the functions that have reshaped it since, each with the shape it was given."""

    product: Product
    steps: tuple[tuple[Any, torch.Size, tuple, dict], ...] = ()

    def through(self, func: Any, x: Tensor, args: tuple, kwargs: dict, result: Any) -> Way | None:
        """The way of what a function made of a tensor; None if it cannot be followed."""
        if func in RESHAPES and isinstance(result, Tensor):
            if func in AS_ANOTHER:
                func, args, kwargs = AS_ANOTHER[func], (x, result.shape), {}
            kwargs = {name: value for name, value in kwargs.items() if name not in ("input", "self")}
            return self._replace(steps=(*self.steps, (func, x.shape, args[1:], kwargs)))
        return self if func in KEEPS and isinstance(result, Tensor) and result.shape == x.shape else None

    def axes(self) -> tuple[int, int] | None:
        """The axes of rows and columns of the tensor at its end, counted from the end; None if they are no more."""
        shape, rows, columns = self.product.shape, self.product.rows, self.product.columns
        for func, given, args, kwargs in self.steps:
            if given != shape:
                return None
            probe = torch.empty(given, device="meta")
            found = func(probe, *args, **kwargs)
            across = _moved(probe, columns, found, None)
            down = _moved(probe, rows, found, across)
            if across is None or down is None:
                return None
            shape, rows, columns = found.shape, down, across
        return rows, columns


def _moved(x: Tensor, axis: int, found: Tensor, taken: int | None) -> int | None:
    """Where an axis of a tensor went, by its size and its stride: of one position it does not matter where it is."""
    size, stride = x.shape[axis], x.stride(axis)
    for i in range(-1, -found.dim() - 1, -1):
        if i != taken and found.shape[i] == size and (found.stride(i) == stride or size == 1):
            return i
    return None


def of_product(func: Any, args: tuple, operands: list[Tensor], result: Tensor) -> Way | None:
    """The way that begins at a product of two tensors."""
    if len(operands) != 2:
        return None
    a, b = (x.detach() for x in operands)
    if func in EINSUM:
        return _of_einsum(args[0], a, b, result)
    if min(a.dim(), b.dim()) < 2 or func not in MATRICES or result.shape[-2:] != (a.shape[-2], b.shape[-1]):
        if func is not torch.cdist or result.shape[-2:] != (a.shape[-2], b.shape[-2]):
            return None
        return Way(Product(None, None, result.shape, -2, -1))
    return Way(Product(a, b.mT, result.shape, -2, -1))


def _of_einsum(equation: Any, a: Tensor, b: Tensor, result: Tensor) -> Way | None:
    found = letters(equation)
    if found is None:
        return None
    one, other, out = found
    rows = [c for c in out if c != "." and c in one and c not in other]
    columns = [c for c in out if c != "." and c in other and c not in one]
    dims = [c for c in one if c in other and c not in out]
    if not rows or not columns or len(dims) != 1:
        return None
    row, column = rows[-1], columns[-1]  # what stands before may be heads that share the keys
    if _hidden(out, row) or _hidden(out, column):
        return None
    q = k = None
    if "." not in one + other + out:
        shared = [c for c in out if c not in (row, column)]
        q, k = _ordered(a, one, [*shared, row, dims[0]]), _ordered(b, other, [*shared, column, dims[0]])
    return Way(Product(q, k, result.shape, out.index(row) - len(out), out.index(column) - len(out)))


def _ordered(x: Tensor, have: str, want: list[str]) -> Tensor:
    """A tensor with its axes in another order; those that it has not are of one position."""
    found = x.permute([have.index(c) for c in want if c in have])
    for i, c in enumerate(want):
        if c not in have:
            found = found.unsqueeze(i)
    return found


def letters(equation: Any) -> tuple[str, str, str] | None:
    """The letters of an einsum of two tensors; an ellipsis is one point.

    >>> letters("... i d, ... j d -> ... i j")
    ('.id', '.jd', '.ij')
    """
    if not isinstance(equation, str) or "->" not in equation:
        return None
    given, out = equation.replace(" ", "").replace("...", ".").split("->")
    pair = given.split(",")
    return (pair[0], pair[1], out) if len(pair) == 2 else None


def _hidden(out: str, letter: str) -> bool:
    """Whether a letter's place cannot be counted from the end."""
    return "." in out[out.index(letter) :]


def summed_over(func: Any, args: tuple, place: int, x: Tensor) -> int | None:
    """Which axis of an operand a product sums over, counted from the end; None if that cannot be told."""
    if func in EINSUM:
        found = letters(args[0])
        if found is None:
            return None
        own, other, out = found[place], found[1 - place], found[2]
        summed = [c for c in own if c in other and c not in out]
        if len(summed) != 1 or _hidden(own, summed[0]):
            return None
        return own.index(summed[0]) - len(own)
    if func not in MATRICES or x.dim() < 2:
        return None
    return -1 if place == 0 else -2


def _functions(names: str) -> set[Any]:
    found = {getattr(owner, name) for owner in OWNERS for name in names.split() if hasattr(owner, name)}
    return {function for function in found if callable(function)}


OWNERS = (torch, torch.Tensor, torch.nn.functional, torch.special, torch._C._nn)
EINSUM = {torch.einsum}
MATRICES = _functions("matmul __matmul__ mm bmm baddbmm baddbmm_ addmm")
RESHAPES = _functions("""
    view view_as reshape reshape_as flatten unflatten transpose permute swapaxes swapdims movedim moveaxis t adjoint
    squeeze unsqueeze expand expand_as broadcast_to
""") | {getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH")}
AS_ANOTHER = {
    torch.Tensor.view_as: torch.Tensor.view,
    torch.Tensor.reshape_as: torch.Tensor.reshape,
    torch.Tensor.expand_as: torch.Tensor.expand,
}
# Each number changed by itself or by others of its row: what comes of a cell stands where the cell stood.
CELLWISE = _functions("""
    relu relu_ relu6 leaky_relu leaky_relu_ elu elu_ selu selu_ celu celu_ gelu silu mish hardswish hardtanh hardtanh_
    sigmoid sigmoid_ logsigmoid hardsigmoid softplus softsign softshrink hardshrink tanhshrink threshold threshold_
    sin cos sinh cosh asinh atan arctan erf expm1 log log1p log2 logit sign sgn round round_ floor ceil trunc frac
    reciprocal rsqrt float_power floor_divide __floordiv__ fmod remainder __mod__ cumsum logcumsumexp
    layer_norm rms_norm instance_norm normalize fake_quantize_per_tensor_affine
""")
# The same numbers in the same places, or each of them changed by itself.
KEEPS = CELLWISE | _functions("""
    contiguous clone detach to type type_as float half bfloat16 double cpu cuda dropout dropout_ dropout1d dropout2d
    alpha_dropout clamp clamp_ clip clip_ clamp_min clamp_min_ clamp_max clamp_max_ tanh tanh_ nan_to_num nan_to_num_
    masked_fill masked_fill_ tril triu neg relu pow __pow__ square sqrt abs
""")
# Of weights: what leaves them as they are, but for dropout and their precision.
PURE = _functions("""
    contiguous clone detach to type type_as float half bfloat16 double cpu cuda dropout dropout_ dropout1d dropout2d
    alpha_dropout
""")
