"""Flash or cuDNN: which of torch's fused kernels does a call on a GPU while its shape is new.

On GPUs since Hopper torch takes cuDNN, which is up to twice as fast as flash, and makes a plan for every shape it has
not seen: some 50 ms, where attention over a few thousand tokens takes less than one. A model pays that once for each
length of its texts. So a shape begins with flash, which needs no plan, and goes over to cuDNN when what that would have
saved has grown to what a plan costs, or after more calls than a pass of most models has layers.

Whoever wants one of the two for all shapes says so by torch's own setting, `torch.nn.attention.sdpa_kernel`: where that
leaves only one of them, nothing is decided here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from sightline import caches

# Measured on an H200 (benchmarks/NOTES.md): seconds that a plan takes, and that cuDNN is faster by, for each cell of
# the map, each head and each number of a head.
_PLAN = 0.05
_FASTER = 4.8e-15
# With a backward pass there are two plans, and that much more to be saved by each.
_BACKWARD = 1.8
# Calls after which a shape has come often enough.
_OFTEN = 128
# Shapes that are remembered.
_MOST = 4096

# By shape: the share of a plan's cost that flash has lost.
_spent: OrderedDict[tuple, float] = caches.held("backends.plans", OrderedDict(), _MOST, lambda: forget())
_lock = threading.Lock()


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, grouped: bool, scale: float | None = None) -> Tensor:
    """Torch's fused attention without a table, by flash while the shape is new."""
    if q.is_cuda and is_new(q, k, v, causal, grouped):
        # By its operator: torch's setting would hold for all threads.
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[0]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


def is_new(q: Tensor, k: Tensor, v: Tensor, causal: bool, grouped: bool, *, count: bool = True) -> bool:
    """Whether a call without a table is one that flash does, because cuDNN would first make a plan for it.

    With `count` it is a call that is about to be done. Whether the log-sum-exp is asked for, or where the numbers lie,
    is another plan and not another shape: a call that is looked at comes from the kernel that it came from before.
    """
    if torch.compiler.is_compiling() or not q.is_cuda or _casts(q):
        return False
    grads = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    key = (q.shape, k.shape, v.shape, q.dtype, causal, grads, q.device.index)
    with _lock:
        spent = _spent.get(key, 0.0)
        if spent >= 1 or not _both(q, k, v, causal, grouped):
            return False
        cells = q.shape[-2] * k.shape[-2] * (0.5 if causal else 1.0)
        lost = cells * q.shape[0] * q.shape[1] * q.shape[-1] * _FASTER * (_BACKWARD if grads else 1.0)
        spent += max(lost / _PLAN, 1 / _OFTEN)
        if count:
            _spent[key] = spent
            _spent.move_to_end(key)
            if len(_spent) > _MOST:
                _spent.popitem(last=False)
    return spent < 1


def forget() -> None:
    """Every shape is new again."""
    with _lock:
        _spent.clear()


def _casts(q: Tensor) -> bool:
    """Whether autocast makes another dtype of it."""
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") != q.dtype


def _both(q: Tensor, k: Tensor, v: Tensor, causal: bool, grouped: bool) -> bool:
    """Whether torch would take cuDNN, and flash can do the call as well."""
    cuda = torch.backends.cuda
    if not (cuda.flash_sdp_enabled() and cuda.cudnn_sdp_enabled()):
        return False
    chosen = torch._fused_sdp_choice(q, k, v, is_causal=causal, enable_gqa=grouped)
    if chosen != SDPBackend.CUDNN_ATTENTION.value:
        return False
    return cuda.can_use_flash_attention(cuda.SDPAParams(q, k, v, None, 0.0, causal, grouped))
