"""The log-sum-exp that torch's fused attention computes anyway, caught while its own kernel runs.

A dispatch mode sees the operator that torch chose beneath `F.scaled_dot_product_attention`. The output is torch's own,
to the bit; the log-sum-exp lies beside it, and where the operator would leave it out, it is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
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
