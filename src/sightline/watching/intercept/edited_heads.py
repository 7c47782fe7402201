"""torch.nn.MultiheadAttention under edits: its projections are its own, and the attention between them is changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sightline.masks import causal
from sightline.watching.intercept import active
from sightline.watching.intercept.changed import change, tell
from sightline.watching.intercept.heads import Heads, before_projection
from sightline.watching.intercept.looked import Edited

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience

Read = Callable[..., tuple[Any, Any, Any]]
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


def edited_heads(
    func: Any, given: dict, who: Audience, first: int, read: Read, account: Callable[..., Any]
) -> tuple[Tensor, Tensor | None]:
    """F.multi_head_attention_forward with the attention inside it edited; and the weights, if they are asked for."""
    inside, taken = _Inside(who, given, first, read), list[Heads]()
    if who.deep:
        seen = before_projection(func, who.name, taken)
    else:
        # The function asks whether a mode is on, and would hand itself over: what it calls is to be seen, not it.
        seen = FunctionType(func.__code__, func.__globals__ | {"has_torch_function": lambda _: False}, func.__name__)
        seen.__defaults__, seen.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    with active.quiet(), inside:
        out, weights = seen(**given)
    q, k, v = inside.tensors
    heads = taken[0]._replace(v=v) if taken else None
    if not tell(who, inside.found, first, 0, heads):
        who.record(account(q, k, v, *inside.meant, heads=heads))
    if weights is None or inside.found.weights is None:
        return out, weights
    shown = inside.found.weights
    if given.get("average_attn_weights", True):
        shown = shown.mean(1)
    return out, shown.reshape(weights.shape)


class _Inside(TorchFunctionMode):
    """Sees what F.multi_head_attention_forward calls: torch's fused attention, or two products and a softmax."""

    def __init__(self, who: Audience, given: dict, first: int, read: Read) -> None:
        super().__init__()
        self.who, self.first, self.read = who, first, read
        self.heads = given["num_heads"]
        self.dropout = given.get("dropout_p", 0.0) if given.get("training", True) else 0.0
        self.scores: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.found = Edited(torch.empty(0))
        self.tensors: tuple[Tensor, ...] = ()
        self.meant: tuple[Any, ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            used = dict(zip(_SDPA, args)) | kwargs
            q, k, v, table = used["query"], used["key"], used["value"], used.get("attn_mask")
            return self._changed(q, k, v, out, table, 1 / math.sqrt(q.shape[-1]), bool(used.get("is_causal")))
        if func is torch.baddbmm:
            self.scores = (args[1], args[2].mT, args[0])
        elif func is torch.bmm and self.scores is None:
            self.scores = (args[0], args[1].mT, None)
        elif func is torch.bmm:
            weights, v = args
            q, k, table = (None if t is None else self._split(t) for t in self.scores)  # type: ignore[union-attr]
            assert q is not None
            assert k is not None
            shape = (q.shape[0], self.heads, q.shape[2], v.shape[-1])
            # q was scaled before; a watch knows it as it was, and patches bring it so.
            root = math.sqrt(q.shape[-1])
            changed = self._changed(
                q * root, k, self._split(v), out.view(shape), table, 1 / root, False, self._split(weights)
            )
            return changed.reshape(out.shape)
        return out

    def _split(self, x: Tensor) -> Tensor:
        """[batch x heads, …] in four axes; a mask may be one for all."""
        return x[:, None] if x.shape[0] == 1 and self.heads > 1 else x.unflatten(0, (-1, self.heads))

    def _changed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        table: Tensor | None,
        scale: float,
        flag: bool,
        weights: Tensor | None = None,
    ) -> Tensor:
        mask, bias, _ = self.read(self.who, table, q, k)
        if flag:
            mask = causal("end" if q.shape[-2] == k.shape[-2] else "start")
        self.meant, self.tensors = (mask, bias, scale, self.first), (q, k, v)
        self.found = change(self.who, q, k, v, out, *self.meant, weights=weights, dropout=self.dropout)
        return self.found.out
