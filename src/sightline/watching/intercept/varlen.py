"""Texts packed one after another into one tensor, as torch's `varlen_attn` and flash-attention take them.

The account is of one map for all of them: a text sees itself alone (`sl.documents`).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.masks import Band, Mask, documents
from sightline.watching.intercept import active
from sightline.watching.intercept.torch_calls import is_cross, look

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience

UNEQUAL = "given packed texts whose queries and keys differ in number, under a rule that counts from their ends"
PAGED = "given keys in pages, or in parts of a cache"


def named(names: str, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Arguments by the names that their function documents.

    >>> named("q k v", (1, 2), {"v": 3})
    {'q': 1, 'k': 2, 'v': 3}
    """
    return dict(zip(names.split(), args)) | kwargs


def band(causal: bool, window: Any) -> Mask | None:
    """What flash-attention calls causal and a window: aligned at the end, -1 is without an end."""
    left, right = (None if side is None or side < 0 else int(side) for side in window or (-1, -1))
    right = 0 if causal else right
    return None if left is None and right is None else Band(left, right)


def packed(
    who: Audience,
    q: Tensor,
    k: Tensor,
    rule: Mask | None,
    ends_q: Tensor,
    ends_k: Tensor,
    scale: float | None,
    **more: Any,
) -> None:
    """Record attention over packed texts: q `[total, heads, dim]`, and where each text begins and ends."""
    with active.quiet(), torch.no_grad():
        same = ends_q is ends_k or torch.equal(ends_q, ends_k)
        first = 0 if same and not is_cross(who.name, who.module) else -1
        total = k.shape[0]
        if rule is not None and not same:
            who.miss(UNEQUAL, first, total)
            return
        mask = documents(texts(ends_q, q.shape[0]), texts(ends_k, total))
        q, k = (x.detach().transpose(0, 1)[None] for x in (q, k))
    who.record(look(q, k, k, mask if rule is None else mask & rule, None, scale, first, **more))


def texts(ends: Tensor, total: int) -> Tensor:
    """The number of the text that each position is of, `[total]`; what comes after the last one is one more.

    >>> texts(torch.tensor([0, 2, 5]), 6)
    tensor([0, 0, 1, 1, 1, 2])
    """
    places = torch.arange(total, device=ends.device)
    return torch.searchsorted(ends[1:].contiguous().to(places.dtype), places, right=True)


def varlen(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """torch.nn.attention.varlen.varlen_attn: causal is a flag of its own in some versions, a window in others."""
    given = named(" ".join(inspect.signature(func).parameters), args, kwargs)
    q, k, window = given["query"], given["key"], given.get("window_size", (-1, -1))
    if not who.wanting:
        who.note(0, k.shape[0])
    with active.quiet():
        out = func(*args, **kwargs)
    if not who.wanting:
        return out
    if given.get("block_table") is not None or given.get("seqused_k") is not None or given["cu_seq_k"] is None:
        who.miss(PAGED, -1, k.shape[0])
        return out
    rule = band(given.get("is_causal", False), window)
    packed(who, q, k, rule, given["cu_seq_q"], given["cu_seq_k"], given.get("scale"))
    return out
