"""How much keys carry: the size of each value behind the layer that takes the heads' output.

Which layer that is, is found by running: the module, or the product, whose input is that output, number by number. What
it does to a head's part is read off its weight, or, of adapters and quantised layers, by applying it: it is linear but
for its value at 0, which is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sightline.watching.intercept import active
from sightline.watching.record.batches import aside
from sightline.watching.record.decoding_steps import differ
from sightline.watching.record.readings import Asked

if TYPE_CHECKING:
    from sightline.shapes import Sizes
    from sightline.watching.record.layer import Layer, Part

ALONE = "the values alone"
# Modules inside of one that is tried, rows it is tried on, and by how much it may be off.
_PARTS, _ROWS, _OFF = 32, 8, 0.05
# Numbers of a product at once.
_CELLS, _SMALL = 1 << 24, 1 << 20


class Pending(NamedTuple):
    """A call whose projection is not known yet."""

    layer: Layer
    part: Part
    v: Tensor  # [batch, kv_heads, new keys, value_dim]
    out: Tensor | None  # [batch, heads, queries, value_dim]; None if nobody will be given it any more
    sizes: Sizes
    asked: Asked
    between: list[str]  # modules that took the output and are not linear


class Projections:
    """The layers that take the heads' outputs of one model, as far as they are known."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.known: dict[str, tuple[nn.Module | Tensor, str]] = {}  # by the path of the module that attends
        self.pending: list[Pending] = []
        self.then: Callable[[Layer], None] | None = None  # whom to tell that it is known of a layer

    def hook(self, stack: ExitStack, modules: list[nn.Module]) -> None:
        """Hear what modules are given."""
        stack.enter_context(Products(self))
        self.thread = threading.get_ident()
        for module in modules:
            stack.callback(module.register_forward_pre_hook(self._given, with_kwargs=True).remove)

    def add(self, one: Pending, told: tuple[Tensor, str] | None) -> None:
        """A call; what takes its output may be known already."""
        known = told or self.known.get(one.layer.name.partition("#")[0])
        if known is None and one.out is not None:
            self.pending.append(one)
            return
        if known is None:
            self._done(one, None, one.layer.parts[0].extra.get("norms_of", ALONE))
            return
        layer, words = known
        weight = layer if isinstance(layer, Tensor) else _weight_of(layer)
        if weight is None:
            self._done(one, None, f"{ALONE}: {words} has no weight to read")
        else:
            self._done(one, weight, words)

    def settle(self) -> None:
        """A pass is over: what nobody took as it is has no projection."""
        pending, self.pending = self.pending, []
        for one in pending:
            why = f"{one.between[0]} stands between" if one.between else "no linear layer takes it as it is"
            self._done(one, None, f"{ALONE}: {why}")

    def restart(self) -> None:
        self.pending = []

    def _given(self, module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        if threading.get_ident() != self.thread or kwargs is None:
            return  # another thread's, which may be about to call it while it is taken away
        if not self.pending or not args or not isinstance(args[0], Tensor) or isinstance(module, _NOTHING):
            return
        if torch._C._current_graph_task_id() != -1:
            return
        with active.quiet(), aside():
            for one in self.pending:
                if one.out is not None and _is_output(args[0].detach(), one.out):
                    self._try(module, args, kwargs, one)
                    return

    def product(self, x: Tensor, weight: Tensor) -> None:
        """A product `x @ weight` that is no module's: its weight `[in, out]`."""
        with active.quiet(), aside():
            for one in self.pending:
                if one.out is not None and _is_output(x.detach(), one.out):
                    self._found(one, weight.mT, weight.mT, f"a product in {one.layer.name.partition('#')[0]}")
                    return

    def _try(self, module: nn.Module, args: tuple, kwargs: dict, one: Pending) -> None:
        name = self.names.get(id(module), type(module).__name__)
        path, _, last = name.rpartition(".")
        words = f"{last} of {path}" if path else last
        weight = _weight_of(module)
        if weight is not None:
            known: nn.Module | Tensor = module
        else:
            if len(args) > 1 or kwargs:
                return  # a part of it may be the one
            weight = _by_applying(module, args[0])
            if weight is None:
                one.between.append(words)
                return
            known = weight
        self._found(one, known, weight, words)

    def _found(self, one: Pending, known: nn.Module | Tensor, weight: Tensor, words: str) -> None:
        self.known[one.layer.name.partition("#")[0]] = (known, words)
        self.pending = [other for other in self.pending if other is not one]
        self._done(one, weight, words)

    def _done(self, one: Pending, weight: Tensor | None, words: str) -> None:
        with active.quiet(), aside():
            found = sizes(one.v, weight, one.sizes)
            if found is None:
                found, words = sizes(one.v, None, one.sizes), f"{ALONE}: {words} has no part for each head"
            assert found is not None
            if one.layer.heads is not None:
                found = found[:, one.layer.heads]
            one.part.extra |= {"sizes": found.cpu(), "norms_of": words}
            one.asked.read_norms(one.part, found, words)
            one.layer.changed()
        if self.then is not None:
            self.then(one.layer)


class Products(TorchFunctionMode):
    """Hears products with a weight, while some heads' output waits for one."""

    is_watch = True  # nothing that models are asked about

    def __init__(self, projections: Projections) -> None:
        super().__init__()
        self.projections = projections

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.projections.pending and func in _PRODUCTS:
            first, turned = _PRODUCTS[func]
            pair = args[first : first + 2]
            if len(pair) == 2 and all(isinstance(x, Tensor) for x in pair) and pair[1].dim() == 2:
                self.projections.product(pair[0], pair[1].mT if turned else pair[1])
        return func(*args, **(kwargs or {}))


# Where products have what they are given, with the weight behind it; and whether that is `[out, in]`.
_PRODUCTS: dict[Any, tuple[int, bool]] = {
    F.linear: (0, True),
    torch.addmm: (1, False),
    torch.mm: (0, False),
    torch.matmul: (0, False),
    Tensor.matmul: (0, False),
    Tensor.__matmul__: (0, False),
}
# Modules that hand on what they are given, in evaluation.
_NOTHING = (nn.Dropout, nn.Identity)


def sizes(v: Tensor, weight: Tensor | None, s: Sizes) -> Tensor | None:
    """|W_h v_j| for every head and key, `[batch, heads, keys]`; |v_j| without a weight `[out, heads x dim]`.

    None if the weight does not have a part for each head.

    >>> from sightline.shapes import sizes_of
    >>> v = torch.tensor([[[[3.0, 4.0]]]])
    >>> sizes(v, None, sizes_of(v, v, v)), sizes(v, torch.tensor([[2.0, 0.0]]), sizes_of(v, v, v))
    (tensor([[[5.]]]), tensor([[[6.]]]))
    """
    v = v if v.dtype == torch.float64 else v.float()
    if weight is None:
        return v.norm(dim=-1).repeat_interleave(s.groups, 1)
    dim = v.shape[-1]
    if weight.dim() != 2 or weight.shape[1] != s.heads * dim:
        return None
    weight = weight.detach().to(v.device, v.dtype).contiguous()
    if s.heads * v.shape[0] * v.shape[2] * weight.shape[0] <= _SMALL:
        each = v if s.groups == 1 else v.repeat_interleave(s.groups, 1)
        return (each @ weight.view(-1, s.heads, dim).permute(1, 2, 0)).norm(dim=-1)
    if (root := _root(weight, s.heads)) is not None:
        each = v if s.groups == 1 else v.repeat_interleave(s.groups, 1)
        return (each @ root.to(v.dtype)).norm(dim=-1)
    out = v.new_empty(v.shape[0], s.heads, v.shape[2])
    step = max(_CELLS // max(weight.shape[0] * v.shape[0], 1), 1)
    for head in range(s.heads):
        part = weight[:, head * dim : (head + 1) * dim].mT
        for start in range(0, v.shape[2], step):
            rows = slice(start, start + step)
            out[:, head, rows] = (v[:, head // s.groups, rows] @ part).norm(dim=-1)
    return out


def _root(weight: Tensor, heads: int) -> Tensor | None:
    """A small matrix L for each head, `[heads, dim, dim]`, with |v L| = |W_h v| for every v; None if there is none.

    It is the root of W_h^T W_h, in float64: as exact as the product with W_h itself, and of the size of v.
    """
    parts = weight.double().view(weight.shape[0], heads, -1).permute(1, 0, 2)  # [heads, out, dim]
    root, bad = torch.linalg.cholesky_ex(parts.mT @ parts)
    small = root.diagonal(dim1=-2, dim2=-1).amin(-1) <= 1e-5 * root.diagonal(dim1=-2, dim2=-1).amax(-1)
    return None if bool(bad.any()) or bool(small.any()) else root


def _is_output(x: Tensor, out: Tensor) -> bool:
    """Whether a tensor holds the heads' output, one head beside the other, and nothing else."""
    _, heads, _, dim = out.shape
    if (
        x.numel() != out.numel()
        or not x.dim()
        or x.shape[-1] != heads * dim
        or (x.dtype, x.device) != (out.dtype, out.device)
    ):
        return False
    rows = x.reshape(-1, heads * dim)
    for order in ((0, 2, 1, 3), (2, 0, 1, 3)):
        wanted = out.permute(order)
        first = wanted[0, 0].reshape(-1)
        if not bool(differ(rows[0], first).any()):
            return not bool(differ(rows, wanted.reshape(-1, heads * dim)).any())
    return False


def _weight_of(module: nn.Module) -> Tensor | None:
    """The weight `[out, in]` of a layer that is known to be a product with it."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.is_meta or not weight.is_floating_point():
        return None
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return weight
    if type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
        return weight.mT
    return None


def _by_applying(module: nn.Module, x: Tensor) -> Tensor | None:
    """The same of any module, from what it makes of unit vectors; None if it is not linear but for its value at 0."""
    if module.training or sum(1 for _ in module.modules()) > _PARTS or not any(True for _ in module.parameters()):
        return None
    width = x.shape[-1]
    some = x.detach().reshape(-1, width)[:_ROWS]
    try:
        zero = module.forward(some.new_zeros(1, width))
        weight = module.forward(torch.eye(width, dtype=x.dtype, device=x.device)) - zero
        got = module.forward(some)
    except Exception:  # it takes something else
        return None
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[0] != width or got.shape[0] != len(some):
        return None
    made = some.float() @ weight.float() + zero.float()
    off = (made - got.float()).abs().max()
    return weight.mT if bool(off <= _OFF * got.float().abs().max()) else None
