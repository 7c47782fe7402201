"""`xformers.ops.memory_efficient_attention`, by its documented signature: `[batch, time, heads, dim]`.

It was tried with a stand-in that computes what is documented: the package itself needs a GPU. Its masks are known by
the names of their classes, of which LowerTriangularMask is aligned at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.masks import Mask, causal
from sightline.watching.intercept import active
from sightline.watching.intercept.torch_calls import look, position
from sightline.watching.intercept.varlen import named, packed

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience

_TRIANGLES = {"LowerTriangularMask": "start", "LowerTriangularFromBottomRightMask": "end"}
_BLOCKS = ("BlockDiagonalMask", "BlockDiagonalCausalMask")


def memory_efficient(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    given = named("query key value attn_bias p scale", args, kwargs)
    q, k = given["query"], given["key"]
    rule: Any = given.get("attn_bias")
    kind = type(rule).__name__
    ordered = rule is None or kind == "Tensor" or kind in _TRIANGLES or kind in _BLOCKS
    first = position(who, q.shape[1], k.shape[1], None if isinstance(rule, Tensor) else kind in _TRIANGLES, None)
    if not who.wanting:
        who.note(first, k.shape[1])
    with active.quiet():
        out = func(*args, **kwargs)
    if not who.wanting:
        return out
    if not ordered or q.dim() > 4 or k.dim() > 4:
        unknown = f"given a mask of xformers that is not known here: {kind}"
        who.miss("given grouped heads in five axes" if ordered else unknown, first, k.shape[1])
        return out
    if q.dim() == 3:
        q, k = q[:, :, None], k[:, :, None]
    if kind in _BLOCKS:
        ends = [torch.as_tensor(side.seqstart_py, device=q.device) for side in (rule.q_seqinfo, rule.k_seqinfo)]
        packed(who, q[0], k[0], causal() if "Causal" in kind else None, ends[0], ends[1], given.get("scale"))
        return out
    bias = rule.detach() if isinstance(rule, Tensor) else None
    mask: Mask | None = causal(_TRIANGLES[kind]) if kind in _TRIANGLES else None
    if mask is not None and q.shape[1] == k.shape[1]:
        mask = causal()
    if bias is not None and bias.dim() == 3:
        bias = bias[:, None]
    q, k = (x.detach().transpose(1, 2) for x in (q, k))
    who.record(look(q, k, k, mask, bias, given.get("scale"), first))
    return out
