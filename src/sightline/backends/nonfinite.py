"""What is not finite: NaN and inf reach the rows that read them, and no others.

Torch's fused CPU kernel errs in both directions. It multiplies hidden values by 0, which for NaN is NaN. And it takes a
row whose largest score it finds to be -inf for one that sees nothing, and gives 0: of the last keys, those that do not
fill a vector of the processor (fewer than 8 with AVX2, than 16 with AVX-512), it finds the largest by a comparison
that passes over NaN; and in half precision its quick exponential makes 0 of inf - inf. Either is noticed at the
output, and the call is then done again by tiles (`streaming`), which know what is hidden.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from sightline.backends.grouped_rows import HALF

if TYPE_CHECKING:
    from sightline.backends.call import Call

# The numbers of a vector in any of the kernels: what is a multiple of it leaves no keys over.
LANES = 16


def spoiled(call: Call, out: Tensor) -> bool:
    """Whether the fused CPU kernel may have spread NaN or inf to rows that do not see them, or lost them.

    Looked at are the output, and where a backward pass may come the inputs: a hidden key that is not finite leaves the
    output alone and reaches the gradients. Values are not looked at in a compiled graph, under torch.func, or far away
    on a GPU.
    """
    if not out.is_cpu or unreadable(out):
        return False
    if call.mask is not None:
        if not finite(out):
            return True
        if out.requires_grad and not finite(call.q, call.k, call.v):
            return True
    if call.softcap is not None or not call.normalizer.is_softmax or call.dropout:
        return False  # never the fused kernel's
    s = call.sizes
    # Under a mask the kernel may stop at the last query, or get some of the keys.
    even = s.keys % LANES == 0 and (call.mask is None or s.queries % LANES == 0)
    if even and out.dtype not in HALF:
        return False
    if not out.numel() or not call.k.numel() or not zeros(out.detach()):
        return False
    return unbounded(call.q, call.k, call.scale, call.bias if isinstance(call.bias, Tensor) else None)


def zeros(out: Tensor) -> bool:
    """Whether some row of an output without gradient may be 0: the smallest magnitude of one channel is, or is NaN."""
    return not torch.linalg.vector_norm(out.select(-1, 0), -torch.inf).item() > 0


def unbounded(q: Tensor, k: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> bool:
    """Whether scores may be NaN or inf: something in them is, or a product overflows."""
    largest = _largest(q) * _largest(k) * q.shape[-1] * max(1.0, abs(scale))
    if bias is not None and bias.numel():
        largest += bias.detach().clamp_min(0).amax().item()
    return not largest < torch.finfo(q.dtype if q.dtype not in HALF else torch.float32).max


def _largest(x: Tensor) -> float:
    """The largest magnitude; NaN if there is a NaN."""
    low, high = torch.aminmax(x.detach())
    return max(-low.item(), high.item())


def nan_of_infinity(lse: Tensor) -> Tensor:
    """The lse of a row with a score of inf is NaN, as its weights are: the kernel says inf or NaN as it comes."""
    if lse.is_cpu and not unreadable(lse) and finite(lse):
        return lse
    return lse.masked_fill(lse == torch.inf, torch.nan)


def finite(*tensors: Tensor) -> bool:
    """Whether all is finite, by one sum of each: NaN and inf stay in it."""
    if not tensors[0].is_cpu:  # one wait for the GPU
        return math.isfinite(torch.stack([_sum(t) for t in tensors]).sum().item())
    return all(math.isfinite(_sum(t).item()) for t in tensors)


def _sum(x: Tensor) -> Tensor:
    x = x.detach() if x.requires_grad else x
    # In half precision a sum of finite numbers could overflow.
    return x.sum(dtype=torch.float32) if x.dtype in HALF else x.sum()


def unreadable(x: Tensor) -> bool:
    """Whether values cannot be looked at: in a compiled graph, under torch.func, and where there are none."""
    return torch.compiler.is_compiling() or transformed() or isinstance(x, FakeTensor) or x.is_meta or recording()


def recording() -> bool:
    """Whether torch writes down what is done (`make_fx`): what depends on values would be lost."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def transformed() -> bool:
    """Whether this runs under a torch.func transformation, where values cannot be looked at."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
