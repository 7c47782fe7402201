"""The log-sum-exp that torch's fused attention computes anyway, caught while its own kernel runs.

A dispatch mode sees the operator that torch chose beneath `F.scaled_dot_product_attention`. The output is torch's own,
to the bit; the log-sum-exp lies beside it, and where the operator would leave it out, it is asked for.

A mode costs a step of a generation more than its kernel. Where nothing else listens, a plain call is therefore made as
torch makes it: by the operator that torch says it would choose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
# Where each operator keeps the wish for a log-sum-exp among its arguments; None: it always gives one.
_WISH = {
    "_scaled_dot_product_flash_attention_for_cpu": None,
    "_scaled_dot_product_flash_attention": None,
    "_scaled_dot_product_efficient_attention": 4,
    "_scaled_dot_product_cudnn_attention": 4,
}
_KNOWN = {getattr(_ATEN, name).default: wish for name, wish in _WISH.items() if hasattr(_ATEN, name)}


class Catch(TorchDispatchMode):
    """Inside `with Catch() as caught:` the fused attention that ran last: its arguments and its log-sum-exp.

    >>> import torch.nn.functional as F
    >>> q = torch.randn(1, 2, 5, 8)
    >>> with torch.no_grad(), Catch() as caught:
    ...     _ = F.scaled_dot_product_attention(q, q, q)
    >>> caught.lse.shape
    torch.Size([1, 2, 5])
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch puts its compiler's guard around every call, which takes longer than the call

    def __init__(self) -> None:
        super().__init__()
        self.lse: Tensor | None = None
        self._call: tuple[Any, tuple, dict] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the operator, by name."""
        if self._call is None:
            return {}
        func, args, kwargs = self._call
        return dict(zip((argument.name for argument in func._schema.arguments), args)) | kwargs

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is _ATEN.scaled_dot_product_attention.default:
            # In inference mode it arrives whole.
            with self:
                return func.decompose(*args, **kwargs)
        if func not in _KNOWN:
            return func(*args, **kwargs)
        wish = _KNOWN[func]
        if wish is not None and len(args) > wish:
            args = (*args[:wish], True, *args[wish + 1 :])
        elif wish is not None:
            kwargs["compute_log_sumexp"] = True
        result = func(*args, **kwargs)
        self._call = (func, args, kwargs)
        q, lse = args[0], result[1]
        if lse.dim() == q.dim() and lse.shape[-1] == 1:
            lse = lse.squeeze(-1)
        # One kernel rounds the number of rows up.
        self.lse = lse[..., : q.shape[-2]].detach()
        return result


class Caught(threading.local):
    """What the latest call in this thread of a function made by `catching` found."""

    # The lse, how many keys torch was given, and whether it was told that they are causal; None where it was not asked.
    found: tuple[Tensor | None, int, bool] | None = None


caught = Caught()


def catching(function: FunctionType) -> FunctionType:
    """A function as it is, but that its `torch.nn.functional.scaled_dot_product_attention` leaves the lse in `caught`.

    >>> def attend(q):
    ...     return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> q = torch.randn(1, 2, 5, 8)
    >>> with torch.no_grad():
    ...     same = torch.equal(catching(attend)(q), attend(q))
    >>> same, caught.found[0].shape, caught.found[1:]
    (True, torch.Size([1, 2, 5]), (5, True))
    """
    names = {**function.__globals__, "torch": _Torch()}
    own = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return own


class _Torch:
    """torch, with one function of `torch.nn.functional` that is not its own."""

    def __init__(self) -> None:
        self.nn = SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=_attend))
        self.jit, self.Tensor = torch.jit, torch.Tensor  # what is asked for in every call is found without a detour

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """F.scaled_dot_product_attention without gradients."""
    kernel = None if attn_mask is not None or dropout_p else _kernel(query, key, value, is_causal, scale, enable_gqa)
    if kernel is not None:
        out, lse = kernel(query, key, value, is_causal, scale)
        caught.found = lse, key.shape[-2], is_causal
        return out
    with Catch() as mode:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    caught.found = mode.lse, key.shape[-2], is_causal
    return out


def _kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, grouped: bool) -> Callable | None:
    """The operator that torch chooses for a plain call, if nobody else hears of it and it takes the call as it is."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack() or type(q) is not Tensor:
        return None
    device = q.device.type
    if q.dim() != 4 or not q.numel() or not k.numel() or torch.is_autocast_enabled(device):
        return None
    chosen = torch._fused_sdp_choice(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    if device == "cpu":
        return _flash_on_cpu if chosen == _FLASH else None
    if not q.is_cuda or q.shape[-1] % 8 or v.shape[-1] != q.shape[-1]:
        return None
    return _flash if chosen == _FLASH else _cudnn if chosen == _CUDNN else None


_FLASH, _CUDNN = SDPBackend.FLASH_ATTENTION.value, SDPBackend.CUDNN_ATTENTION.value


def _operator(name: str) -> Callable:
    """An operator as torch has it for Python: a microsecond or two less a call than by its schema."""
    found = getattr(torch, name, None)
    return getattr(_ATEN, name) if found is None else found


def _flash_on_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    out, lse = _FLASH_ON_CPU(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    out, lse, *_ = _FLASH_ON_CUDA(q, k, v, 0.0, causal, False, scale=scale)
    queries = q.shape[-2]
    return out, lse if lse.shape[-1] == queries else lse[..., :queries]


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    out, lse, *_ = _CUDNN_ON_CUDA(q, k, v, None, True, 0.0, causal, False, scale=scale)
    return out, lse.squeeze(-1) if lse.dim() == q.dim() else lse


_FLASH_ON_CPU = _operator("_scaled_dot_product_flash_attention_for_cpu")
_FLASH_ON_CUDA = _operator("_scaled_dot_product_flash_attention")
_CUDNN_ON_CUDA = _operator("_scaled_dot_product_cudnn_attention")
